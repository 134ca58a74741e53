"""What the site adds to mkdocs: notebooks as pages, diagrams in place of links to them, and Mermaid to draw them."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MERMAID = "javascripts/mermaid.tiny.js"
# `::: MODULE: NAME, NAME`: names of a module to describe.
LISTED = re.compile(r"^::: ([\w.]+): (\w+(?:,\s+\w+)*)$", re.MULTILINE)
# `::: NAME [MEMBERS]`: what to describe, and which of its members; of a module only these, without a heading of its own.
DESCRIBED = re.compile(r"^::: (\S+) \[([^\]]*)\]$", re.MULTILINE)
DIAGRAM = re.compile(r"^\[.*\]\((?:\.\./)?(diagrams/[\w-]+\.mmd)\)$", re.MULTILINE)  # a link that is a paragraph


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, its pictures, and the notebook itself to download."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        page, pictures = notebook_page(nbformat.reads(text, as_version=4), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        files.append(File.generated(config, f"notebooks/{path.name}", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def notebook_page(notebook: nbformat.NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for number, output in enumerate(cell.outputs):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{cell.id}-{number}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![What the cell above shows]({picture})")
            else:
                parts.append(text_output(output, data))
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n*A notebook: [download it]({name}), or run it from `examples/{name}`.*\n{rest}\n", pictures


def text_output(output: nbformat.NotebookNode, data: dict[str, Any]) -> str:
    """What a cell printed or returned, as Markdown."""
    if "text/markdown" in data:
        return str(data["text/markdown"])
    if "text/html" in data:
        return f"<div>{data['text/html']}</div>"
    text = output.get("text") or data.get("text/plain", "")
    return f"```text\n{text.rstrip()}\n```"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show a diagram where a page links to its file, and write out the short forms of what mkdocstrings describes."""

    def shown(link: re.Match[str]) -> str:
        return f"```mermaid\n{(Path(config.docs_dir) / link[1]).read_text(encoding='utf-8')}```"

    return DESCRIBED.sub(options, LISTED.sub(one_by_one, DIAGRAM.sub(shown, markdown)))


def one_by_one(listed: re.Match[str]) -> str:
    """The long form of `::: MODULE: NAME, NAME`."""
    return "\n\n".join(f"::: {listed[1]}.{name}" for name in re.findall(r"\w+", listed[2]))


def options(described: re.Match[str]) -> str:
    """The long form of `::: NAME [MEMBERS]`."""
    name, members = described[1], " ".join(described[2].split())
    is_module = name.rpartition(".")[2].islower()
    hidden = "      show_root_heading: false\n      show_root_toc_entry: false\n" if is_module else ""
    return f"::: {name}\n    options:\n{hidden}      members: [{members}]"


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load Mermaid before the theme's own script, which would otherwise fetch it from another host."""
    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{"../" * page.url.count("/")}{MERMAID}"></script>'
    return output.replace("<script src=", f"{script}\n<script src=", 1)

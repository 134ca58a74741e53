"""The diagrams of the pages that say how relevance and precompute work are what those pages' own runs draw now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from test_code_blocks import blocks

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize(("page", "drawing"), [("relevance-how", "flow.mermaid()"), ("precompute-how", "net.mermaid()")])
def test_the_page_shows_what_it_prints(page: str, drawing: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (name,) = re.findall(r"\(diagrams/([\w-]+\.mmd)\)", text)
    shown = (DOCS / "diagrams" / name).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in blocks(text):
        if block.language == "python":
            exec(block.code, names)
        if f"print({drawing})" in block.code:
            break
    assert eval(drawing, names) == shown

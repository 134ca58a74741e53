"""Self-contained pages: one HTML file with its own style and scripts, no network, no fonts, no library.

Every page the library writes is made here, so that escaping and the Content-Security-Policy are each in one place. The policy
names the hashes of the page's own styles and scripts: nothing else can run or load, whatever the texts on the page hold.

`tokens.css` holds the colours and the reset of every page, `article.css` the look of a page that is read from top to bottom, and
`elements.js` what scripts make elements with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from lutetia._shared.markup import Html, facts, tag, text
from lutetia._version import __version__
from lutetia.files import open_file

HOME = "lutetia._shared"
GENERATOR = "Lutetia"


@dataclass(frozen=True)
class Page:
    """The parts of one page. Styles and scripts are the text of files in this package, never text from outside."""

    title: str
    body: Html
    styles: Sequence[str] = ()
    scripts: Sequence[str] = ()
    data: Mapping[str, str] = field(default_factory=dict)  # JSON for the scripts by the id of its element, made by `packed`
    framed_styles: Sequence[str] = ()  # of the pages shown in frames, which inherit this page's policy
    framed_scripts: Sequence[str] = ()
    inline: bool = False  # whether pieces on the page bring `style` attributes and `data:` images
    view: str | None = None  # `data-view` of the body


def is_ours(path: Path) -> bool:
    """Whether a file begins as a page of ours does."""
    with open_file(path, "a page") as file:
        return f'name="generator" content="{GENERATOR}"'.encode() in file.read(200)


def document(page: Page) -> str:
    """The whole page as text, to be written as UTF-8."""
    style, script = "\n".join(page.styles), "\n".join(page.scripts)
    data = [Html(f'<script type="application/json" id="{name}">{content}</script>\n') for name, content in page.data.items()]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=GENERATOR),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(page, style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", page.title),
        Html(f"<style>{style}</style>"),
    ]
    code = Html(f'<script type="module">{script}</script>\n') if script else None
    return text(
        Html('<!doctype html>\n<html lang="en">\n<head>\n'),
        [text(each, Html("\n")) for each in head],
        Html("</head>\n"),
        tag("body", Html("\n"), page.body, Html("\n"), data, code, data_view=page.view),
        Html("\n</html>\n"),
    )


def _policy(page: Page, style: str, script: str) -> str:
    styles = " ".join(map(digest, [style, *page.framed_styles]))
    scripts = " ".join(map(digest, filter(None, [script, *page.framed_scripts])))
    rules = ["default-src 'none'", f"style-src {styles}"]
    if page.inline:
        rules[1:] = [f"style-src-elem {styles}", "style-src-attr 'unsafe-inline'", "img-src data:"]
    rules += [f"script-src {scripts}"] if scripts else []
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def digest(content: str) -> str:
    """The source expression with which a policy allows exactly this content."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def packed(value: object) -> str:
    """A value as ASCII JSON (which takes care of U+2028 and U+2029) that cannot end the script element around it."""
    shown = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return shown.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def asset(name: str, package: str = HOME) -> str:
    """One file of a package's `page/` folder, without comment lines and needless spaces: no string in it spans lines."""
    lines = files(package).joinpath("page", name).read_text(encoding="utf-8").splitlines()
    lines = [line for line in map(str.strip, lines) if line and not line.startswith("//")]
    if name.endswith(".js"):  # lines with a string or a pattern stay as they are
        lines = [line if re.search(r"[\"'`/]", line) else re.sub(r" ?([=<>?:,;{}()&|*]+) ?", r"\1", line) for line in lines]
    elif name.endswith(".css"):
        lines = [re.sub(r" ?([{};,]|: ) ?", lambda match: match[1].strip(), line) for line in lines]
    return "\n".join(lines)


# ---- a page that is read from top to bottom --------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """One section: its id, which links point to, its heading, and its content."""

    name: str
    title: str
    content: Html


@dataclass(frozen=True)
class Article:
    """What such a page shows, besides its sections."""

    title: str
    lead: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)  # the few numbers to begin with
    sections: Sequence[Section] = ()
    empty: str = "Nothing to show."  # what stands there instead of sections
    no_script: str = ""  # what is said where scripts are not allowed


def article(content: Article, styles: Iterable[str] = (), scripts: Iterable[str] = (), **parts: Any) -> str:
    """A page with a bar of links, a title and sections, in the shared style; `parts` are further fields of `Page`."""
    links = [tag("li", tag("a", each.title, href=f"#{each.name}")) for each in content.sections if len(content.sections) > 1]
    lead = tag("p", content.lead, class_="lead") if content.lead else None
    sections = [
        tag(
            "section",
            tag("h2", each.title, id=f"{each.name}-title"),
            each.content,
            id=each.name,
            aria_labelledby=f"{each.name}-title",
        )
        for each in content.sections
    ]
    body = text(
        tag("a", "Skip to the content", class_="skip", href="#content"),
        tag("nav", tag("ul", links), Html(asset("theme.html")), aria_label="Sections"),
        tag("header", tag("h1", content.title), lead, facts(content.figures, "facts big")),
        tag("noscript", tag("p", content.no_script, class_="said")) if content.no_script else None,
        tag("main", sections or tag("p", content.empty, class_="said"), id="content", tabindex=-1),
        tag("footer", f"Made by lutetia {__version__}."),
    )
    own = (asset("tokens.css"), asset("article.css"))
    return document(Page(content.title, body, (*own, *styles), (asset("theme.js"), *scripts), **parts))

"""The built documentation: it builds strictly, asks no other host for anything, draws its diagrams and shows the notebooks."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import require_module

if TYPE_CHECKING:
    from playwright.sync_api import Browser

for needed in ("material", "mkdocstrings"):
    require_module(needed)
build = require_module("mkdocs.commands.build")
load_config = require_module("mkdocs.config").load_config

pytest_plugins = ["browser"]

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(path.stem for path in ROOT.glob("examples/*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    build.build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


class Loads(HTMLParser):
    """The addresses that a page loads by itself; links that a reader may follow do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.addresses.append(values.get("src") or "")
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.addresses.append(values.get("href") or "")


def test_no_page_loads_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        parser = Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        foreign = [address for address in parser.addresses if re.match(r"(https?:)?//", address)]
        assert not foreign, page


def test_a_page_with_diagrams_brings_mermaid_and_others_do_not(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        scripts = re.findall(r'<script src="([^"]+)"', text)
        mermaid = [script for script in scripts if "mermaid" in script]
        assert bool(mermaid) == ('class="mermaid"' in text), page
        assert all((site / script[1:] if script[0] == "/" else page.parent / script).exists() for script in scripts), page
        assert not mermaid or scripts.index(mermaid[0]) < len(scripts) - 1, "it must come before the theme's own script"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_shown_with_its_outputs(site: Path, name: str) -> None:
    folder = site / "notebooks"
    page = (folder / name / "index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'<img alt="What the cell above shows" src="\.\./([\w-]+\.png)"', page)
    assert pictures
    assert all((folder / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert (folder / f"{name}.ipynb").read_bytes() == (ROOT / "examples" / f"{name}.ipynb").read_bytes()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on a port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()


@pytest.mark.parametrize("page", ["notes/lut-flow", "decode-attention-how", "notebooks/lut"])
def test_a_browser_draws_the_diagrams_without_another_host(browser: Browser, address: str, page: str) -> None:
    from browser import Opened, watch  # here, since pytest loads the module as a plugin first

    context = browser.new_context()
    try:
        context.set_default_timeout(30_000)
        opened = Opened(context.new_page(), [], [])
        watch(opened)
        opened.page.goto(f"{address}/{page}/")
        opened.page.wait_for_function("document.querySelectorAll('div.mermaid').length > 0")
        opened.page.wait_for_function("document.querySelectorAll('pre.mermaid').length == 0")
        assert [request for request in opened.requests if not request.startswith((address, "data:", "blob:"))] == []
        assert opened.problems == []
    finally:
        context.close()

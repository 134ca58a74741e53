"""A real browser for tests: the system's Chromium, headless, driven by Playwright; skipped by name where missing.

A test module asks for it with `pytest_plugins = ["browser"]` and uses `open_page`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import pytest

from tools import require_module, require_tool

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


class Opened(NamedTuple):
    """A page, and what happened on it since it was opened."""

    page: Page
    requests: list[str]  # every address it asked for, its own included
    problems: list[str]  # console errors and warnings, uncaught exceptions, dialogs


OpenPage: TypeAlias = Callable[..., Opened]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for the whole run."""
    playwright = require_module("playwright.sync_api")
    program = require_tool("chromium", "chromium-browser", "google-chrome")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=QUIET)
        yield chromium
        chromium.close()


Kept: TypeAlias = dict[bool, Opened]  # by whether it is touched, as a phone


@pytest.fixture(scope="session")
def kept(browser: Browser) -> Iterator[Kept]:
    """The window of the last test, if it left one: a new one takes longer than most tests do with it."""
    kept: Kept = {}
    yield kept
    for opened in kept.values():
        opened.page.context.close()


@pytest.fixture
def open_page(browser: Browser, kept: Kept, tmp_path: Path) -> Iterator[OpenPage]:
    """Writes HTML to a file and opens that file from disk, in a window that the test has for itself."""
    used: list[tuple[bool, Opened]] = []

    def open_it(text: str, width: int = 1280, height: int = 800, scheme: Literal["light", "dark"] = "light") -> Opened:
        path = tmp_path / f"page{len(used)}.html"
        path.write_text(text, encoding="utf-8")
        touched = width < 500
        opened = kept.pop(touched, None) or new_window(browser, touched)
        while kept:  # a window behind another one is drawn late, or never
            kept.popitem()[1].page.context.close()
        used.append((touched, opened))
        opened.page.set_viewport_size({"width": width, "height": height})
        opened.page.emulate_media(color_scheme=scheme)
        opened.page.goto(path.as_uri())
        return opened

    yield open_it
    for number, (touched, opened) in enumerate(used, 1):
        if number == len(used) and leave(opened):
            kept[touched] = opened
        else:
            opened.page.context.close()


def new_window(browser: Browser, touched: bool) -> Opened:
    context = browser.new_context(reduced_motion="reduce", has_touch=touched)
    context.set_default_timeout(10_000)
    opened = Opened(context.new_page(), [], [])
    watch(opened)
    return opened


def leave(opened: Opened) -> bool:
    """Make a window as new: an empty page, the pointer outside, nothing noted or stored; whether that worked."""
    if opened.page.is_closed() or len(opened.page.context.pages) > 1:
        return False
    try:
        opened.page.mouse.move(-1, -1)
        opened.page.goto("about:blank")
    except Exception:  # a page that hangs, or has crashed
        return False
    opened.page.context.clear_cookies()
    opened.requests.clear()
    opened.problems.clear()
    return True


def watch(opened: Opened) -> None:
    """Note what the page asks for and what goes wrong on it."""

    def closed(dialog: Dialog) -> None:
        opened.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            opened.problems.append(message.text)

    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.on("console", said)
    opened.page.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.page.on("dialog", closed)

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
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page

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


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """Writes HTML to a file and opens that file from disk, in a window of its own."""
    contexts: list[BrowserContext] = []

    def open_it(text: str, width: int = 1280, height: int = 800, scheme: Literal["light", "dark"] = "light") -> Opened:
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", has_touch=width < 500
        )
        contexts.append(context)
        context.set_default_timeout(10_000)
        opened = Opened(context.new_page(), [], [])
        watch(opened)
        opened.page.goto(path.as_uri())
        return opened

    yield open_it
    for context in contexts:
        context.close()


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

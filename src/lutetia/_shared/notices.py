"""What a user may want to know during a wait: said once by whoever has a screen, by nobody else."""

from __future__ import annotations

from collections.abc import Callable

screens: list[Callable[[str], None]] = []
_said: set[str] = set()


def say_once(text: str) -> None:
    """Tell every screen, the first time only."""
    if text in _said or not screens:
        return
    _said.add(text)
    for screen in screens:
        screen(text)

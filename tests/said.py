"""What the command says, for tests that run it in their own process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lutetia.cli import main


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What a command that succeeds prints with --json."""
    assert main([*map(str, arguments), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that fails prints."""
    assert main([*map(str, arguments)]) != 0
    return capsys.readouterr().err

"""The command's threads wait without spinning, unless the user wants otherwise."""

from __future__ import annotations

import os

import pytest

from lutetia.cli import main


@pytest.mark.parametrize(("given", "kept"), [(None, "passive"), ("active", "active")])
def test_threads_wait_passively(given: str | None, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    assert main(["--version"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == kept

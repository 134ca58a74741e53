"""Small data and checkpoints that the tests of the command share."""

from __future__ import annotations

from pathlib import Path

import pytest
from setting import write_setting


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as after a morning's work: flowers.csv, digit.png, examples/*.toml, and runs of three of them."""
    return write_setting(tmp_path_factory.mktemp("setting"))

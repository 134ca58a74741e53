"""What tests of the LUT runtime share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lutetia.lut import threads


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Share out even the smallest work over three threads."""
    monkeypatch.setattr(threads, "SMALLEST_SHARE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)

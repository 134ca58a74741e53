"""What tests of the LUT runtime share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Share out even the smallest work over three threads."""
    from lutetia._shared import threads  # not above: Triton must not be imported before it is told to interpret

    monkeypatch.setattr(threads, "SMALLEST_SHARE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)

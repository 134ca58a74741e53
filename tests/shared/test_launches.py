"""Launches that are kept: Triton is asked once, and again for whoever watches and on another device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tools import require_module

require_module("triton")


class Kernel:
    """Counts how often Triton would be asked, and gives a compiled kernel that counts its runs."""

    def __init__(self) -> None:
        self.asked, self.runs = 0, []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        made = SimpleNamespace(function=1, packed_metadata=2)
        number = self.asked
        made.run = lambda *given: self.runs.append((number, given))
        return made


def test_triton_is_asked_once_per_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia._shared import launches

    current = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    kernel = Kernel()
    launch = launches.Launch(kernel, (3,), torch.device("cuda", 0))
    launch("x")
    launch("y")
    assert kernel.asked == 1
    assert kernel.runs[0][1][:4] == (3, 1, 1, 7)
    assert kernel.runs[0][1][-1] == "y"
    current[0] = 1  # what is compiled there is not for device 0
    launch("z")
    assert (kernel.asked, len(kernel.runs)) == (2, 1)
    current[0] = 0
    launch("w")
    assert kernel.runs[-1][0] == 1  # still that of device 0
    assert kernel.asked == 2
    monkeypatch.setattr(launches, "_watched", lambda: True)
    launch("v")
    assert kernel.asked == 3


def test_alignment_and_type_are_part_of_a_signature() -> None:
    from lutetia._shared.launches import alike

    numbers = torch.zeros(8)
    assert alike(numbers, None) == alike(torch.ones(8), None)
    assert alike(numbers) != alike(numbers[1:])
    assert alike(numbers) != alike(numbers.int())

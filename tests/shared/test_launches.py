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


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The device that torch has chosen; its current stream is 7."""
    current: list[int | None] = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    return current


def test_triton_is_asked_once_per_device(current: list[int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia._shared import launches

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
    monkeypatch.setattr(launches, "watched", lambda: True)
    launch("v")
    assert kernel.asked == 3


def test_triton_is_asked_once_for_arguments_alike(current: list[int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia._shared import launches

    current[0] = None  # the tensors are on a CPU
    monkeypatch.setattr(launches, "_known", {})
    kernel, numbers = Kernel(), torch.zeros(8)
    kernel.arg_names = ["pointers", "n", "step", "CASE"]
    for pointers, n, step, case in (
        ((numbers, None), 8, 0.5, "a"),
        ((torch.ones(8), None), 8, 0.25, "a"),  # alike: other values of a tensor and of a float
        ((numbers[1:], None), 8, 0.5, "a"),  # not aligned to 16 bytes
        ((numbers.int(), None), 8, 0.5, "a"),
        ((numbers, None), 16, 0.5, "a"),
        ((numbers, None), 8, None, "a"),
        ((numbers, None), 8, 0.5, "b"),
    ):
        launches.planned(kernel, (3,))(pointers, n, step, CASE=case, num_warps=4)
    assert (kernel.asked, len(kernel.runs)) == (6, 1)
    assert kernel.runs[0][1][-2:] == (0.25, "a")  # constants follow the arguments; options are for the compiler
    monkeypatch.setattr(launches, "MOST", 6)
    launches.planned(kernel, (4,))((numbers, None), 8, 0.5, CASE="a")
    assert len(launches._known) == 1  # all others are forgotten


FACTS = {"num_ctas": 1, "num_warps": 4, "shared": 96, "global_scratch_size": 0, "launch_cooperative_grid": False}
SIGNATURE = {"x": ("*fp32", "constexpr"), "n": "i32", "m": "i64", "rate": "fp32", "CASE": "constexpr"}
SIZES = [8, 4, 8, 4, 8, 8]  # of the parameters, and of two that Triton adds


def compiled_with(signature: dict[str, Any], facts: dict[str, Any]) -> Any:
    """A launch of a kernel that Triton compiled."""
    from lutetia._shared import launches

    launch = launches.Launch(None, (3, 2), torch.device("cuda", 0))
    source = SimpleNamespace(signature=signature)
    launch.compiled = SimpleNamespace(function=7, src=source, metadata=SimpleNamespace(**facts))
    return launch


def test_a_launch_among_others_has_the_bits_of_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia._shared import driver
    from lutetia._shared.steps import Shot

    x = torch.zeros(3)
    monkeypatch.setattr(driver, "parameter_sizes", lambda function: SIZES)
    shot = compiled_with(SIGNATURE, FACTS).shot((x, None), -3, 2**40, 0.5, "case")
    assert shot == Shot(7, (3, 2, 1), 128, 96, (x, 2**64 - 3, 2**40, 0x3F000000, 0, 0))
    assert shot.given[0] is x


@pytest.mark.parametrize(
    ("kind", "facts", "sizes"),
    [
        ("*fp32", {"num_ctas": 2}, [8]),
        ("*fp32", {"global_scratch_size": 64}, [8]),
        ("*fp32", {"launch_cooperative_grid": True}, [8]),
        ("fp64", {}, [8]),
        ("tensordesc", {}, [8]),
        ("i32", {}, [8]),  # the kernel takes something else
        ("*fp32", {}, [8] * 97),  # more than there is room for
        ("*fp32", {}, None),  # the driver does not tell
    ],
)
def test_what_triton_must_launch_itself(kind: str, facts: dict[str, Any], sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia._shared import driver

    monkeypatch.setattr(driver, "parameter_sizes", lambda function: sizes)
    assert compiled_with({"x": kind}, FACTS | facts).shot(3) is None

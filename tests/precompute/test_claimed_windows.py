"""Claims with windows: a module of any kind that slides over sequences or images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.precompute import Binary, Quantise, Stream, UInt, decompose, precomputable, trace
from lutetia.precompute.ir.stream import Table, Window


@precomputable(domain=UInt(2), groups=((3, 1), (3, 1)), kernel=3, stride=2, padding=1)
class Middle(nn.Module):
    """The median of three samples of each channel, every second one, in zeros."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (1, 1)).unfold(2, 3, 2).median(-1).values


@precomputable(groups=((4, 1),), kernel=(2, 2), dilation=(1, 2))
class Corner(nn.Module):
    """The parity of four pixels, two columns apart."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :, :-1, :-2] + x[:, :, :-1, 2:] + x[:, :, 1:, :-2] + x[:, :, 1:, 2:]) % 2


class TooFar(Middle):
    """Claims three taps and reads a fourth, but only where all others are 3."""

    def forward(self, x: Tensor) -> Tensor:
        far = F.pad(x, (1, 3)).unfold(2, 5, 2)
        return far[..., :3].median(-1).values + (far[..., 3] > 1) * (far[..., 1] > 1)


@pytest.mark.parametrize("length", [None, 7, 8])
def test_a_sequence(length: int | None) -> None:
    module = Middle() if length else precomputable(groups=((3, 1), (3, 1)), kernel=3, stride=2)(Endless())
    net = trace(module, Stream(2, UInt(2), length=length)).precompute()
    x = torch.randint(0, 4, (20, 2, length or 9))
    assert torch.equal(net(x), module(x.double()).long())
    (window,) = (node for node in net.nodes if isinstance(node, Window))
    assert (window.kernel, window.stride, window.padding) == ((3,), (2,), (1,) if length else (0,))
    assert max(table.k for node in net.nodes if isinstance(node, Table) for table in node.tables) == 6


class Endless(nn.Module):
    """The median without padding."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(2, 3, 2).median(-1).values


def test_an_image_inside_a_model() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), Quantise(Binary()), Corner())
    net = trace(model, Stream(1, UInt(1), height=4, width=5)).precompute()
    x = torch.randint(0, 2, (30, 1, 4, 5))
    assert torch.equal(net(x), model.double()(x.double()).long())


def test_decompose_and_its_tables() -> None:
    units = decompose(Middle())
    assert units.sizes == ((3, 1), (3, 1))
    assert units.tables()[1][(3, 0, 2)] == (2,)


def test_a_module_that_reads_more_is_refused() -> None:
    for refused in (lambda: decompose(TooFar()), lambda: trace(TooFar(), Stream(2, UInt(2), length=8))):
        with pytest.raises(ArgumentError, match=r"TooFar reads more than its window at place \[\d\]: not what was claimed"):
            refused()


def test_a_module_with_other_frames_is_refused() -> None:
    wrong = precomputable(groups=((3, 1), (3, 1)), kernel=3)(Endless())
    with pytest.raises(ArgumentError, match=r"Endless answers \[2, 4\] to frames of \[9\], expected \[2, 7\]"):
        decompose(wrong)


def test_bad_windows() -> None:
    for options, message in (
        ({"kernel": 3}, "kernel is given without groups"),
        ({"kernel": (1, 2, 3), "groups": 1}, "a number, or two for an image"),
        ({"kernel": 2, "stride": (1, 1), "groups": 1}, "stride"),
        ({"kernel": 0, "groups": 1}, "kernel"),
        ({"kernel": 2, "padding": -1, "groups": 1}, "padding"),
    ):
        with pytest.raises(ArgumentError, match=message):
            precomputable(**options)  # type: ignore[arg-type]

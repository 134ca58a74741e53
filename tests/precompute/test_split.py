"""A convolution as a grouped and a pointwise one: the same numbers, narrower units, and a refusal where it does not factor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lutetia.errors import ArgumentError
from lutetia.precompute import Int, Quantise, Stream, UInt, decompose, split_convolution, trace


def factored(kind: type[nn.Module], rank: int, seed: int, **options: object) -> nn.Module:
    """A convolution whose weights are made of `rank` whole filters for each channel, times 1/8."""
    generator = torch.Generator().manual_seed(seed)
    conv = kind(3, 4, 3, **options)
    taps = conv.weight[0, 0].numel()
    filters = torch.randint(-6, 7, (3, rank, taps), generator=generator).float()
    mixed = torch.randint(-3, 4, (4, 3, rank), generator=generator).float()
    with torch.no_grad():
        conv.weight.copy_(torch.einsum("ocr,crt->oct", mixed, filters).reshape(conv.weight.shape) / 8)
    return conv


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
@pytest.mark.parametrize(("rank", "seed"), [(1, 0), (1, 1), (2, 2), (2, 3)])
def test_the_two_are_the_one(kind: type[nn.Module], rank: int, seed: int) -> None:
    conv = factored(kind, rank, seed, stride=2, padding=1, dilation=1, bias=bool(seed % 2)).double()
    split = split_convolution(conv, filters=rank)  # type: ignore[arg-type]
    assert (split[0].groups, split[1].kernel_size) == (3, (1,) * (1 if kind is nn.Conv1d else 2))
    x = torch.randint(-9, 10, (5, 3, *(8,) * (1 if kind is nn.Conv1d else 2))).double()
    if conv.bias is not None:
        conv.bias.data.copy_((conv.bias.data * 8).round() / 8)
        split[1].bias.data.copy_(conv.bias.data)
    assert torch.equal(split(x), conv(x))


def test_units_are_as_narrow_as_their_channel() -> None:
    conv = factored(nn.Conv1d, 1, 0, bias=False)
    split = split_convolution(conv)  # type: ignore[arg-type]
    assert max(size for size, _ in decompose(conv).sizes) == 9
    assert max(size for size, _ in decompose(split[0]).sizes) == 3
    model = nn.Sequential(*split, Quantise(Int(4)))
    whole = nn.Sequential(conv, Quantise(Int(4)))
    x = torch.randint(0, 4, (20, 3, 6))
    net = trace(model, Stream(3, UInt(2), length=6)).precompute(max_bits=12)
    assert torch.equal(net.real(x), whole.double()(x.double()))


def test_a_channel_that_is_not_read() -> None:
    conv = nn.Conv1d(2, 2, 3, bias=False)
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[0, 1] = torch.tensor([2.0, -4.0, 6.0])
        conv.weight[1, 1] = torch.tensor([3.0, -6.0, 9.0])  # neither is a multiple of the other, both of (1, -2, 3)
    split = split_convolution(conv)
    assert split[0].weight.flatten(1).abs().tolist() == [[0, 0, 0], [1, 2, 3]]
    x = torch.randint(-5, 6, (4, 2, 7)).float()
    assert torch.equal(split(x), conv(x))


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"channel \d of .* needs 3 filters of 3 taps, expected at most 1"):
        split_convolution(nn.Conv1d(2, 4, 3))
    with pytest.raises(ArgumentError, match="groups=1"):
        split_convolution(nn.Conv1d(2, 2, 3, groups=2))
    with pytest.raises(ArgumentError, match="filters"):
        split_convolution(nn.Conv1d(2, 2, 3), filters=0)

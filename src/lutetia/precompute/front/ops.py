"""Ops: the links of a block. Each knows its window, which inputs each output reads, and how to run in float64.

Linear    Linear, masked Linear, SparseLinear, Conv1d, Conv2d, average pooling, the sum of two streams: outputs are weighted sums
Max       max pooling
Each      batch norm, activations, quantisers: one value at a time, perhaps different in each channel
Claimed   a module that `@precomputable` describes
Multiplied   the product of two streams
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.errors import ArgumentError, fail
from lutetia.precompute.front.claims import INPUTS, OUTPUTS, Claim, Structure, claim_of, size_of
from lutetia.precompute.front.quantise import Quantise, SparseLinear

Run: TypeAlias = Callable[[Tensor], Tensor]
Rows: TypeAlias = list[tuple[np.ndarray, np.ndarray]]  # per output: channels and taps

# Elementwise and monotonic: they can be replaced by thresholds.
MONOTONE = (
    nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh, nn.Softsign, nn.Softplus, nn.LogSigmoid,
    nn.ELU, nn.SELU, nn.CELU, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, Quantise,
)  # fmt: skip
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
ELEMENTWISE = (
    *MONOTONE, nn.LeakyReLU, nn.PReLU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Threshold, nn.Hardshrink, nn.Softshrink,
    nn.Tanhshrink,
)  # fmt: skip
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
AVERAGES = (nn.AvgPool1d, nn.AvgPool2d)
MAXIMA = (nn.MaxPool1d, nn.MaxPool2d)


@dataclass(frozen=True)
class WindowShape:
    """Kernel, stride, dilation and padding, one number per axis; `after` is the padding behind where it is another."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    after: tuple[int, ...] | None = None

    @property
    def ends(self) -> tuple[int, ...]:
        """The padding after each axis."""
        return self.padding if self.after is None else self.after

    @property
    def is_trivial(self) -> bool:
        """Whether it passes every sample on as it is."""
        return {*self.kernel, *self.stride} == {1} and not any(self.padding) and not any(self.ends)


class BlockOp:
    """One link of a block."""

    window: WindowShape | None = None
    in_channels: int | None = None  # None: any number, kept
    out_channels: int | None = None
    rank = 0  # 1 for sequences only, 2 for images only
    mixes = False  # whether an output reads more than its own channel at its own place
    linear = False
    monotone = False
    pointwise = False  # a mixing op without a window that works at any rank

    def ready(self) -> Run:
        """A function [n, C, *window] -> [n, C', *smaller window] in float64, without padding."""
        raise NotImplementedError

    def rows(self, channels: int) -> Rows:
        """Per output, the channels and taps that it may depend on."""
        raise NotImplementedError

    def offsets(self) -> list[tuple[int, ...]]:
        """Where each tap lies, from the first one."""
        if self.window is None:
            return [()]
        kernel, dilation = self.window.kernel, self.window.dilation
        return [tuple(int(at) * step for at, step in zip(tap, dilation, strict=True)) for tap in np.ndindex(*kernel)]


class Each(BlockOp):
    """A module or function that keeps channels apart."""

    def __init__(self, function: Any, channels: int | None = None, rank: int = 0, monotone: bool = False) -> None:
        self.function, self.monotone, self.rank = function, monotone, rank
        self.in_channels = self.out_channels = channels

    def ready(self) -> Run:
        return _double(self.function) if isinstance(self.function, nn.Module) else self.function

    @property
    def quantiser(self) -> Quantise | None:
        """The quantiser that this op is, if it is one."""
        return self.function if isinstance(self.function, Quantise) else None

    def __str__(self) -> str:
        return _name(self.function)


class Linear(BlockOp):
    """Weighted sums: `matrix()` has the weights in float64, `run` is the module itself."""

    mixes = linear = True
    structure: Structure | None = None  # what a claim says, which overrides the weights

    def __init__(self, module: nn.Module, in_channels: int, out_channels: int, window: WindowShape | None = None) -> None:
        self.module, self.in_channels, self.out_channels, self.window = module, in_channels, out_channels, window
        self.rank = 0 if window is None else len(window.kernel)
        taps = 1 if window is None else math.prod(window.kernel)
        claim = claim_of(module)
        self.structure = claim.structure(in_channels * taps, out_channels) if claim and claim.groups is not None else None

    def ready(self) -> Run:
        return _without_padding(_double(self.module))

    def rows(self, channels: int) -> Rows:
        if self.structure is not None:
            return _claimed_rows(self.structure, 1 if self.window is None else math.prod(self.window.kernel))
        return [(source, tap) for source, tap, _ in self.matrix()]

    def matrix(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Per output: channels, taps and weights (float64), of the weights that are not zero."""
        module = self.module
        if isinstance(module, SparseLinear):
            return _sparse_matrix(module)
        weight = _effective_weight(module)
        groups = getattr(module, "groups", 1)
        assert self.in_channels is not None
        assert self.out_channels is not None
        per_group, outputs = self.in_channels // groups, self.out_channels // groups
        flat = weight.reshape(self.out_channels, per_group, -1).numpy()
        found = []
        for output in range(self.out_channels):
            channel, tap = np.nonzero(flat[output])
            found.append((channel + output // outputs * per_group, tap, flat[output][channel, tap]))
        return found

    def bias(self) -> np.ndarray:
        """float64 [out_channels]."""
        bias = getattr(self.module, "bias", None)
        return np.zeros(self.out_channels or 0) if bias is None else bias.detach().double().cpu().numpy()

    @property
    def divisor(self) -> int:
        """The divisor of the sum: 1, except for averages."""
        return 1

    def __str__(self) -> str:
        return _name(self.module)


class Average(Linear):
    """Average pooling: sums of ones, divided by the number of taps."""

    def __init__(self, module: nn.Module, window: WindowShape, channels: int | None = None) -> None:
        self.module, self.window, self.rank = module, window, len(window.kernel)
        self.in_channels = self.out_channels = channels

    def rows(self, channels: int) -> Rows:
        return _own_taps(channels, self.divisor)

    def matrix(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        if self.in_channels is None:
            raise ArgumentError(f"{self} does not fix its number of channels")
        return [(channel, tap, np.ones(len(tap))) for channel, tap in self.rows(self.in_channels)]

    @property
    def divisor(self) -> int:
        assert self.window is not None
        return math.prod(self.window.kernel)


class Added(Linear):
    """Two streams of the same channels, side by side, added (or subtracted): channels c and c + C."""

    pointwise = True

    def __init__(self, channels: int, sign: int = 1) -> None:
        self.module, self.sign, self.window = nn.Identity(), sign, None
        self.in_channels, self.out_channels = 2 * channels, channels

    def ready(self) -> Run:
        channels, sign = self.out_channels or 0, self.sign
        return lambda x: x[:, :channels] + sign * x[:, channels:]

    def matrix(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        channels = self.out_channels or 0
        zero, weights = np.zeros(2, dtype=np.int64), np.array([1.0, self.sign])
        return [(np.array([channel, channel + channels]), zero, weights) for channel in range(channels)]

    def __str__(self) -> str:
        return "add" if self.sign > 0 else "subtract"


class Multiplied(BlockOp):
    """Two streams of the same channels, side by side, multiplied: channels c and c + C. A table for each product."""

    mixes = pointwise = True

    def __init__(self, channels: int) -> None:
        self.in_channels, self.out_channels = 2 * channels, channels

    def ready(self) -> Run:
        channels = self.out_channels or 0
        return lambda x: x[:, :channels] * x[:, channels:]

    def rows(self, channels: int) -> Rows:
        zero = np.zeros(2, dtype=np.int64)
        return [(np.array([channel, channel + channels // 2]), zero) for channel in range(channels // 2)]

    def __str__(self) -> str:
        return "multiply"


class Max(BlockOp):
    """Max pooling within a block."""

    mixes = True

    def __init__(self, module: nn.Module, window: WindowShape) -> None:
        self.module, self.window, self.rank = module, window, len(window.kernel)

    def ready(self) -> Run:
        return _without_padding(_double(self.module))

    def rows(self, channels: int) -> Rows:
        assert self.window is not None
        return _own_taps(channels, math.prod(self.window.kernel))

    def __str__(self) -> str:
        return _name(self.module)


class Claimed(BlockOp):
    """A module of any kind with a claim: its structure, and its window where it has one, are what the claim says."""

    mixes = True

    def __init__(self, module: nn.Module, claim: Claim) -> None:
        self.module = module
        if claim.window is not None:
            own = claim.window
            self.window, self.rank = WindowShape(own.kernel, own.stride, own.dilation, own.padding), len(own.kernel)
        self.taps = 1 if self.window is None else math.prod(self.window.kernel)
        channels, outputs = (size_of(module, names) for names in (INPUTS, OUTPUTS))
        self.structure = claim.structure(None if channels is None else channels * self.taps, outputs)
        read = 1 + max((max(inputs, default=-1) for inputs, _ in self.structure), default=-1)
        self.in_channels = channels or -(-read // self.taps)
        self.out_channels = sum(len(outputs) for _, outputs in self.structure)

    def ready(self) -> Run:
        module = _double(self.module)
        return module if self.window is None else lambda x: self.one_window(module, x)

    def one_window(self, module: nn.Module, x: Tensor) -> Tensor:
        """The answer to one window, x [n, C, *field] -> [n, C', 1, ..]: the one of the module's answers that reads no padding."""
        assert self.window is not None
        before = [-pad % step for pad, step in zip(self.window.padding, self.window.stride, strict=True)]
        field = F.pad(x, [side for size in reversed(before) for side in (size, 0)])
        places = [(pad + more) // step for pad, more, step in zip(self.window.padding, before, self.window.stride, strict=True)]
        try:
            y = module(field)
        except (RuntimeError, IndexError) as error:  # what PyTorch says about frames that do not fit
            raise ArgumentError(f"{self} does not take a window of {list(field.shape[2:])}: {error}") from error
        if y.dim() != x.dim() or any(place >= size for place, size in zip(places, y.shape[2:], strict=True)):
            raise ArgumentError(f"{self} answers {list(y.shape)} to {list(field.shape)}, expected that of the claimed window")
        return y[(..., *(slice(place, place + 1) for place in places))]

    def rows(self, channels: int) -> Rows:
        return _claimed_rows(self.structure, self.taps)

    def __str__(self) -> str:
        return _name(self.module)


def _claimed_rows(structure: Structure, taps: int) -> Rows:
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for inputs, outputs in structure:
        channels, tap = np.divmod(np.array(inputs, dtype=np.int64), taps)
        found.update(dict.fromkeys(outputs, (channels, tap)))
    return [found[output] for output in range(len(found))]


def op_of(module: nn.Module) -> BlockOp:
    """The op of one layer; an unknown module is an error that says how to declare it."""
    if isinstance(module, CONVOLUTIONS):
        return Linear(module, module.in_channels, module.out_channels, _conv_window(module))
    if isinstance(module, SparseLinear | nn.Linear) or (_is_masked(module) and _weight(module).dim() == 2):
        sparse = isinstance(module, SparseLinear)
        out_features, in_features = (module.out_features, module.in_features) if sparse else _weight(module).shape
        return Linear(module, int(in_features), int(out_features))  # type: ignore[arg-type]
    claim = claim_of(module)
    if claim is not None and claim.groups is not None:
        return Claimed(module, claim)
    if isinstance(module, MAXIMA):
        return Max(module, pool_window(module))
    if isinstance(module, AVERAGES):
        return Average(module, pool_window(module))
    if isinstance(module, NORMS):
        return norm_op(module)
    if isinstance(module, ELEMENTWISE):
        channels = module.num_parameters if isinstance(module, nn.PReLU) and module.num_parameters > 1 else None
        rising = isinstance(module, MONOTONE) or (isinstance(module, nn.LeakyReLU) and module.negative_slope >= 0)
        return Each(module, channels, monotone=rising)
    raise ArgumentError(f"{type(module).__name__} is not a supported layer: declare how it splits with @precomputable(groups=..)")


def norm_op(module: nn.Module) -> Each:
    """Batch norm in eval mode: monotone in each channel, up or down."""
    if getattr(module, "running_mean", None) is None:
        fail(
            "track_running_stats", False, "batch norm that keeps its statistics: without them every batch is a different function"
        )
    return Each(module, module.num_features, 2 if isinstance(module, nn.BatchNorm2d) else 0, True)  # type: ignore[arg-type]


def pool_window(module: Any) -> WindowShape:
    """The window of a pooling layer; options that make windows of different sizes are errors."""
    rank = 1 if isinstance(module, nn.MaxPool1d | nn.AvgPool1d) else 2
    if module.ceil_mode:
        raise ArgumentError(f"ceil_mode of {module} is True, expected False: all windows must be equal")
    padding = numbers(module.padding, rank)
    if any(padding) and isinstance(module, AVERAGES) and not module.count_include_pad:
        raise ArgumentError(f"count_include_pad of {module} is False, expected True: all windows must be equal")
    if getattr(module, "divisor_override", None):
        raise ArgumentError(f"divisor_override of {module} is set, expected None")
    if getattr(module, "return_indices", False):
        raise ArgumentError(f"return_indices of {module} is True, expected False")
    kernel = numbers(module.kernel_size, rank)
    return WindowShape(kernel, numbers(module.stride, rank), numbers(getattr(module, "dilation", 1), rank), padding)


def _conv_window(module: Any) -> WindowShape:
    rank = 1 if isinstance(module, nn.Conv1d) else 2
    padding, after = module.padding, None
    if padding == "valid":
        padding = (0,) * rank
    elif padding == "same":
        both = [(size - 1) * step for size, step in zip(module.kernel_size, module.dilation, strict=True)]
        padding, after = tuple(size // 2 for size in both), tuple(size - size // 2 for size in both)
    padding = tuple(int(side) for side in padding)
    if module.padding_mode != "zeros" and any(padding):
        raise ArgumentError(f"padding_mode of {module} is {module.padding_mode!r}, expected 'zeros'")
    return WindowShape(module.kernel_size, module.stride, module.dilation, padding, None if after == padding else after)


def numbers(value: Any, rank: int) -> tuple[int, ...]:
    """3 -> (3, 3) for images; a tuple stays."""
    return (value,) * rank if isinstance(value, int) else tuple(int(each) for each in value)


def _is_masked(module: nn.Module) -> bool:
    """Whether a layer, of whatever class, has a weight and a mask for it."""
    weight, mask = getattr(module, "weight", None), getattr(module, "mask", None)
    return isinstance(weight, Tensor) and isinstance(mask, Tensor) and mask.shape == weight.shape


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _effective_weight(module: nn.Module) -> Tensor:
    weight = _weight(module)
    return (weight * module.mask if _is_masked(module) else weight).cpu().double()  # type: ignore[operator]


def _sparse_matrix(module: SparseLinear) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    weight, inputs = module.weight.detach().cpu().double().numpy(), module.inputs.cpu().numpy()
    found = []
    for row, picked in zip(weight, inputs, strict=True):
        used = row != 0
        found.append((picked[used], np.zeros(int(used.sum()), dtype=np.int64), row[used]))
    return found


def _own_taps(channels: int, taps: int) -> Rows:
    return [(np.full(taps, channel), np.arange(taps)) for channel in range(channels)]


def _double(module: nn.Module) -> nn.Module:
    return clone(module).to(torch.float64).eval()


def clone(module: nn.Module) -> nn.Module:
    """A copy of a module, even of a pruned one, whose weight is computed and cannot be copied directly."""
    results = [
        value for each in module.modules() for value in vars(each).values() if isinstance(value, Tensor) and not value.is_leaf
    ]
    return copy.deepcopy(module, {id(value): value.detach().clone() for value in results})


def _without_padding(module: nn.Module) -> nn.Module:
    """Remove the padding from a copy of a layer, which is evaluated one window at a time."""
    if isinstance(module, CONVOLUTIONS):
        module.padding = (0,) * len(module.kernel_size)
    elif isinstance(module, (*MAXIMA, *AVERAGES)):
        module.padding = 0
    return module


def _name(function: Any) -> str:
    return type(function).__name__ if isinstance(function, nn.Module) else getattr(function, "__name__", "function")

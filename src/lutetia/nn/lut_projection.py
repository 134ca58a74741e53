"""`LUTProjection2d`: lookup tables that look at windows of an image, in place of a convolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lutetia._shared.windows import Size
from lutetia.errors import MAX_INT32, check_int, check_tensor, fail
from lutetia.lut import DEFAULT_META, LayerDescription, SynapseMeta, growth, random_anchors
from lutetia.nn.lut import LUT


class LUTProjection2d(nn.Module):
    """An image to an image: x [..., *in_shape] -> y [..., *out_shape], each shape (height, width) or (channels, height, width).

    Each detector compares pixels of one window of the input, `receptive_field`, in all its channels, and adds a row of its table
    to a window of the output, `projection`, at the same relative position. Windows stand on a `grid` (this many down and across,
    from border to border) or a `stride` apart in the input; with placement="sampled" the same number is placed at random instead.
    Each place has `detectors_per_position` detectors, and each detector reaches a fraction `keep` of the outputs in its window,
    drawn at random.

    The layer itself is `lut`, a `lutetia.nn.LUT` over the flattened images, with its weight, anchors, synapses and external_lr.
    The options from `meta` on are that layer's.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...],
        out_shape: tuple[int, ...],
        *,
        receptive_field: Size,
        projection: Size,
        n_anchors: int,
        detectors_per_position: int = 1,
        grid: Size | None = None,
        stride: Size | None = None,
        placement: str = "grid",
        keep: float = 1.0,
        meta: SynapseMeta = DEFAULT_META,
        gradient: str = "dense",
        sums: str = "float",
        int_rescaler: float = 1.0,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        read: str = "hard",
        table_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_shape, self.out_shape = _shape("in_shape", in_shape), _shape("out_shape", out_shape)
        window_seed, anchor_seed, weight_seed = _seeds(seed)
        n_inputs, n_outputs = math.prod(self.in_shape), math.prod(self.out_shape)
        with torch.device("cpu"):  # windows are known even where the layer is made on meta
            fields, synapses = growth.windows_2d(
                (self.in_shape[-2], self.in_shape[-1]),
                (self.out_shape[-2], self.out_shape[-1]),
                n_anchors,
                field=receptive_field,
                projection=projection,
                grid=grid,
                stride=stride,
                placement=placement,
                detectors_per_position=detectors_per_position,
                keep=keep,
                in_channels=math.prod(self.in_shape[:-2]),
                out_channels=math.prod(self.out_shape[:-2]),
                meta=meta,
                seed=window_seed,
            )
            anchors = random_anchors(n_inputs, synapses.n_detectors, n_anchors, anchor_seed, fields=fields)
        self.lut = LUT(
            n_inputs,
            n_outputs,
            synapses.n_detectors,
            n_anchors,
            synapses=synapses,
            gradient=gradient,
            sums=sums,
            int_rescaler=int_rescaler,
            seed=weight_seed,
            device=device,
            dtype=dtype,
            anchors=anchors,
            read=read,
            table_dropout=table_dropout,
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [..., *in_shape] -> y [..., *out_shape]."""
        check_tensor("x", x, ["...", *self.in_shape])
        return self.lut(x.flatten(-len(self.in_shape))).unflatten(-1, self.out_shape)

    def describe(self) -> LayerDescription:
        """The parts of the layer over the flattened images."""
        return self.lut.describe()._replace(in_shape=self.in_shape)

    def extra_repr(self) -> str:
        """The two shapes."""
        return f"{self.in_shape} -> {self.out_shape}"


def _seeds(seed: int | None) -> list[int]:
    """Seeds for windows, anchors and weights: one number for all three would tie their draws together."""
    if seed is None:
        return torch.randint(MAX_INT32, (3,), device="cpu").tolist()
    check_int("seed", seed, 0, 2**63 - 1)
    return torch.randint(MAX_INT32, (3,), generator=torch.Generator().manual_seed(seed), device="cpu").tolist()


def _shape(name: str, shape: object) -> tuple[int, ...]:
    if not isinstance(shape, tuple | list | torch.Size) or len(shape) not in (2, 3):
        fail(name, shape, "(height, width) or (channels, height, width)")
    for number in shape:
        check_int(f"a number of {name}", number, 1)
    return tuple(shape)

"""What the Triton kernels need to know of the way a layer's weights lie in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lutetia.lut.connectivity.parts import layout_for
from lutetia.lut.kernels.protocol import Connectivity, Full, Synapses


@dataclass(frozen=True)
class Layout:
    """A fully connected layer is one block of all its detectors."""

    kind: Literal["fc", "shared", "general"]
    n_detectors: int
    n_rows: int
    n_outputs: int
    n_weights: int
    n_blocks: int
    width: int  # outputs that every detector reaches, 0 when they differ
    widest: int  # the most outputs that one detector, or lookup neuron, reaches
    largest: int  # detectors of the largest block
    disjoint: bool  # every output belongs to exactly one block: it can be stored, not added
    run: int = 0  # detectors of each block, where block h has detectors [h · run, ..) and outputs [h · width, ..); else 0
    start: Tensor | None = None
    targets: Tensor | None = None
    block_start: Tensor | None = None
    block_detectors: Tensor | None = None
    lr_scale: float | Tensor = 1.0  # one number, or one per entry of `targets`

    @property
    def wide(self) -> bool:
        """Whether offsets into the weights pass an int32."""
        return self.n_weights >= 2**31


def layout_of(connectivity: Connectivity) -> Layout:
    """The layout of a connectivity, read off it once and kept in it (reading waits for the device)."""
    return layout_for(connectivity, _layout)


def _layout(c: Connectivity) -> Layout:
    sizes = (c.n_detectors, c.n_rows, c.n_outputs, math.prod(c.weight_shape))
    if isinstance(c, Full):  # one block of all detectors
        n, width = c.n_detectors, c.n_outputs
        return Layout("fc", *sizes, 1, width, width, largest=n, disjoint=True, run=n, lr_scale=c.meta.lr_scale)
    lists = (c.owner_start, c.owner_targets)
    if c.layout == "general":
        return Layout("general", *sizes, 1, 0, c.max_fan_out, c.n_detectors, False, 0, *lists, lr_scale=c.rates)
    n_detectors, widths = c.blocks.start.diff(), c.owner_start.diff()
    widest = int(widths.max())
    width = widest if bool((widths == widest).all()) else 0
    disjoint = c.blocks.disjoint and int(c.blocks.width.sum()) == c.n_outputs
    blocks, run = (n_detectors.numel(), width, widest, int(n_detectors.max())), _run_of(c, width)
    return Layout("shared", *sizes, *blocks, disjoint, run, *lists, c.blocks.start, c.blocks.detectors, c.rates)


def _run_of(s: Synapses, width: int) -> int:
    """`Layout.run`: how many neighbouring detectors write the same neighbouring outputs, block after block."""
    blocks = len(s.blocks.start) - 1
    run, rest = divmod(s.n_detectors, blocks)
    if rest or width * blocks != s.n_outputs:
        return 0
    detector, output = torch.arange(s.n_detectors, device=s.device), torch.arange(width, device=s.device)
    targets = s.owner_targets.view(s.n_detectors, width) == detector[:, None] // run * width + output
    return run if bool(targets.all()) and bool((s.blocks.detectors == detector).all()) else 0

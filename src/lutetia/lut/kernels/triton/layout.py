"""What the Triton kernels need to know of the way a layer's weights lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lutetia.lut.connectivity.full import Connectivity, Full
from lutetia.lut.connectivity.synapses import Synapses


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

    def neuron_widths(self, device: torch.device) -> Tensor:
        """How many weights each lookup neuron has: int64 [N_t · R]."""
        if self.start is None:
            return torch.full((self.n_detectors * self.n_rows,), self.n_outputs, device=device)
        widths = self.start.diff()
        return widths if self.kind == "general" else widths.repeat_interleave(self.n_rows)


def layout_of(connectivity: Connectivity) -> Layout:
    """The layout of a connectivity, read off it once and kept in it (reading waits for the device)."""
    return connectivity.layout_for(_layout)


def _layout(connectivity: Connectivity) -> Layout:
    if isinstance(connectivity, Full):
        return full_layout(connectivity)
    return shared_layout(connectivity) if connectivity.layout == "shared" else general_layout(connectivity)


def full_layout(f: Full) -> Layout:
    """One block of all detectors."""
    return Layout(
        kind="fc",
        n_detectors=f.n_detectors,
        n_rows=f.n_rows,
        n_outputs=f.n_outputs,
        n_weights=f.n_detectors * f.n_rows * f.n_outputs,
        n_blocks=1,
        width=f.n_outputs,
        widest=f.n_outputs,
        largest=f.n_detectors,
        disjoint=True,
        run=f.n_detectors,
        lr_scale=f.meta.lr_scale,
    )


def shared_layout(s: Synapses) -> Layout:
    sizes, widths = s.block_start.diff(), s.det_start.diff()
    widest = int(widths.max())
    width = widest if bool((widths == widest).all()) else 0
    return Layout(
        kind="shared",
        n_detectors=s.n_detectors,
        n_rows=s.n_rows,
        n_outputs=s.n_outputs,
        n_weights=s.n_weights,
        n_blocks=sizes.numel(),
        width=width,
        widest=widest,
        largest=int(sizes.max()),
        disjoint=s.blocks_disjoint and int(s.block_width.sum()) == s.n_outputs,
        run=_run_of(s, width),
        start=s.det_start,
        targets=s.det_targets,
        block_start=s.block_start,
        block_detectors=s.block_detectors,
        lr_scale=lr_scales(s, s.det_meta),
    )


def _run_of(s: Synapses, width: int) -> int:
    """`Layout.run`: how many neighbouring detectors write the same neighbouring outputs, block after block."""
    blocks = len(s.block_start) - 1
    run, rest = divmod(s.n_detectors, blocks)
    if rest or width * blocks != s.n_outputs:
        return 0
    device = s.det_targets.device
    detector, output = torch.arange(s.n_detectors, device=device), torch.arange(width, device=device)
    targets = s.det_targets.view(s.n_detectors, width) == detector[:, None] // run * width + output
    return run if bool(targets.all()) and bool((s.block_detectors == detector).all()) else 0


def general_layout(s: Synapses) -> Layout:
    return Layout(
        kind="general",
        n_detectors=s.n_detectors,
        n_rows=s.n_rows,
        n_outputs=s.n_outputs,
        n_weights=s.n_weights,
        n_blocks=1,
        width=0,
        widest=s.max_fan_out,
        largest=s.n_detectors,
        disjoint=False,
        start=s.row_start,
        targets=s.targets,
        lr_scale=lr_scales(s, s.meta_of),
    )


def lr_scales(s: Synapses, meta: Tensor) -> float | Tensor:
    scales = [one.lr_scale for one in s.metas]
    if len(set(scales)) == 1:
        return scales[0]
    return torch.tensor(scales, dtype=torch.float64, device=meta.device)[meta.long()]

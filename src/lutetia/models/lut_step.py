"""One new token through LUT attention, with as little around the look-ups as possible.

A step reads N_t · j rows and adds them up: that is one `embedding_bag`, whose row numbers take four small operations to make.
What `LUTAttention` does with a cache is more general (several new tokens, exact sums, sparse connectivity) and three times as
slow at batch 1, where everything but the rows is overhead.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import flow
from lutetia.lut import backend, cpu_seq
from lutetia.lut.attention_ops import positions_of
from lutetia.lut.index_cache import IndexCache
from lutetia.nn import LUTAttention

SUMMED = (torch.float32, torch.float64)  # what embedding_bag adds up without loss


class StepCache(IndexCache):
    """An index cache that also keeps the PE indices of all distances, which are the same at every step.

    places   int32 [N_t, max_length - 1]: the PE index of each distance, the longest first
    starts   int32 [N_t]: the first row of each detector, where the tables lie one after the other
    """

    def __init__(self, batch: int, attention: LUTAttention) -> None:
        n_detectors = len(attention.anchors)  # of a sharded layer those of this rank
        super().__init__(batch, n_detectors, attention.max_length, attention.weight.device)
        self.starts = torch.arange(n_detectors, dtype=torch.int32, device=attention.weight.device)
        self.starts *= attention.n_rows
        self.places: Tensor | None = None
        self.made_of: tuple[int, int] | None = None

    def clear(self) -> None:
        """Forget all positions."""
        self.reset()

    def places_of(self, positions: Tensor) -> Tensor:
        """`places`, made anew when the positions have changed."""
        now = (positions.data_ptr(), -1 if positions.is_inference() else positions._version)
        if self.places is None or self.made_of != now:
            kernels = backend.kernels_for(backend.chosen, positions)
            n_detectors, length = self.indices.shape[1:]
            found = kernels.check_positions_eval(positions_of(positions, length, n_detectors, positions.dtype))
            self.places, self.made_of = found.flip(0).t().contiguous(), now
        return self.places


def attend(attention: nn.Module, x: Tensor, lengths: Tensor | None, cache: Any) -> Tensor:
    """The attention of x [B, S, width] -> [B, S, width], by the short way where it fits."""
    if cache is not None and _fits(attention, x, lengths, cache):
        assert isinstance(attention, LUTAttention)
        return step(attention, x, cache)
    return attention(x, lengths, cache)


def _fits(attention: nn.Module, x: Tensor, lengths: Tensor | None, cache: Any) -> bool:
    if x.shape[1] != 1 or lengths is not None or not isinstance(cache, StepCache):
        return False
    if hasattr(attention, "spreads"):  # sharded: other ranks have rows to add
        return False
    if flow.recording() or torch.compiler.is_compiling():  # which is to show the kernels, or cannot follow
        return False
    assert isinstance(attention, LUTAttention)
    small = attention.n_detectors * attention.n_rows < 2**31
    return small and attention.sums == "float" and attention.synapses is None and attention.weight.dtype in SUMMED


def step(attention: LUTAttention, x: Tensor, cache: StepCache) -> Tensor:
    """x [B, 1, I] -> y [B, 1, O], without gradients; the indices of x join the cache, in which every row has room."""
    kernels = backend.kernels_for(backend.chosen, x)
    if kernels.name == "cpu" and x.dtype == attention.weight.dtype:
        held = (cache.indices, cache.lengths, cache.places_of(attention.positions))
        y = cpu_seq.fill_step(x.squeeze(1).contiguous(), attention.weight.detach(), attention.anchors, *held)
        cache.lengths += 1
        return y.unsqueeze(1)
    q = kernels.check_detectors_eval(x.contiguous(), attention.anchors)[:, 0]  # [B, N_t]
    lengths = cache.lengths.tolist()
    longest, places = max(lengths), cache.places_of(attention.positions)
    cells = (q << (attention.n_anchors + attention.positional_dim)).add_(cache.starts)  # of each detector, those of this Q
    rows = cache.indices[:, :, :longest].int().bitwise_left_shift_(attention.positional_dim)  # [B, N_t, longest]
    table = attention.weight.detach().view(-1, attention.n_outputs)
    if min(lengths) == longest:
        cache.indices.select(2, longest).copy_(q)
        rows = rows.bitwise_or_(places.narrow(1, places.shape[1] - longest, longest)).add_(cells.unsqueeze(2))
        y = F.embedding_bag(rows.flatten(1), table, mode="sum") if longest else table.new_zeros(len(x), table.shape[1])
    else:
        y = _ragged(cache, q, cells, rows, places, table)
    cache.lengths += 1
    return y.to(torch.promote_types(x.dtype, table.dtype)).unsqueeze(1)


def _ragged(cache: StepCache, q: Tensor, cells: Tensor, earlier: Tensor, places: Tensor, table: Tensor) -> Tensor:
    """y [B, O] where rows hold different numbers of positions."""
    lengths = cache.lengths.to(q.device)
    batch, n_detectors, longest = earlier.shape
    cache.indices[torch.arange(batch, device=q.device), :, lengths] = q.short()
    i = torch.arange(longest, device=q.device)
    at = (places.shape[1] - lengths[:, None] + i).clamp_(max=places.shape[1] - 1)  # [B, longest]; past the end nothing counts
    rows = (earlier | places[:, at].transpose(0, 1)) + cells[:, :, None]
    real = (i < lengths[:, None])[:, None].expand_as(rows)
    counts = lengths * n_detectors
    return F.embedding_bag(rows[real], table, (counts.cumsum(0) - counts).int(), mode="sum")

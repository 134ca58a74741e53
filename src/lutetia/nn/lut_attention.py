"""`LUTAttention`: attention by lookup tables, without products of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lutetia.errors import check_int, check_tensor, fail
from lutetia.lut import (
    DEFAULT_META,
    How,
    IndexCache,
    LayerDescription,
    Sums,
    SynapseMeta,
    Synapses,
    Tables,
    check_algorithm,
    check_bits,
    decode,
    in_graph,
    run_attention,
)
from lutetia.nn.lut import LUT, SPARSE_CLASSES, drawn


class LUTAttention(LUT):
    """y[j] = Σ_{i < j} Σ_t W[t, Q_j K_i PE_{j-i}]: x [B, S <= max_length, n_inputs] -> y [B, S, n_outputs], and y[0] = 0.

    Each of `n_detectors` detectors compares `n_anchors` pairs of inputs at every position. The bits at j (Q), the bits at an
    earlier i (K) and the signs of a learned position for their distance (PE) together select the row of its table that the pair
    adds to y[j].

        weight      Parameter [n_detectors, 2**(2 n_anchors + positional_dim), n_outputs]; with `synapses` flat [n_weights]
        positions   Parameter [max_length - 1, n_detectors, positional_dim], or [max_length - 1, 1, positional_dim] with
                    `shared_positions`; drawn uniformly from [-1, 1]
        anchors     int32 buffer [n_detectors, n_anchors, 2]

    `algorithm` ("auto", "pairs", "cells") may be changed at any time. With `synapses`, such as growth.random(n_detectors, 2
    n_anchors + positional_dim, n_outputs, ...), only "pairs" runs. The other options and attributes are those of `LUT`.
    """

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        n_detectors: int,
        n_anchors: int,
        positional_dim: int,
        max_length: int,
        *,
        algorithm: str = "auto",
        shared_positions: bool = False,
        synapses: Synapses | None = None,
        meta: SynapseMeta = DEFAULT_META,
        gradient: str = "dense",
        sums: str = "float",
        int_rescaler: float = 1.0,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        anchors: Tensor | str | None = None,
    ) -> None:
        check_int("n_anchors", n_anchors, 1)
        check_int("positional_dim", positional_dim)
        check_int("max_length", max_length, 1)
        check_bits(n_anchors, positional_dim)
        check_algorithm(algorithm, synapses is not None)
        if isinstance(anchors, str) and anchors != "pairs":
            fail("anchors", anchors, '"pairs" or a tensor: attention has no thresholds')
        if not isinstance(shared_positions, bool):
            fail("shared_positions", shared_positions, "True or False")
        self.positional_dim, self.max_length = positional_dim, max_length  # n_rows, which LUT asks for, depends on them
        super().__init__(
            n_inputs,
            n_outputs,
            n_detectors,
            n_anchors,
            synapses=synapses,
            meta=meta,
            gradient=gradient,
            sums=sums,
            int_rescaler=int_rescaler,
            seed=seed,
            device=device,
            dtype=dtype,
            anchors=anchors,
        )
        self.algorithm, self.shared_positions = algorithm, shared_positions
        shape = (max_length - 1, 1 if shared_positions else n_detectors, positional_dim)
        self.positions = nn.Parameter(torch.empty(shape, device=device, dtype=self.weight.dtype))
        if drawn.get():
            self._draw_positions()

    @property
    def n_rows(self) -> int:
        """Rows of each detector's table."""
        return 1 << (2 * self.n_anchors + self.positional_dim)

    def describe(self) -> LayerDescription:
        """The parts of the layer, its positions among them."""
        return super().describe()._replace(positions=self.positions)

    def reset_parameters(self) -> None:
        """Draw new weights and positions, from `seed` when there is one; anchors and synapses stay."""
        super().reset_parameters()
        self._draw_positions()

    @torch.no_grad()
    def _draw_positions(self) -> None:
        # Another seed than the weights have, which would otherwise start with the same numbers.
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed + 1)
        positions = torch.rand(self.positions.shape, generator=generator, dtype=torch.float64, device="cpu")
        self.positions.copy_(positions.mul_(2).sub_(1))

    def forward(self, x: Tensor, lengths: Tensor | None = None, cache: IndexCache | None = None) -> Tensor:
        """x [B, S, n_inputs] -> y [B, S, n_outputs], zero past `lengths`, an integer tensor [B].

        With a `cache`, x holds only the positions that follow those in it; S and `lengths` count these, y is their output, and
        there is no gradient.
        """
        if self.share is not None:
            return self.share.forward(self, x, lengths, cache)
        if torch.compiler.is_compiling() and lengths is None and cache is None and self._header is None:
            usual = (self.algorithm, self.gradient, self.sums, self.int_rescaler) == ("auto", "dense", "float", 1.0)
            y = in_graph(x, (self.weight, self.anchors, self.positions), self.meta, self.n_inputs) if usual else None
            if y is not None:
                return y
        if not isinstance(x, Tensor) or x.layout != torch.strided or x.is_nested or x.dim() != 3 or x.shape[-1] != self.n_inputs:
            check_tensor("x", x, ["B", "S", self.n_inputs])
        how = How(Sums(self.sums, self.int_rescaler), meta=self.meta, algorithm=self.algorithm)
        check_algorithm(self.algorithm, self._header is not None)
        if cache is not None:
            return decode(x, cache, self.describe(), lengths, how)
        tables = Tables(self.weight, self.anchors, self.positions, None, *self._wiring())
        return run_attention(x, tables, lengths, how, self._learning())

    def new_cache(self, batch: int, length: int | None = None) -> IndexCache:
        """An empty cache for `batch` sequences of at most `length` positions, `max_length` by default."""
        room = self.max_length if length is None else min(length, self.max_length)
        return IndexCache(batch, len(self.anchors), room, self.weight.device)

    def extra_repr(self) -> str:
        """The sizes, and what differs from the defaults."""
        parts = [super().extra_repr(), f"positional_dim={self.positional_dim}, max_length={self.max_length}"]
        if self.algorithm != "auto":
            parts.append(f"algorithm={self.algorithm!r}")
        if self.shared_positions:
            parts.append("shared_positions=True")
        return ", ".join(parts)


class _SparseLUTAttention(LUTAttention, nn.EmbeddingBag):  # type: ignore[misc]
    """With gradient="sparse": an EmbeddingBag in name only, for DistributedDataParallel, as for LUT."""

    sparse = property(lambda self: self.gradient == "sparse" and self.share is None)

    def _get_name(self) -> str:
        return "LUTAttention"


SPARSE_CLASSES[LUTAttention] = _SparseLUTAttention

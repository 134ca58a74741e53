"""`ProjectedLUT`: heads of narrow tables between two linear layers, in place of a feed-forward block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lutetia._shared.dtypes import FLOATS
from lutetia.errors import MAX_INT32, check_int, check_tensor
from lutetia.lut import LayerDescription, SynapseMeta, Synapses, growth, random_anchors
from lutetia.nn.lut import LUT, drawn

COMPRESS_STD = 0.02
TABLE_NOISE = 1e-3


class ProjectedLUT(nn.Module):
    """x [..., n_inputs] -> y [..., n_outputs], through heads × head_width numbers in and as many out.

        compress     Linear n_inputs -> heads · head_width, no bias, starting at N(0, 0.02)
        tables       LUT of heads · n_detectors detectors: those of a head read and write only the head's own numbers
        decompress   Linear heads · head_width -> n_outputs, with a bias, starting at zero: so does y

    `read`, `gradient` and
    `table_dropout` are those of `LUT`; `seed` makes all weights and anchors the same every time.
    """

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        *,
        heads: int = 8,
        head_width: int = 48,
        n_detectors: int = 64,
        n_anchors: int = 8,
        read: str = "confidence2",
        gradient: str = "dense",
        table_dropout: float = 0.0,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (("n_inputs", n_inputs, 1), ("n_outputs", n_outputs, 1), ("heads", heads, 1)):
            check_int(name, value, least)
        check_int("head_width", head_width, 2)
        check_int("n_detectors", n_detectors, 1)
        self.n_inputs, self.n_outputs, self.heads, self.head_width = n_inputs, n_outputs, heads, head_width
        self.seed = seed
        anchor_seed, weight_seed, _ = _seeds(seed)
        width = heads * head_width
        self.compress = nn.Linear(n_inputs, width, bias=False, device=device, dtype=dtype)
        fields, synapses = head_wiring(heads, head_width, n_detectors, n_anchors)
        self.tables = LUT(
            width,
            width,
            heads * n_detectors,
            n_anchors,
            synapses=synapses,
            gradient=gradient,
            seed=None if seed is None else weight_seed,
            device=device,
            dtype=dtype,
            anchors=random_anchors(width, heads * n_detectors, n_anchors, anchor_seed, fields=fields),
            read=read,
            table_dropout=table_dropout,
        )
        self.decompress = nn.Linear(width, n_outputs, device=device, dtype=dtype)
        if drawn.get():
            self._reset_projections()

    def reset_parameters(self) -> None:
        """Draw new weights, from `seed` when there is one; anchors stay."""
        self._reset_projections()
        self.tables.reset_parameters()

    @torch.no_grad()
    def _reset_projections(self) -> None:
        weight = self.compress.weight
        generator = None if self.seed is None else torch.Generator().manual_seed(_seeds(self.seed)[2])
        drawn_weight = torch.randn(weight.shape, generator=generator, dtype=torch.float32, device="cpu")
        weight.copy_(drawn_weight.mul_(COMPRESS_STD))
        self.decompress.weight.zero_()
        self.decompress.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., n_inputs] -> y [..., n_outputs]."""
        check_tensor("x", x, ["...", self.n_inputs], FLOATS)
        check_dtype_of(self.compress, x)
        return self.decompress(self.tables(self.compress(x)))

    def describe(self) -> LayerDescription:
        """The parts of the tables between the two projections."""
        return self.tables.describe()

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.n_inputs}, {self.n_outputs}, heads={self.heads}, head_width={self.head_width}"


def check_dtype_of(layer: nn.Module, x: Tensor) -> None:
    """Check that x has the dtype of a linear layer, which takes no other; autocast sees to that itself."""
    if type(layer) is nn.Linear and x.dtype != layer.weight.dtype and not torch.is_autocast_enabled(x.device.type):
        check_tensor("x", x, dtype=layer.weight.dtype)


def head_wiring(heads: int, head_width: int, n_detectors: int, n_anchors: int) -> tuple[Tensor, Synapses]:
    """Fields [heads · n_detectors, head_width] for the anchors, and synapses, that keep every head to itself."""
    with torch.device("cpu"):  # the wiring is known even where the layer is made on meta
        detector = torch.arange(heads * n_detectors)
        own = detector[:, None] // n_detectors * head_width + torch.arange(head_width)
    edges = torch.stack([detector[:, None].expand_as(own), own], -1).flatten(0, 1)
    meta = SynapseMeta(initial_noise=TABLE_NOISE)
    return own.int(), growth.from_edges(heads * n_detectors, n_anchors, heads * head_width, edges, metas=(meta,))


def _seeds(seed: int | None) -> list[int]:
    """Seeds for the anchors, the tables and the projection: one number for all three would tie their draws together."""
    if seed is None:
        return torch.randint(MAX_INT32, (3,), device="cpu").tolist()
    check_int("seed", seed, 0, 2**63 - 1)
    return torch.randint(MAX_INT32, (3,), generator=torch.Generator().manual_seed(seed), device="cpu").tolist()

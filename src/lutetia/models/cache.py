"""What a language model keeps of the tokens it has seen, so that the next one costs one step and not a whole context."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lutetia._shared.ragged import rows_in
from lutetia.errors import ArgumentError, check_tensor, fail


class ModelCache:
    """The caches of all layers: index caches (LUT attention) or KV caches (softmax attention), made with `model.new_cache`.

    layers    one cache per block
    lengths   int64 [B], in the memory of the host: how many tokens of each row are in it
    recent    int64 [B, n], where the model has n-gram tables: the last tokens of each row, each plus one, 0 where there are none
    owner     the model whose tokens they are, None while it is empty
    """

    def __init__(self, layers: Sequence[Any], batch: int, context: int, recent: Tensor | None = None) -> None:
        self.layers, self.recent = list(layers), recent
        self.lengths = torch.zeros(batch, dtype=torch.int64)
        self.context = context
        self.owner: weakref.ref[nn.Module] | None = None

    def check(self, model: nn.Module, batch: int, kinds: list[type], context: int) -> list[int]:
        """The number of tokens in each row, after checking that the cache is this model's, with these layers and rows."""
        if [type(layer) for layer in self.layers] != kinds or self.context > context:
            told = f"{len(kinds)} layers of {kinds[0].__name__} and a context of at most {context}"
            fail("cache", self, f"{told}, as new_cache makes it")
        check_tensor("cache.lengths", self.lengths, [batch], torch.int64, torch.device("cpu"))
        if not self.lengths.is_contiguous():
            fail("cache.lengths", self.lengths, "a contiguous tensor")
        held = self.lengths.tolist()
        for number, layer in enumerate(self.layers):
            if layer.held() != held:
                raise ArgumentError(
                    f"the cache says that its rows hold {held} tokens, and layer {number} holds {layer.held()}, "
                    "expected the same: reset() forgets all of them"
                )
        if self.owner is not None and self.owner() is not model and any(held):
            fail("cache", self, "a cache that this model has filled, and no other: reset() it")
        return held

    def reset(self) -> None:
        """Forget all tokens."""
        self.owner = None
        self.lengths.zero_()
        if self.recent is not None:
            self.recent = torch.zeros_like(self.recent)
        for layer in self.layers:
            layer.clear()

    def reorder(self, index: Tensor) -> None:
        """Make row b the former row index[b]: index, an integer tensor [any B], may repeat rows or leave some out."""
        check_tensor("cache.lengths", self.lengths, ["B"], torch.int64)
        held = [len(self.lengths), *(len(layer.held()) for layer in self.layers)]
        rows = rows_in(index, min(held if self.recent is None else [*held, len(self.recent)]))
        for layer in self.layers:
            layer.reorder(rows)
        self.lengths = self.lengths[rows]
        if self.recent is not None:
            self.recent = self.recent[rows.to(self.recent.device)]

    @property
    def nbytes(self) -> int:
        """The bytes that the layers hold."""
        return sum(layer.nbytes for layer in self.layers)

    def __repr__(self) -> str:
        return f"ModelCache(lengths={self.lengths.tolist()}, context={self.context}, bytes={self.nbytes})"

"""`PagedCache`: the cache of a model in pages, which beams share as far as they have tokens in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from lutetia.attention import MAX_ACTIVE, PagedKVCache, check_int, decode_attention
from lutetia.errors import ArgumentError
from lutetia.integrations.transformers.attention import full_attention_layers
from lutetia.integrations.transformers.cache import (
    OfOneDecoder,
    check_attended,
    check_new_tokens,
    check_rows,
    check_sizes,
    hand_on,
)


class PagedLayer(CacheLayerMixin):
    """The keys and values of one layer: a sequence of a `PagedKVCache` for each row."""

    is_sliding = False
    is_croppable = True
    pool: PagedKVCache
    waits = False  # for the attention function, which is given this layer
    before: PagedLayer | None = None

    def __init__(self, max_length: int, page_len: int) -> None:
        super().__init__()
        self.max_length, self.page_len = max_length, page_len
        self.length, self.rows = 0, []  # type: tuple[int, list[int]]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Pages for max_length tokens of every row; key_states, value_states [B, H_kv, s, d]."""
        batch, heads, _, d = key_states.shape
        self.dtype, self.device = key_states.dtype, key_states.device
        n_pages = batch * -(-self.max_length // self.page_len)
        with torch.inference_mode(False):  # so that what is begun in it can go on outside of it
            self.pool = PagedKVCache(n_pages, self.page_len, heads, d, dtype=self.dtype, device=self.device)
        self.rows = [self.pool.allocate() for _ in range(batch)]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append key_states, value_states [B, H_kv, s, d]; returns these, with the layer, which attends to its pages itself."""
        check_sizes(self, key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        check_attended(self)
        check_rows((len(self.rows), self.pool.k.shape[2], 0, self.pool.k.shape[3]), key_states.shape)
        s = key_states.shape[2]
        if self.length + s > self.max_length:
            raise ArgumentError(
                f"the cache is full: it holds {self.length} tokens and {s} more were given, expected no more than max_length "
                f"{self.max_length} in total"
            )
        if self.length and s > MAX_ACTIVE:
            raise ArgumentError(f"{s} tokens follow a prompt, expected 1 to {MAX_ACTIVE} at a time in a PagedCache")
        self.pool.append(self.rows, key_states, value_states)
        if self.length:
            key_states, value_states = hand_on(self, key_states, value_states)
        self.length += s
        return key_states, value_states

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Attention of new tokens, which are already in the pages: query [B, H_q, s, d] -> [B, H_q, s, d]."""
        pool = self.pool
        places: dict[str, Any] = {"seq_lens": pool.lengths(self.rows), "page_table": pool.page_table(self.rows)}
        return decode_attention(query, pool.k, pool.v, **places, **options)[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All keys, from the first on."""
        check_new_tokens(self.length, query_length)
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens of a row, padding included."""
        return self.length

    def get_max_length(self) -> int:
        """The maximum number of tokens in a row."""
        return self.max_length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -tokens_to_remove tokens."""
        if not -self.length <= tokens_to_remove <= 0:
            raise ArgumentError(
                f"tokens_to_remove is {tokens_to_remove}, expected {-self.length} to 0: the layer holds that many"
            )
        self.length += tokens_to_remove
        for row in self.rows:
            self.pool.truncate(row, self.length)

    def choose_rows(self, rows: Iterable[int]) -> None:
        """Continue with these rows, which may repeat: repeated rows share their pages."""
        rows = list(rows)
        wrong = [row for row in rows if not 0 <= row < len(self.rows)]
        if wrong:
            raise ArgumentError(f"row {wrong[0]} is chosen, expected 0 to {len(self.rows) - 1}")
        chosen = [self.pool.fork(self.rows[row]) for row in rows]
        for row in self.rows:
            self.pool.free(row)
        self.rows = chosen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Continue with these beams, [B]."""
        if self.length:
            self.choose_rows(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        if self.length:
            self.choose_rows(indices.tolist())

    def reset(self) -> None:
        """Forget all tokens, and how many rows there were."""
        self.length, self.rows, self.is_initialized, self.waits = 0, [], False, False


class PagedCache(OfOneDecoder):
    """A cache of `transformers` in pages: `generate(past_key_values=PagedCache(model.config, max_length=200))`.

    Only for `attn_implementation="lutetia"`, and models whose layers all see the whole context. `max_length` is the maximum
    number of tokens in a row, prompt included. Pages that beams share are stored once.
    """

    def __init__(self, config: Any, max_length: int, page_len: int = 16) -> None:
        check_int("max_length", max_length, 1)
        check_int("page_len", page_len, 1)
        layers = [PagedLayer(max_length, page_len) for _ in full_attention_layers(config, "a PagedCache")]
        for layer, before in zip(layers[1:], layers, strict=False):
            layer.before = before
        self.is_of_both = bool(config.is_encoder_decoder)
        super().__init__(layers=layers)

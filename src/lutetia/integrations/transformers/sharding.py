"""`ShardedCache`: the cache of one model over several processes, for contexts larger than the memory of one.

Every process runs the whole model on the same tokens, and keeps a range of the positions of every row: of N ranks, rank r has
positions r·S to (r+1)·S - 1, where S is `max_length` divided by N. New tokens go through `lutetia.attention.processes`, with one
message for each layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from transformers.cache_utils import CacheLayerMixin

from lutetia.attention import MAX_ACTIVE, check_int
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


class ShardedLayer(CacheLayerMixin):
    """This rank's part of the keys and values of one layer, [B, H_kv, S_local, d] each."""

    keys: Tensor
    values: Tensor
    is_sliding = False
    is_croppable = True
    waits = False  # for the attention function, which is given this layer
    before: ShardedLayer | None = None

    def __init__(self, room: int, rank: int, group: distributed.ProcessGroup | None) -> None:
        super().__init__()
        self.room, self.rank, self.group, self.length = room, rank, group, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Room for this rank's positions; key_states, value_states [B, H_kv, s, d]."""
        batch, heads, _, d = key_states.shape
        self.dtype, self.device = key_states.dtype, key_states.device
        with torch.inference_mode(False):  # so that what is begun in it can go on outside of it
            self.keys, self.values = (key_states.new_zeros(batch, heads, self.room, d) for _ in range(2))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keep this rank's part of a prompt [B, H_kv, s, d]; later tokens are written by the attention."""
        check_sizes(self, key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        check_attended(self)
        check_rows(self.keys.shape, key_states.shape)
        s, ranks = key_states.shape[2], distributed.get_world_size(self.group)
        if self.length + s > ranks * self.room:
            raise ArgumentError(
                f"the cache is full: it holds {self.length} tokens and {s} more were given, expected no more than "
                f"max_length {ranks * self.room} in total"
            )
        if self.length and s > MAX_ACTIVE:
            raise ArgumentError(f"{s} tokens follow a prompt, expected 1 to {MAX_ACTIVE} at a time in a ShardedCache")
        if self.length == 0:
            first = self.rank * self.room
            mine = slice(min(first, s), min(first + self.room, s))
            held = mine.stop - mine.start
            self.keys[:, :, :held], self.values[:, :, :held] = key_states[:, :, mine], value_states[:, :, mine]
        else:
            key_states, value_states = hand_on(self, key_states, value_states)
        self.length += s
        return key_states, value_states

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Attend: new tokens, query [B, H_q, s, d], key and value [B, H_kv, s, d] -> [B, H_q, s, d], the same on every rank."""
        from lutetia.attention import processes

        lengths = torch.full((len(query),), self.length, dtype=torch.int32, device=query.device)
        places: dict[str, Any] = {"shard": "sequence", "group": self.group, **options}
        out, _ = processes.decode_attention(query, self.keys, self.values, seq_lens=lengths, k_new=key, v_new=value, **places)
        return out

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All keys, from the first on."""
        check_new_tokens(self.length, query_length)
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """The number of tokens on all ranks."""
        return self.length

    def get_max_length(self) -> int:
        """The maximum number of tokens on all ranks."""
        return self.room * distributed.get_world_size(self.group)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -tokens_to_remove tokens."""
        self.length -= abs(tokens_to_remove)

    def reset(self) -> None:
        """Forget all tokens, and how many rows there were."""
        self.length, self.is_initialized, self.waits = 0, False, False


class ShardedCache(OfOneDecoder):
    """A cache of `transformers` over the ranks of a process group, each of which calls `generate` with the same arguments.

    Only for `attn_implementation="lutetia"`, and models whose layers all see the whole context. `max_length` is the maximum
    number of tokens, prompt included.
    """

    def __init__(self, config: Any, max_length: int, group: distributed.ProcessGroup | None = None) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise ArgumentError("torch.distributed has no process group; call init_process_group first, as under torchrun")
        types = full_attention_layers(config, "a ShardedCache")
        check_int("max_length", max_length, 1)
        ranks, rank = distributed.get_world_size(group), distributed.get_rank(group)
        room = -(-max_length // ranks)
        layers = [ShardedLayer(room, rank, group) for _ in types]
        for layer, before in zip(layers[1:], layers, strict=False):
            layer.before = before
        self.is_of_both = bool(config.is_encoder_decoder)
        super().__init__(layers=layers)

"""`LutetiaCache`: a cache of `transformers` that grows in place.

The library's own cache copies all keys and values for every token. Here new ones are written after the old ones, in memory that
has room for more; a layer returns a view of the live part, in the layout that every attention function of the library expects.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, get_layer_types_and_kwargs

from lutetia.errors import ArgumentError

LEAST_ROOM = 64  # slots, for tokens that are still to come


class Held(NamedTuple):
    """Where the keys and values of a layer are: from slot `first` on in two buffers [B, H_kv, S_max, d]."""

    k: Tensor
    v: Tensor
    first: int


class Room:
    """Memory [B, H_kv, S_max, d] in which keys or values grow at their end."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None

    def append(self, live: Tensor, new: Tensor) -> Tensor:
        """live [B, H_kv, n, d] and after them new [B, H_kv, s, d]: a view [B, H_kv, n + s, d] of the buffer."""
        n, s = live.shape[2], new.shape[2]
        first = self.slot_of(live)
        if self.buffer is None or first is None or first + n + s > self.buffer.shape[2]:
            batch, heads, _, d = new.shape
            self.buffer = new.new_empty(batch, heads, n + s + max(LEAST_ROOM, (n + s) // 2), d)
            self.buffer[:, :, :n] = live
            first = 0
        self.buffer[:, :, first + n : first + n + s] = new
        return self.buffer[:, :, first : first + n + s]

    def slot_of(self, live: Tensor) -> int | None:
        """The slot of the first live key; None if the keys are elsewhere, or the slots after them may not be written."""
        buffer = self.buffer
        if buffer is None or (buffer.is_inference() and not torch.is_inference_mode_enabled()):
            return None
        same = live.dtype == buffer.dtype and live.device == buffer.device and live.stride() == buffer.stride()
        if not same or live.shape[:2] != buffer.shape[:2] or live.shape[3] != buffer.shape[3]:
            return None
        slot, rest = divmod(live.data_ptr() - buffer.data_ptr(), max(1, buffer.stride(2) * buffer.element_size()))
        return slot if rest == 0 and 0 <= slot <= buffer.shape[2] - live.shape[2] else None


class Growing(DynamicLayer):
    """What our layers have in common: their keys and values are in a `Room`, and stay on their device."""

    rooms: tuple[Room, Room]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys that new tokens see, and where the first one is."""
        check_new_tokens(self.get_seq_length(), query_length)
        sizes: tuple[int, int] = super().get_mask_sizes(query_length)
        return sizes

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Start empty; key_states, value_states [B, H_kv, s, d]."""
        self.rooms = (Room(), Room())
        begin(self, key_states, value_states)

    def reset(self) -> None:
        """Forget all tokens."""
        super().reset()
        self.rooms = (Room(), Room())

    def offload(self) -> None:
        """Refused."""
        refuse_offloading()


class GrowingLayer(Growing):
    """Keys and values of one layer, all of them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append key_states, value_states [B, H_kv, s, d]; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self.values = append(self, key_states, value_states)
        return self.keys, self.values


class GrowingWindowLayer(Growing, DynamicSlidingWindowLayer):
    """Keys and values of one layer that sees a sliding window: tokens before it are dropped, unless they are to be recorded."""

    keys: Tensor
    values: Tensor

    def __init__(self, sliding_window: int, **kwargs: Any) -> None:
        super().__init__(sliding_window=sliding_window)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append key_states, value_states [B, H_kv, s, d]; returns those that one of the new tokens sees."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        s = key_states.shape[2]
        self.cumulative_length += s
        if s >= self.sliding_window and not self.record_past:  # a long prompt: its beginning is not kept
            keys, values = torch.cat([self.keys, key_states], 2), torch.cat([self.values, value_states], 2)
            self.keys, self.values = (last(states, self.sliding_window - 1).clone() for states in (keys, values))
            return keys, values
        keys, values = append(self, key_states, value_states)
        if self.record_past:
            self.keys, self.values = keys, values
            return last(keys, self.sliding_window - 1 + s), last(values, self.sliding_window - 1 + s)
        self.keys, self.values = last(keys, self.sliding_window - 1), last(values, self.sliding_window - 1)
        return keys, values


LAYERS = {
    "full_attention": GrowingLayer,
    "sliding_attention": GrowingWindowLayer,
    "chunked_attention": GrowingWindowLayer,
}


class OfOneDecoder(Cache):
    """A cache of one decoder, whose layers take turns. An encoder-decoder would write what it reads into the same layers."""

    newest = -1
    is_of_both = False

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append key_states, value_states [B, H_kv, s, d] to a layer; returns all that it gives the attention."""
        if self.is_of_both and layer_idx == self.newest and len(self.layers) > 1:
            kind = type(self).__name__
            raise ArgumentError(
                f"the model is an encoder-decoder, expected EncoderDecoderCache({kind}(...), DynamicCache(...)) of "
                f"transformers, or a decoder for {kind} alone"
            )
        if layer_idx >= len(self.layers):
            raise ArgumentError(
                f"the model has more layers than the cache, expected {len(self.layers)}: it was made for another model's config"
            )
        self.newest = layer_idx
        kept: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return kept


class LutetiaCache(OfOneDecoder, DynamicCache):
    """The cache of a decoder, for `attn_implementation="lutetia"` or any other: `generate(past_key_values=LutetiaCache(config))`.

    Batches padded on the left, beams, assisted generation and sliding windows work as with the library's DynamicCache. Offloading
    is refused, and so are layers that keep something other than keys and values.
    """

    def __init__(self, config: Any, offloading: bool = False) -> None:
        if offloading:
            refuse_offloading()
        types, options = get_layer_types_and_kwargs(text_config(config))
        for kind in types:
            if kind not in LAYERS:
                expected = ", ".join(LAYERS)
                raise ArgumentError(f"the model has a layer of type {kind!r}, expected {expected}: use the cache of transformers")
        self.is_of_both = bool(config.is_encoder_decoder)
        Cache.__init__(self, layers=[LAYERS[kind](**each) for kind, each in zip(types, options, strict=True)])


def text_config(config: Any) -> Any:
    """The part of a model's config that describes its decoder."""
    if not callable(getattr(config, "get_text_config", None)):
        raise ArgumentError(f"config is {type(config).__name__}, expected the config of a model of transformers: model.config")
    return config.get_text_config(decoder=True)


def refuse_offloading() -> None:
    """Refuse offloading: our attention reads the whole cache in every step."""
    raise ArgumentError("LutetiaCache does not support offloading, expected a cache that stays on its device: use DynamicCache")


NEW_TEXT = "for a new text, make a new cache or call its reset()"


def check_new_tokens(held: int, new: int) -> None:
    """Tokens must follow those that a cache holds: `generate` hands on only what its prompt has beyond them."""
    if new < 1:
        raise ArgumentError(
            f"the cache holds {held} tokens and the prompt has none after them, expected a prompt that begins with these tokens "
            f"and goes on: {NEW_TEXT}"
        )


def check_rows(held: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Each row of new keys must follow a row of the cache; their shapes [B, H_kv, s, d], of any s."""
    if held[0] != new[0]:
        raise ArgumentError(
            f"the new tokens are a batch of {new[0]}, expected {held[0]}, the batch that the cache holds: {NEW_TEXT}"
        )
    if (held[1], held[3]) != (new[1], new[3]):
        raise ArgumentError(
            f"the new keys are of {new[1]} heads of {new[3]} elements, expected {held[1]} of {held[3]}, as the cache holds: it "
            "is another model's"
        )


def check_sizes(layer: Any, k: Tensor, v: Tensor) -> None:
    """Keys and values of one size are what such a layer can keep."""
    if k.shape != v.shape:
        kind = type(layer).__name__.replace("Layer", "Cache")
        raise ArgumentError(
            f"the model has keys of {k.shape[3]} elements and values of {v.shape[3]}, expected the same for a {kind}: use "
            "LutetiaCache for it"
        )


def hand_on(layer: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """New keys and values, as tensors of their own that carry the layer to the attention function: it attends to all of them."""
    k, v = k[:], v[:]
    k.lutetia_layer = v.lutetia_layer = layer  # type: ignore[attr-defined]
    layer.waits = True
    return k, v


def check_attended(layer: Any) -> None:
    """What this layer and the one before it handed on must have reached the attention function, as it was."""
    if layer.waits or (layer.before is not None and layer.before.waits):
        refuse_changed(layer)


def refuse_changed(layer: Any) -> NoReturn:
    """Say that a model and such a cache do not go together."""
    kind = type(layer).__name__.replace("Layer", "Cache")
    raise ArgumentError(
        f"the model does not hand what a {kind} gives it to its attention unchanged, expected one that does: use LutetiaCache "
        "for it"
    )


def begin(layer: Growing, k: Tensor, v: Tensor) -> None:
    """Empty keys and values like k, v [B, H_kv, s, d]."""
    layer.dtype, layer.device = k.dtype, k.device
    layer.keys, layer.values = k[:, :, :0].detach(), v[:, :, :0].detach()
    layer.is_initialized = True


def append(layer: Growing, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The layer's keys and values, and k, v [B, H_kv, s, d] after them; a gradient needs memory of its own."""
    check_rows(layer.keys.shape, k.shape)
    if k.dtype != layer.keys.dtype:
        raise ArgumentError(f"the new keys are {k.dtype}, expected {layer.keys.dtype}, as the cache holds: {NEW_TEXT}")
    if torch.is_grad_enabled() and any(each.requires_grad for each in (k, v, layer.keys, layer.values)):
        return torch.cat([layer.keys, k], 2), torch.cat([layer.values, v], 2)
    of_keys, of_values = layer.rooms
    keys, values = of_keys.append(layer.keys, k), of_values.append(layer.values, v)
    first = of_keys.slot_of(keys)
    if first is not None and first == of_values.slot_of(values):
        keys.lutetia_held = values.lutetia_held = Held(of_keys.buffer, of_values.buffer, first)  # type: ignore
    return keys, values


def last(states: Tensor, n: int) -> Tensor:
    """The last n of states [B, H_kv, s, d], or all where there are fewer."""
    return states[:, :, max(0, states.shape[2] - n) :]

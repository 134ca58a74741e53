"""`attn_implementation="lutetia"`: new tokens by decode attention, prompts by SDPA.

Which keys a row sees is read from the mask that `transformers` makes: where every row sees one range of keys up to its newest, as
with left padding or a window, decode attention is used. Any other mask goes to SDPA, which gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from lutetia import flow
from lutetia.attention import FEW_ACTIVE, MAX_ACTIVE, MAX_HEAD_DIM, DecodeCall, decode_attention, decode_on_cpu, executor_of
from lutetia.errors import ArgumentError
from lutetia.integrations.transformers.cache import refuse_changed, text_config

NAME = "lutetia"
HANDING_ON = (  # of the models without SDPA, those that do nothing with their mask themselves
    *("falcon", "gemma2", "gpt_neo", "gpt_oss", "gptj"),
    *("granite_swa", "granitemoe_swa", "mimo_v2_flash", "vaultgemma"),
)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class Seen(NamedTuple):
    """What the new tokens of each row see: the keys from starts[b] on, or the last `window` of them, up to themselves."""

    starts: Tensor | None  # int32 [B]
    window: int | None


def register_attention() -> None:
    """Make the name known, and the masks that belong to it; some models keep a table of their own."""
    from lutetia.integrations.transformers import tables

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask_of)
    tables.register(NAME)


def mask_of(*sizes: Any, config: Any = None, **options: Any) -> Tensor | None:
    """The mask of a model: that of SDPA, if the model hands it on untouched.

    Models without SDPA may add their mask to scores, or numbers to their mask: they get the one of eager attention. Models
    that do not ask for their attention by name are refused.
    """
    if config is None:
        mask: Tensor | None = sdpa_mask(*sizes, config=config, **options)
        return mask
    if not may_be_named(config.__class__):
        refuse_own_attention(config)
    if supports_sdpa(config.__class__):
        mask = sdpa_mask(*sizes, config=config, **options)
    elif config.model_type in HANDING_ON:
        few = options.get("q_length", 1) == 1  # of more tokens, layers need not say whether they are causal
        skip = options.pop("allow_is_causal_skip", True) and few
        mask = sdpa_mask(*sizes, config=config, allow_is_causal_skip=skip, **options)
    else:
        mask = eager_mask(*sizes, config=config, **options)
    return mask


def refuse_own_attention(config: Any) -> NoReturn:
    """Say that a model computes attention in its own way, and how it is loaded."""
    raise ArgumentError(
        f"{config.model_type} computes attention in its own way, expected a model that takes another: load it without "
        f"attn_implementation={NAME!r}"
    )


def may_be_named(config: type[Any]) -> bool:
    """Whether all models of a config take the attention that it names."""
    from lutetia.integrations.transformers import tables

    return all(tables.takes_attention(model) for model in models_with(config))


def supports_sdpa(config: type[Any]) -> bool:
    """Whether all models of a config work with SDPA."""
    return all(model._supports_sdpa for model in models_with(config))


MODELS: dict[type[Any], list[Any]] = {}  # by their config


def models_with(config: type[Any]) -> list[Any]:
    """The base classes of models with a config, of those that are imported: a model that runs is."""
    if config not in MODELS:
        found = list(bases_with(config, PreTrainedModel))
        if not found:
            return found
        MODELS[config] = [model for model in found if model.__module__.startswith("transformers.")] or found
    return MODELS[config]


def bases_with(config: type[Any], kind: type[Any]) -> Iterator[type[Any]]:
    """The classes of models with a config that are derived from a class, but not from each other."""
    for each in kind.__subclasses__():
        if each.config_class is config:
            yield each
        else:
            yield from bases_with(config, each)


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The attention function of `transformers`: query [B, H_q, s, d], key, value [B, H_kv, n, d] -> [B, s, H_q, d]."""
    if options.get("block_indices") is not None:
        refuse_own_attention(module.config)
    if options.get("indices") is not None:
        attention_mask = among(attention_mask, options["indices"], n_keys(key))
    out = by_decode(query, key, value, attention_mask, options)
    if out is None:
        check_keys(attention_mask, key, module)
        return attend_to_prompt(module, query, key, value, attention_mask, **options)
    return out.transpose(1, 2).contiguous(), None


def by_decode(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Tensor | None:
    """Decode attention, [B, H_q, s, d], if it can give what is asked for; a cache that attends to its keys itself needs it."""
    seen, n, layer = None, n_keys(key), getattr(key, "lutetia_layer", None)
    if layer is not None and getattr(value, "lutetia_layer", None) is not layer:
        refuse_changed(layer)
    if can_decode(query, key, value, options):
        seen = seen_by(mask, (len(query), query.shape[2], n), options.get("sliding_window"))
    if seen is not None:
        return decode(query, key, value, seen, options)
    if layer is not None:
        kind = type(layer).__name__.replace("Layer", "Cache")
        raise ArgumentError(f"a {kind} has a mask or an option that decode attention does not know, expected only padding")
    return None


def check_keys(mask: Tensor | None, key: Tensor, module: nn.Module) -> None:
    """A mask is for the keys that a cache holds, which a model may have changed."""
    if mask is not None and mask.shape[-1] not in (1, key.shape[2]):
        raise ArgumentError(
            f"{type(module).__name__} has {key.shape[2]} keys and a mask for {mask.shape[-1]}, expected as many: it changes what "
            "its cache gives, so use LutetiaCache or the cache of transformers"
        )


def n_keys(key: Tensor) -> int:
    """The number of keys that a cache holds, which may have handed on the new ones alone."""
    layer = getattr(key, "lutetia_layer", None)
    return key.shape[2] if layer is None else layer.length


def can_decode(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> bool:
    """Whether decode attention can take such tensors: few new tokens, no gradient, no option that it lacks.

    Only decode attention reads a cache that attends to its keys itself: it then takes as many tokens as it can.
    """
    batch, heads, s, d = query.shape
    most = MAX_ACTIVE if hasattr(key, "lutetia_layer") else FEW_ACTIVE
    fits = s <= most and d <= MAX_HEAD_DIM and (batch, d) == (key.shape[0], key.shape[3]) and key.shape == value.shape
    sink = options.get("s_aux")
    if (
        not fits
        or key.dtype != value.dtype
        or (sink is not None and sink.shape != (heads,))
        or query.dtype not in DTYPES
        or query.shape[1] % key.shape[1]
        or query.device.type not in ("cpu", "cuda")
    ):
        return False
    if torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value)):
        return False
    if options.get("dropout") or options.get("position_bias") is not None or options.get("cache") is not None:
        return False
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing())  # type: ignore[attr-defined]


def full_attention_layers(config: Any, cache: str) -> list[str]:
    """The layers of a decoder that uses this attention, all of which see the whole context; otherwise an error."""
    decoder = text_config(config)
    if not may_be_named(decoder.__class__):
        refuse_own_attention(decoder)
    if decoder._attn_implementation != NAME:
        raise ArgumentError(f"attn_implementation is {decoder._attn_implementation!r}, expected {NAME!r} for {cache}")
    types, _ = get_layer_types_and_kwargs(decoder)
    others = sorted({*types} - {"full_attention"})
    if others:
        raise ArgumentError(f"the model has layers of type {', '.join(others)}, expected full_attention for {cache}")
    return list(types)


# ---- what is seen ----------------------------------------------------------------------------------------------------


def seen_by(mask: Tensor | None, sizes: tuple[int, int, int], window: int | None) -> Seen | None:
    """What a mask [B or 1, 1, s, n] means, or None where decode attention cannot express it; `sizes` are B, s and n.

    Only the first layer reads the mask.
    """
    batch, s, n = sizes
    if mask is None:
        return Seen(None, None) if s == 1 else None  # of several tokens SDPA alone knows whether they are causal
    if mask.shape not in ((batch, 1, s, n), (1, 1, s, n)):
        return None
    known: dict[Any, Seen | None] = mask.__dict__.setdefault("lutetia_seen", {})
    if (batch, window) not in known:
        plain = as_bool(mask)
        known[batch, window] = None if plain is None else read_mask(plain[:, 0].expand(batch, -1, -1), window)
    return known[batch, window]


def as_bool(mask: Tensor) -> Tensor | None:
    """A mask of bools, or of 0 and the most negative number, as bools; None of any other."""
    if mask.dtype == torch.bool:
        return mask
    seen = mask == 0
    return seen if bool((seen | (mask == torch.finfo(mask.dtype).min)).all()) else None


def read_mask(mask: Tensor, window: int | None) -> Seen | None:
    """mask bool [B, s, n] as ranges, with a window or without one; None where neither gives exactly this mask."""
    s, n = mask.shape[1:]
    key = torch.arange(n, device=mask.device)
    position = torch.arange(n - s, n, device=mask.device)[:, None]
    by_any = mask.any(1)
    starts = torch.where(by_any.any(1), by_any.int().argmax(1), n)
    for width in (None, window) if s > 1 and window else (None,):
        stretch = (key >= starts[:, None, None]) & (key <= position)
        if width is not None:
            stretch &= key > position - width
        if bool((stretch == mask).all()):
            return Seen(starts.int(), width)
    return None


def among(mask: Tensor | None, indices: Tensor, n: int) -> Tensor:
    """The mask of a model that picks keys: indices [B, s, k] of the n that each token sees, if its mask lets it see them."""
    chosen = torch.zeros(*indices.shape[:2], n, dtype=torch.bool, device=indices.device).scatter_(2, indices.long(), True)[
        :, None
    ]
    if mask is None:
        mask = chosen.new_ones(chosen.shape[2:]).tril() if chosen.shape[2] > 1 else chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)


def decode(query: Tensor, key: Tensor, value: Tensor, seen: Seen, options: dict[str, Any]) -> Tensor:
    """New tokens: query [B, H_q, s, d] -> [B, H_q, s, d]."""
    sink = options.get("s_aux")
    how: dict[str, Any] = {
        "window": seen.window,
        "scale": options.get("scaling"),
        "softcap": options.get("softcap"),
        "sink": None if sink is None else sink.detach(),
    }
    layer = getattr(key, "lutetia_layer", None)
    if layer is not None:
        layer.waits = False
        out: Tensor = layer.attend(query, key, value, starts=seen.starts, **how)
        return out
    held = getattr(key, "lutetia_held", None)
    if held is not getattr(value, "lutetia_held", None):  # a model has made other keys or values of what the cache gave
        held = None
    first = 0 if held is None else held.first
    starts = seen.starts
    if first:
        starts = lengths_of(len(query), first, query.device) if starts is None else starts + first
    keys, values = (key, value) if held is None else (held.k, held.v)
    lengths = lengths_of(len(query), first + key.shape[2], query.device)
    if query.device.type == "cpu" and not flow.recording():
        scale = query.shape[3] ** -0.5 if how["scale"] is None else how["scale"]
        call = DecodeCall(query, keys, values, lengths, **{**how, "scale": scale}, starts=starts)
        if executor_of(call, 1, "auto") == "cpu":  # what the checks of a call would ask holds here, and they take half its time
            return decode_on_cpu(call)[0]
    return decode_attention(query, keys, values, seq_lens=lengths, starts=starts, **how)[0]


@lru_cache(maxsize=64)
def lengths_of(batch: int, length: int, device: torch.device) -> Tensor:
    """int32 [B], the same for every row; shared by all layers of a step."""
    with torch.inference_mode(False):
        return torch.full((batch,), length, dtype=torch.int32, device=device)


# ---- prompts ---------------------------------------------------------------------------------------------------------


def attend_to_prompt(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The same with any number of tokens and with gradients: by SDPA, or in plain torch for a soft cap, which SDPA lacks."""
    softcap, sink = options.get("softcap"), options.get("s_aux")
    if softcap is None and sink is None:
        out: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **options)
        return out
    causal = options.get("is_causal")
    bias = bias_of(mask, query, key.shape[2], getattr(module, "is_causal", True) if causal is None else causal)
    scale, dropout = options.get("scaling"), options.get("dropout", 0.0)
    if sink is not None:  # a key of zeros, whose score the bias brings
        key, value = (torch.cat([states, torch.zeros_like(states[:, :, :1])], 2) for states in (key, value))
        column = sink.to(query.dtype)[:, None, None].expand(len(query), -1, query.shape[2], 1)
        bias = torch.cat([bias.expand(len(query), query.shape[1], -1, -1), column], -1)
    if softcap is None:
        grouped = query.shape[1] != key.shape[1]
        result = scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale, enable_gqa=grouped)
    else:
        result = with_softcap(query, key, value, bias, softcap, query.shape[3] ** -0.5 if scale is None else scale, dropout)
    return result.transpose(1, 2).contiguous(), None


def bias_of(mask: Tensor | None, query: Tensor, n: int, causal: bool) -> Tensor:
    """A mask as a bias on the scores [.., .., s, n]: 0 where a key is seen, the most negative number elsewhere."""
    if mask is None:
        s = query.shape[2]
        seen = torch.ones(1, 1, s, n, dtype=torch.bool, device=query.device)
        mask = seen.tril() if causal and s > 1 else seen  # as SDPA has it: a static cache has room behind its prompt
    if mask.dtype != torch.bool:
        return mask
    # A row that sees nothing must not become NaN: its values are keys of later layers.
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, torch.finfo(query.dtype).min)


def with_softcap(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, softcap: float, scale: float, dropout: float) -> Tensor:
    """Attention with scores softcap · tanh(score / softcap), in plain torch; shapes as in `attention`, bias [.., .., s, n]."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = scale * query @ key.transpose(2, 3)
    weights = torch.softmax(softcap * torch.tanh(scores / softcap) + bias, -1)
    return nn.functional.dropout(weights, dropout) @ value

"""Tiny models with random weights for the model types of `transformers`: a config with small sizes, inputs by the signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, IMAGE, TOKENS = 64, 4, 32, 7
# What fields of a config become, by the first pattern that fits the whole name.
SIZES: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_.*)?|n_vocab|codebook_size", 64),
    (r"num_(hidden_)?layers|n_layers?|(.*_)?(encoder|decoder|hidden|block)_layers|num_blocks|depth|(.*_)?num_hidden_layers", 2),
    (r"(.*_)?num_key_value_heads|n_kv_heads|num_kv_heads", 2),
    (r"(.*_)?(num_attention_heads|num_heads|n_heads?|attention_heads)", HEADS),
    (r"(qk_|v_|.*_)?head_dim|d_kv|attention_head_size|key_head_dim|value_head_dim|attention_key_size", WIDTH // HEADS),
    (r"(.*_)?(intermediate_size|ffn_dim|d_ff|n_inner|mlp_dim|ffn_hidden_size|feed_forward_size|dim_feedforward)", 48),
    (
        r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|hidden_dim|embedding_size|embedding_dim|emb_dim|projection_dim|decoder_dim)",
        WIDTH,
    ),
    (r"dim|width|out_hidden_size|encoder_dim|conv_dim_out|entity_emb_size|lm_dim|proj_dim", WIDTH),
    (r"num_(local_|routed_|shared_)?experts|n_routed_experts|moe_num_experts|num_local_experts", 4),
    (r"num_experts_per_tok|moe_top_k|top_k_experts|moe_k", 2),
    (r"n_group|topk_group|n_shared_experts", 1),
    (r"q_lora_rank|kv_lora_rank", 16),
    (r"qk_nope_head_dim|qk_rope_head_dim|v_head_dim", 8),
    (r"max_position_embeddings|n_positions|max_source_positions|max_target_positions|max_seq_len|seq_length|n_ctx", 64),
    (r"image_size|input_size|img_size", IMAGE),
    (r"(spatial_)?patch_size", 8),
    (r"num_frames|temporal_size", 2),
    (r"num_queries|num_query_tokens|num_latents|n_queries|num_register_tokens", 5),
    (r"sliding_window|attention_window|chunk_size|block_size", 4),
)
NUMBERS = tuple((re.compile(pattern), size) for pattern, size in SIZES)
STAGES = re.compile(
    r"(hidden|embed|out|conv|stage|neck|encoder_hidden|decoder_hidden)_?(sizes|dims?|channels|widths)|embed_dims?|channels|dims"
)
DEPTHS = re.compile(r"(encoder_|decoder_)?(depths|num_layers|layers_per_stage|num_blocks|depth|repeats|stage_num_blocks)")


def shrunk(config: Any) -> Any:
    """A config with small sizes, its own configs inside too; changed in place."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrunk(value)
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            size = _size(name, value)
            if size != value:
                _set(config, name, size)
        elif isinstance(value, (list, tuple)) and value and all(type(each) is int for each in value):
            if DEPTHS.fullmatch(name):
                _set(config, name, type(value)([1] * len(value)))
            elif STAGES.fullmatch(name):
                _set(
                    config,
                    name,
                    type(value)([min(each, 32 * (1 + at)) if len(set(value)) > 1 else 32 for at, each in enumerate(value)]),
                )
            elif re.fullmatch(r"num_(attention_)?heads", name):
                _set(config, name, type(value)([2] * len(value)))
    for name, value in (("pad_token_id", 0), ("bos_token_id", 1), ("eos_token_id", 2), ("decoder_start_token_id", 1)):
        if isinstance(getattr(config, name, None), int):
            _set(config, name, value)
    if hasattr(config, "prediction_length"):  # a time series
        for name, value in (("prediction_length", 4), ("context_length", 12), ("lags_sequence", [1, 2, 3])):
            if hasattr(config, name):
                _set(config, name, value)
    layers = getattr(config, "num_hidden_layers", None)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list) and isinstance(layers, int):
        _set(config, "layer_types", list(dict.fromkeys(kinds))[:layers] + kinds[: max(0, layers - len(set(kinds)))])
    return config


def _size(name: str, value: int) -> int:
    for pattern, size in NUMBERS:
        if pattern.fullmatch(name):
            return min(size, value)
    return value


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, ValueError, TypeError):
        return


def number(config: Any, *names: str, default: int) -> int:
    """The first of these fields that a config, or one inside it, has as a number."""
    inner = [value for value in vars(config).values() if hasattr(value, "model_type")]
    for place in (config, *inner):
        for name in names:
            value = getattr(place, name, None)
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
                return value[0]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default


def candidates(model: nn.Module, config: Any) -> Iterator[dict[str, Any]]:
    """Inputs that the model may accept, the likeliest first."""
    names = inspect.signature(model.forward).parameters
    given: dict[str, Any] = {}
    vocab = number(config, "vocab_size", default=60)
    image, channels = (
        number(config, "image_size", default=IMAGE),
        number(config, "num_channels", "in_channels", "in_chans", default=3),
    )
    tokens = torch.randint(3, max(4, min(vocab, 60)), (2, TOKENS))
    if "input_ids" in names:
        given["input_ids"] = tokens
    if "decoder_input_ids" in names:
        given["decoder_input_ids"] = tokens[:, :5].clone()
    if "bbox" in names:
        given["bbox"] = torch.randint(0, 8, (2, TOKENS, 1)).expand(2, TOKENS, 4).clone()
    first = getattr(model, "main_input_name", "input_ids")
    pictures = [
        torch.randn(2, channels, image, image),
        torch.randn(2, 2, channels, image, image),
        torch.randn(2, channels, 64, 64),
    ]
    mels = number(config, "num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "num_mel_channels", default=16)
    sounds = [
        torch.randn(2, mels, 16),
        torch.randn(2, 16, mels),
        torch.randn(2, mels, 2 * number(config, "max_source_positions", default=8)),
    ]
    waves = [torch.randn(2, 4000), torch.randn(2, 1, 4000), torch.randn(2, 12, mels)]
    streams = {"pixel_values": pictures, "input_features": sounds, "input_values": waves, "pixel_values_videos": pictures[1:2]}
    kinds = [kind for kind in streams if kind in names]
    if first in streams and first not in kinds:
        kinds.append(first)
    if not kinds:
        yield given
        embeds = torch.randn(2, TOKENS, number(config, "hidden_size", "d_model", default=WIDTH))
        yield {**{name: value for name, value in given.items() if name != "input_ids"}, "inputs_embeds": embeds}
    for value in streams[kinds[0]] if kinds else ():
        yield {**given, kinds[0]: value}
        yield {kinds[0]: value}
    yield given
    if "past_values" in names:
        yield from _series(config)
    dummy = getattr(model, "dummy_inputs", None)
    if isinstance(dummy, dict):
        yield dummy


def _series(config: Any) -> Iterator[dict[str, Any]]:
    context, ahead = number(config, "context_length", default=12), number(config, "prediction_length", default=4)
    past = context + max(getattr(config, "lags_sequence", [0]) or [0])
    features = number(config, "num_time_features", default=0)
    yield {
        "past_values": torch.randn(2, past),
        "past_time_features": torch.randn(2, past, features),
        "past_observed_mask": torch.ones(2, past),
        "future_values": torch.randn(2, ahead),
        "future_time_features": torch.randn(2, ahead, features),
    }
    yield {"past_values": torch.randn(2, context, number(config, "num_input_channels", default=1))}
    yield {"past_values": torch.randn(2, context)}
    yield {"past_values": [torch.randn(context), torch.randn(context)]}


def build(model_type: str, eager: bool = False) -> tuple[nn.Module, dict[str, Tensor]]:
    """A tiny model of a type in evaluation mode, and inputs that it accepts. Raises what the first attempt raised.

    `eager`: attention and experts written out in parts, which some models then compute in float64, too.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    name = MODEL_MAPPING_NAMES[model_type]
    kind = getattr(transformers, name if isinstance(name, str) else name[0])
    torch.manual_seed(0)
    config = shrunk(CONFIG_MAPPING[model_type]())
    if eager:
        config._attn_implementation = config._experts_implementation = "eager"
    model = kind(config).eval()
    problem: Exception | None = None
    for inputs in candidates(model, config):
        if not inputs:
            continue
        try:
            with torch.no_grad():
                model(**inputs)
            return model, inputs
        except Exception as error:  # whatever a model raises for inputs of the wrong kind
            problem = problem or error
    raise problem or LookupError("no inputs could be guessed")

"""Fourteen tiny decoders of `transformers` with random weights, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
WINDOW = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8, **WINDOW}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, "query_pre_attn_scalar": 8, **WINDOW}),
    "mistral": ("MistralConfig", {"head_dim": 8, "sliding_window": 9}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "phi3": ("Phi3Config", {"sliding_window": 9}),
    "gpt_oss": ("GptOssConfig", {"head_dim": 8, "num_local_experts": 3, "num_experts_per_tok": 2, **WINDOW}),
    "olmo2": ("Olmo2Config", {}),
    "smollm3": ("SmolLM3Config", {}),
    "falcon": ("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, "bias": False}),
    "gptj": ("GPTJConfig", {"rotary_dim": 4, "n_positions": 128}),
    "gpt_neo": ("GPTNeoConfig", {"attention_types": [[["global", "local"], 1]], "window_size": 9}),
}
CHANGING: dict[str, tuple[str, dict[str, Any]]] = {  # they make other keys or values of those that a cache gives
    "diffllama": ("DiffLlamaConfig", {}),
    "jetmoe": ("JetMoeConfig", {"kv_channels": 8, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2}),
}
EAGER = ("gemma2", "gpt_oss", "gptj", "gpt_neo")  # SDPA has no soft cap and no sinks; the last two do not know it


def build(name: str, attn: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """The decoder, with the same weights every time; larger than a fresh model's, so that attention matters."""
    kind, options = {**DECODERS, **CHANGING}[name]
    config = getattr(transformers, kind)(**{**SMALL, **options, **changes})
    torch.manual_seed(5)
    experts = {"experts_implementation": "eager"} if "num_local_experts" in options else {}  # the others take no float64
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attn, dtype=dtype, **experts).eval()
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data = 0.25 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
        elif parameter.std() == 0:  # norms, and sinks that begin at zero
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data = parameter.data + 0.3 * noise.to(dtype)
    return model


def ragged(lengths: tuple[int, ...] = (13, 4, 1, 9)) -> dict[str, torch.Tensor]:
    """A batch padded on the left: input_ids and attention_mask [B, S]."""
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(2, 61, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    return {"input_ids": ids.where(mask, 0), "attention_mask": mask.long()}

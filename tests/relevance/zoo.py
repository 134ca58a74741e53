"""The architectures of `transformers`, each as small as it gets, with random weights and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

TEXT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
DECODER = {**TEXT, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 32}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "image_size": 16}
PATCHES = {**IMAGES, "patch_size": 8}


def tokens(name: str = "input_ids", **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {name: torch.randint(3, 40, (2, 5)), **more}


def masked_tokens() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 40, (2, 5)), "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}


def image(size: int = 16) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size, dtype=torch.float64)}


def both() -> dict[str, Any]:
    return {**tokens()(), "decoder_input_ids": torch.randint(3, 40, (2, 4))}


def sound() -> dict[str, Any]:
    return {
        "input_features": torch.randn(2, 6, 16, dtype=torch.float64),
        "decoder_input_ids": torch.randint(3, 40, (2, 4)),
    }


def image_and_text() -> dict[str, Any]:
    return {**image()(), **tokens()()}


# name -> model class, config class, sizes, inputs
ZOO: dict[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", TEXT, masked_tokens),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**TEXT, "max_position_embeddings": 32}, masked_tokens),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24},
        masked_tokens,
    ),
    "deberta-v2": (
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        {
            **TEXT,
            "relative_attention": True,
            "position_buckets": 4,
            "pos_att_type": ["c2p", "p2c"],
            "max_position_embeddings": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "conv_kernel_size": 3,
            "type_vocab_size": 0,
        },
        masked_tokens,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32},
        tokens(),
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**TEXT, "max_position_embeddings": 32}, tokens()),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**DECODER, **ENDS}, tokens()),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**DECODER, **ENDS}, tokens()),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**DECODER, **ENDS}, tokens()),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **DECODER,
            **ENDS,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 4,
        },
        tokens(),
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**DECODER, **ENDS, "sliding_window": 3}, tokens()),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**DECODER, **ENDS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        tokens(),
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 40,
            "d_model": 16,
            "d_kv": 4,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            **ENDS,
        },
        both,
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": 40,
            "num_mel_bins": 6,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "d_model": 16,
            "max_source_positions": 8,
            "max_target_positions": 16,
            "decoder_start_token_id": 1,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
            **ENDS,
        },
        sound,
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "use_cache": False, **ENDS},
        tokens(),
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", PATCHES, image()),
    "deit": ("DeiTForImageClassification", "DeiTConfig", PATCHES, image()),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4},
        image(),
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 12], "depths": [1, 2], "num_stages": 2},
        image(),
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "bottleneck"},
        image(),
    ),
    "regnet": (
        "RegNetForImageClassification",
        "RegNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 4},
        image(),
    ),
    "mobilenet v1": (
        "MobileNetV1ForImageClassification",
        "MobileNetV1Config",
        {"depth_multiplier": 0.25, "image_size": 32},
        image(32),
    ),
    "mobilenet v2": (
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        {"depth_multiplier": 0.35, "image_size": 32},
        image(32),
    ),
    "efficientnet": (
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
        image(32),
    ),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", {**PATCHES, "mlp_ratio": 2}, image()),
    "segformer": (
        "SegformerForImageClassification",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [2, 4],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 8,
        },
        image(),
    ),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": {**TEXT, "max_position_embeddings": 8, **ENDS}, "vision_config": PATCHES, "projection_dim": 8},
        image_and_text,
    ),
}

NO_SDPA = {"deberta-v2", "mamba", "convnext", "resnet", "regnet", "mobilenet v1", "mobilenet v2", "efficientnet"}
WITH_BATCH_NORM = {"resnet", "regnet", "mobilenet v1", "mobilenet v2", "efficientnet"}
WITH_SDPA = [name for name in ZOO if name not in NO_SDPA]


def make(name: str, attention: str = "eager", seed: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """A model in float64 with weights large enough that every part of it matters, and inputs for it."""
    kind, config_kind, sizes, inputs = ZOO[name]
    torch.manual_seed(seed)
    config = getattr(transformers, config_kind)(**sizes)
    # Grouped products know no float64; a model without experts does not mind.
    model = getattr(transformers, kind)._from_config(config, attn_implementation=attention, experts_implementation="eager")
    model = model.double().eval()
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.dim() > 1 else 0.1
            centre = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(centre + spread * torch.randn_like(parameter))
    given = inputs()
    _settle(model, given)
    return model, given


def _settle(model: nn.Module, given: dict[str, Any]) -> None:
    """Give batch norms the statistics of the inputs, so that deep nets neither die out nor explode."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        model(**given)
    for norm in norms:
        norm.running_var.clamp_(min=1e-4)
    model.eval()

"""Models that pick their attention from a table of classes instead of the library's interface: each gets a class of ours."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.falcon import modeling_falcon
from transformers.models.gpt_neo import modeling_gpt_neo
from transformers.models.gptj import modeling_gptj

from lutetia.integrations.transformers import attention as ours


class FalconLutetiaAttention(modeling_falcon.FalconAttention):
    """Falcon's attention with new tokens by decode attention; with ALiBi, which biases every key, by SDPA."""

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states [B, s, width] -> [B, s, width]; the other arguments are Falcon's own."""
        query, key, value = (part.transpose(1, 2) for part in self._split_heads(self.query_key_value(hidden_states)))
        if alibi is None:
            query, key = modeling_falcon.apply_rotary_pos_emb(query, key, *options["position_embeddings"])
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        out = attend(query, key, value, attention_mask, position_bias=alibi)
        dense: Tensor = self.dense(out.transpose(1, 2).flatten(2))
        return dense, None


class GPTJLutetiaAttention(modeling_gptj.GPTJAttention):
    """GPT-J's attention, whose projections and positions stay."""

    def _attn(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        """query [B, H, s, d], key, value [B, H, n, d] -> [B, H, s, d]."""
        return attend(query, key, value, attention_mask, dropout=dropout_of(self.attn_dropout)), None


class GPTNeoLutetiaAttention(modeling_gpt_neo.GPTNeoSelfAttention):
    """GPT-Neo's attention, which does not scale its scores; every other layer sees a window only."""

    def _attn(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        """query [B, H, s, d], key, value [B, H, n, d] -> [B, H, s, d]."""
        if self.attention_type == "local":
            n, s = ours.n_keys(key), query.shape[2]
            window = self.bias[:, :, n - s : n, :n]
            attention_mask = window if attention_mask is None else attention_mask & window
        how = {"scaling": 1.0, "sliding_window": self.config.window_size, "dropout": dropout_of(self.attn_dropout)}
        return attend(query, key, value, attention_mask, **how), None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    """Attention by decode attention or by SDPA: query [B, H_q, s, d], key, value [B, H_kv, n, d] -> [B, H_q, s, d]."""
    out = ours.by_decode(query, key, value, mask, options)
    if out is not None:
        return out
    causal, grouped = mask is None and query.shape[2] > 1, query.shape[1] != key.shape[1]
    dropout, scale = options.get("dropout", 0.0), options.get("scaling")
    return scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal, scale=scale, enable_gqa=grouped)


def dropout_of(layer: nn.Dropout) -> float:
    """The share of weights that a layer drops now."""
    return layer.p if layer.training else 0.0


class Refused:
    """In the table of a model whose attention has no place for ours."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        ours.refuse_own_attention(config)


OURS = (
    (modeling_falcon.FALCON_ATTENTION_CLASSES, FalconLutetiaAttention),
    (modeling_gptj.GPTJ_ATTENTION_CLASSES, GPTJLutetiaAttention),
    (modeling_gpt_neo.GPT_NEO_ATTENTION_CLASSES, GPTNeoLutetiaAttention),
)
TAKING = (modeling_falcon.FalconPreTrainedModel, modeling_gptj.GPTJPreTrainedModel, modeling_gpt_neo.GPTNeoPreTrainedModel)
REFUSING = {"git": "GIT_SELF_ATTENTION_CLASSES", "bark": "BARK_ATTENTION_CLASSES"}


def register(name: str) -> None:
    """Add our classes to the tables; where a model can do nothing with ours, one that says so."""
    for table, made in OURS:
        table[name] = made
    for model, table in REFUSING.items():
        module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        getattr(module, table)[name] = Refused


def takes_attention(model: type) -> bool:
    """Whether models of a class take the attention that their config names, by the interface or by a table."""
    return issubclass(model, TAKING) or bool(model._can_set_attn_implementation())  # type: ignore[attr-defined]

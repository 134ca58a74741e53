"""Falcon, which picks its attention from a table of classes instead of the library's interface."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.falcon import modeling_falcon

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
        seen = None
        if alibi is None and ours.can_decode(query, key, value, {}):
            seen = ours.seen_by(attention_mask, (len(query), query.shape[2], key.shape[2]), None)
        if seen is not None:
            out = ours.decode(query, key, value, seen, {})
        else:
            causal = attention_mask is None and query.shape[2] > 1
            grouped = query.shape[1] != key.shape[1]
            out = scaled_dot_product_attention(query, key, value, attention_mask, is_causal=causal, enable_gqa=grouped)
        dense: Tensor = self.dense(out.transpose(1, 2).flatten(2))
        return dense, None


def register(name: str) -> None:
    """Add the class to Falcon's table."""
    modeling_falcon.FALCON_ATTENTION_CLASSES[name] = FalconLutetiaAttention


def is_falcon(model: type) -> bool:
    """Whether models of a class pick their attention from that table."""
    return issubclass(model, modeling_falcon.FalconPreTrainedModel)

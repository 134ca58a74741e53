"""Models of `transformers` through Lutetia: decode attention, a cache for it, and Lutetia's language models as its own.

from lutetia.integrations.transformers import LutetiaCache, register

register()
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="lutetia")
model.generate(**tokens, past_key_values=LutetiaCache(model.config))
"""

from __future__ import annotations

from lutetia.errors import require

require("transformers", "lutetia.integrations.transformers")

from lutetia.integrations.transformers.answers import AnswerExplanation, explain_answer  # noqa: E402  (needs transformers)
from lutetia.integrations.transformers.attention import NAME, register_attention  # noqa: E402
from lutetia.integrations.transformers.cache import LutetiaCache  # noqa: E402
from lutetia.integrations.transformers.characters import WholePieces, whole_pieces  # noqa: E402
from lutetia.integrations.transformers.characters import special_places as special_places  # noqa: E402
from lutetia.integrations.transformers.classes import (  # noqa: E402
    ClassExplanation,
    explain_image_class,
    explain_text_class,
)
from lutetia.integrations.transformers.classes import is_number as is_number  # noqa: E402
from lutetia.integrations.transformers.drawn import pairs_table as pairs_table  # noqa: E402
from lutetia.integrations.transformers.explaining import (  # noqa: E402
    TokenExplanation,
    explain_masked_token,
    explain_next_token,
)
from lutetia.integrations.transformers.gradients import IntegratedGradients  # noqa: E402
from lutetia.integrations.transformers.leaving_out import LeftOut, leave_out  # noqa: E402
from lutetia.integrations.transformers.loading import load_decoder, load_model  # noqa: E402
from lutetia.integrations.transformers.loading import with_article as with_article  # noqa: E402
from lutetia.integrations.transformers.many_texts import (  # noqa: E402
    TextClass,
    TextClasses,
    WordShare,
    explain_text_classes,
)
from lutetia.integrations.transformers.models import (  # noqa: E402
    ByteTokenizer,
    LutetiaConfig,
    LutetiaForCausalLM,
    register_models,
)
from lutetia.integrations.transformers.paged import PagedCache  # noqa: E402
from lutetia.integrations.transformers.shapley import ShapleyValues  # noqa: E402
from lutetia.integrations.transformers.sharding import ShardedCache  # noqa: E402
from lutetia.integrations.transformers.similarity import SimilarityExplanation, explain_similarity  # noqa: E402
from lutetia.integrations.transformers.similarity import strongest_pairs as strongest_pairs  # noqa: E402

__all__ = [
    "NAME",
    "AnswerExplanation",
    "ByteTokenizer",
    "ClassExplanation",
    "IntegratedGradients",
    "LeftOut",
    "LutetiaCache",
    "LutetiaConfig",
    "LutetiaForCausalLM",
    "PagedCache",
    "ShapleyValues",
    "ShardedCache",
    "SimilarityExplanation",
    "TextClass",
    "TextClasses",
    "TokenExplanation",
    "WholePieces",
    "WordShare",
    "explain_answer",
    "explain_image_class",
    "explain_masked_token",
    "explain_next_token",
    "explain_similarity",
    "explain_text_class",
    "explain_text_classes",
    "leave_out",
    "load_decoder",
    "load_model",
    "register",
    "whole_pieces",
]


def register() -> None:
    """Register `attn_implementation="lutetia"`, and Lutetia's language models, with `transformers`; safe to call again."""
    register_attention()
    register_models()

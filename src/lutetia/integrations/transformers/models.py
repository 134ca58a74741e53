"""Lutetia's language models as models of `transformers`: for `generate`, `pipeline`, `Trainer` and `from_pretrained`.

    model = LutetiaForCausalLM.wrap(lutetia.models.LUTTransformer(...))
    model.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)    # after register()

Weights are written as safetensors, and nothing is unpickled.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizer,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from lutetia.errors import ArgumentError, check_choice, fail
from lutetia.models import DenseTransformer, LUTTransformer, ModelCache, SoftmaxAttention, TransformerConfig

KINDS = {model.kind: model for model in (LUTTransformer, DenseTransformer)}
BYTES = 256


def register_models() -> None:
    """Register with the Auto classes of the library."""
    AutoConfig.register(LutetiaConfig.model_type, LutetiaConfig, exist_ok=True)
    AutoModelForCausalLM.register(LutetiaConfig, LutetiaForCausalLM, exist_ok=True)
    AutoTokenizer.register(LutetiaConfig, slow_tokenizer_class=ByteTokenizer, exist_ok=True)


class LutetiaConfig(PreTrainedConfig):
    """`kind`, "transformer" or "dense_transformer", and `fields`, those of `lutetia.models.TransformerConfig`."""

    model_type: ClassVar[str] = "lutetia"

    def __init__(self, kind: str = LUTTransformer.kind, fields: dict[str, Any] | None = None, **options: Any) -> None:
        check_choice("kind", kind, tuple(KINDS))
        self.kind, self.fields = kind, TransformerConfig.from_dict(fields or {}).to_dict()
        self.vocab_size, self.max_position_embeddings = self.fields["vocab"], self.fields["context"]
        self.hidden_size, self.num_hidden_layers = self.fields["width"], self.fields["n_layers"]
        self.num_attention_heads = self.fields["n_heads"]
        super().__init__(**{"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, **options})


class LutetiaForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LUTTransformer` or `DenseTransformer`, `model`, as the library wants it."""

    config_class = LutetiaConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _no_split_modules: ClassVar[list[str]] = ["Block"]

    def __init__(self, config: LutetiaConfig) -> None:
        super().__init__(config)
        with torch.device("cpu"):  # the library would have it without memory, and then nobody could draw its anchors
            self.model = KINDS[config.kind](TransformerConfig.from_dict(config.fields))
        self.post_init()

    @classmethod
    def wrap(cls, model: LUTTransformer) -> LutetiaForCausalLM:
        """Wrap a Lutetia model, sharing its parameters."""
        if not isinstance(model, LUTTransformer):
            fail("model", model, "a LUTTransformer or a DenseTransformer")
        made = cls(LutetiaConfig(model.kind, model.config.to_dict()))
        made.model = model
        made.train(model.training)
        return made

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Refused: the size of the vocabulary is a field of the config."""
        raise ArgumentError("the embedding of a Lutetia model cannot be replaced, expected a model of another vocab")

    def _init_weights(self, module: nn.Module) -> None:
        """Layers initialise themselves; but the library discards buffers that are not saved, such as rotary angles."""
        if isinstance(module, SoftmaxAttention):
            module.to(module.key.weight.device)

    def _supports_default_dynamic_cache(self) -> bool:
        return False  # `forward` makes one of its own

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """input_ids [B, S] -> logits [B, S, vocab], and with labels [B, S] the loss of each token after those before it.

        attention_mask [B, S, or S and all tokens before] marks real tokens, which must be contiguous in each row.
        """
        cache = past_key_values
        if use_cache and cache is None and labels is None:
            cache = TokenCache(self.model.new_cache(len(input_ids)))
        if cache is not None and not isinstance(cache, TokenCache):
            fail("past_key_values", cache, "the cache that this model returned, or None")
        if cache is not None and cache.get_seq_length():
            logits = self.model(input_ids, cache=cache.kept)
        else:
            logits = self._first(input_ids, attention_mask, None if cache is None else cache.kept)
        if cache is not None:
            cache.columns += input_ids.shape[1]
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **options)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def _first(self, tokens: Tensor, mask: Tensor | None, cache: ModelCache | None) -> Tensor:
        """A prompt, tokens [B, S], whose mask [B, S] says where each row begins and ends; logits elsewhere are meaningless."""
        if mask is None or bool(mask.all()):
            return self.model(tokens, cache=cache)
        real = mask.bool()
        lengths, first = real.sum(1), real.int().argmax(1, keepdim=True)
        column = torch.arange(tokens.shape[1], device=tokens.device)
        together = (column >= first) & (column < first + lengths[:, None])
        if not torch.equal(together, real) or not bool((lengths > 0).all()):
            fail("attention_mask", mask, "real tokens in every row, without a gap between them")
        longest = int(lengths.max())
        moved = tokens.gather(1, (first + column[:longest]).clamp(max=tokens.shape[1] - 1))  # rows begin at column 0
        logits = self.model(moved, lengths, cache)
        back = (column - first).clamp(0, longest - 1)[..., None].expand(-1, -1, logits.shape[2])
        return logits.gather(1, back)


class TokenCache(Cache):
    """A Lutetia model's cache, `kept`, as a cache of the library, and the number of token columns seen."""

    def __init__(self, kept: ModelCache) -> None:
        super().__init__(layers=[])
        self.kept, self.columns = kept, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of tokens, padding included."""
        return self.columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """The context of the model."""
        return self.kept.context

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row b becomes the former row beam_idx[b]."""
        self.kept.reorder(beam_idx)

    def reset(self) -> None:
        """Forget all tokens."""
        self.kept.reset()
        self.columns = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Refused."""
        raise ArgumentError("the cache of a Lutetia model cannot forget its last tokens: assisted generation is not supported")


class ByteTokenizer(PreTrainedTokenizer):
    """Text as its UTF-8 bytes: token b is byte b. Rows are padded on the left, with byte 0."""

    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"pad_token": "\0", "padding_side": "left", "clean_up_tokenization_spaces": False, **options})

    @property
    def vocab_size(self) -> int:
        """All bytes."""
        return BYTES

    def get_vocab(self) -> dict[str, int]:
        """Byte b is the character b."""
        return {chr(byte): byte for byte in range(BYTES)}

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return list(map(chr, text.encode("utf-8", "surrogateescape")))

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Bytes that are not UTF-8 become replacement characters."""
        return bytes(map(ord, tokens)).decode("utf-8", "replace")

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """There is nothing to save."""
        return ()

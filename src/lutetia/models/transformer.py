"""`LUTTransformer`: a byte-level language model whose layers look up, and `DenseTransformer`, its twin that multiplies."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lutetia
from lutetia._shared.dtypes import INTEGER_DTYPES
from lutetia._shared.ragged import check_lengths
from lutetia.errors import ArgumentError, check_int, check_tensor, fail
from lutetia.lut import IndexCache, SynapseMeta
from lutetia.models import generation
from lutetia.models.building import STD, Model, linear, norm_of
from lutetia.models.cache import ModelCache
from lutetia.models.sampling import Sampling
from lutetia.models.sizes import ModelSize, dense_transformer_size, transformer_size
from lutetia.models.softmax_attention import SoftmaxAttention, SoftmaxCache
from lutetia.models.transformer_config import MAX_HEAD_DIM, TransformerConfig
from lutetia.nn import LUT, LUTAttention, NgramTables, ProjectedLUT

IGNORED = -100  # a target that does not count


class Block(nn.Module):
    """x + attention(norm(x)), then with z = norm(x): x + feed_forward(z) + gated(z, rows); x [B, S, width] -> [B, S, width]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = norm_of(config.norm, config.width)
        self.attention = _attention(config)
        has_rest = config.feed_forward != "none" or config.n_ngrams
        self.feed_forward_norm = norm_of(config.norm, config.width) if has_rest else nn.Identity()
        self.feed_forward = _feed_forward(config) if config.feed_forward != "none" else None
        self.gated = GatedRows(config) if config.n_ngrams else None
        self.dropout = config.dropout

    def forward(self, x: Tensor, lengths: Tensor | None = None, cache: Any = None, rows: Tensor | None = None) -> Tensor:
        """x [B, S, width], rows of n-gram tables [B, S, n_ngrams] -> [B, S, width]."""
        x = x + self._dropped(self.attention(self.attention_norm(x), lengths, cache))
        z = self.feed_forward_norm(x)
        if self.feed_forward is not None:
            x = x + self._dropped(self.feed_forward(z))
        return x if self.gated is None else x + self._dropped(self.gated(z, rows))

    def _dropped(self, added: Tensor) -> Tensor:
        """What is added to the residual stream, with dropout in training."""
        return F.dropout(added, self.dropout) if self.training and self.dropout else added


class GatedRows(nn.Module):
    """What a block takes of the rows of n-gram tables: z [..., width], rows [..., n_ngrams] -> [..., width]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate = linear(config.width, config.n_ngrams)
        self.out = linear(config.n_ngrams, config.width, bias=False, std=_residual_std(config))

    def forward(self, z: Tensor, rows: Tensor) -> Tensor:
        """out(silu(gate(z)) · rows)."""
        return self.out(F.silu(self.gate(z)) * rows)


def _attention(config: TransformerConfig) -> nn.Module:
    if config.attention == "softmax":
        sizes = (config.width, config.n_heads, config.kv_heads, config.context)
        return SoftmaxAttention(*sizes, rope_base=config.rope_base, out_std=_residual_std(config))
    sizes = (config.n_heads * config.n_detectors, config.n_anchors, config.positional_dim, config.context)
    options = {"algorithm": config.algorithm, "shared_positions": config.shared_positions, **_tables(config)}
    return LUTAttention(config.width, config.width, *sizes, **options)


def _feed_forward(config: TransformerConfig) -> nn.Module:
    width = config.width
    read: dict[str, Any] = {"read": config.read, "table_dropout": config.table_dropout}
    if config.feed_forward == "dense":
        hidden = config.ff_multiple * width
        return nn.Sequential(linear(width, hidden), nn.GELU(), linear(hidden, width, std=_residual_std(config)))
    if config.feed_forward == "lut":
        return LUT(width, width, config.ff_detectors, config.ff_anchors, **read, **_tables(config))
    return ProjectedLUT(
        width,
        width,
        heads=config.ff_heads,
        head_width=config.ff_head_width,
        n_detectors=config.ff_detectors,
        n_anchors=config.ff_anchors,
        gradient=config.gradient,
        **read,
    )


def _ngram_tables(config: TransformerConfig) -> NgramTables:
    sizes: dict[str, Any] = {"word": config.ngram_word, "n_rows": config.ngram_rows, "width": config.ngram_width}
    return NgramTables(config.ngrams, **sizes, dropout=config.ngram_dropout, order_dropout=config.ngram_order_dropout)


def _residual_std(config: TransformerConfig) -> float:
    """The standard deviation for the linear layers that add to the residual stream, 2 · n_layers of them."""
    return STD / (2 * config.n_layers) ** 0.5


def _tables(config: TransformerConfig) -> dict[str, Any]:
    """What all tables of a model have in common."""
    meta = SynapseMeta(initial_noise=config.initial_noise)
    return {"meta": meta, "gradient": config.gradient, "sums": config.sums, "int_rescaler": config.int_rescaler}


class LUTTransformer(Model[TransformerConfig]):
    """Tokens in, scores of the next token out: tokens [B, S <= context] -> logits [B, S, vocab].

    Made from a `TransformerConfig`, from its fields as keywords, or from both (the keywords then replace fields).
    """

    kind: ClassVar[str] = "transformer"
    config_class: ClassVar[type[TransformerConfig]] = TransformerConfig

    def _build(self, config: TransformerConfig) -> None:
        self.embedding = nn.Embedding(config.vocab, config.width)
        # Nats per byte on Python sources, one seed, from std 1 and from 0.02, with the rms norm: LUT attention and hard tables
        # 1.95 and 2.01 after 150 steps, softmax attention and projected tables 2.71 and 2.51 after 100.
        wide = config.attention == "lut" or config.norm == "none"
        nn.init.normal_(self.embedding.weight, std=1.0 if wide else STD)
        self.ngrams = _ngram_tables(config) if config.n_ngrams else None
        self.ngrams_in = linear(config.n_ngrams, config.width, bias=False) if config.n_ngrams else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = norm_of(config.norm, config.width)
        self.unembedding: nn.Module
        if config.unembedding == "linear":
            self.unembedding = linear(config.width, config.vocab, bias=False)
        else:
            sizes = (config.width, config.vocab, config.unembedding_detectors, config.unembedding_anchors)
            self.unembedding = LUT(*sizes, read=config.read, **_tables(config))

    @classmethod
    def least_size(cls, config: TransformerConfig) -> ModelSize:
        return transformer_size(config)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, cache: ModelCache | None = None) -> Tensor:
        """tokens [B, S], integers -> logits [B, S, vocab], meaningless past `lengths`, an integer tensor [B].

        With a `cache`, pass only the tokens that follow those in it; S and `lengths` count these, and there is no gradient.
        """
        self._check_tokens(tokens)
        if lengths is not None:
            check_lengths(lengths, tokens)
        if cache is None:
            return self._logits(tokens, lengths, [None] * len(self.blocks))
        new = self._room(cache, tokens, lengths)
        with torch.no_grad():
            logits = self._logits(tokens, lengths, cache.layers, cache.recent)
            if self.ngrams is not None and cache.recent is not None:
                cache.recent = self.ngrams.recent(tokens, cache.recent, lengths)
        cache.lengths += new
        cache.owner = weakref.ref(self)
        return logits

    def _logits(self, tokens: Tensor, lengths: Tensor | None, caches: list[Any], recent: Tensor | None = None) -> Tensor:
        x, rows = self.embedding(tokens.long()), None
        if self.ngrams is not None and self.ngrams_in is not None:
            rows = self.ngrams(tokens, recent)
            x = x + self.ngrams_in(rows)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, lengths, cache, rows)
        return self.unembedding(self.norm(x))

    def loss(self, tokens: Tensor, targets: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The mean cross-entropy, in nats per token, of targets [B, S] after tokens [B, S].

        A target of -100 does not count, nor does what is past `lengths` [B]. Divide by ln 2 for bits per byte.
        """
        logits = self(tokens, lengths)
        check_tensor("targets", targets, tokens.shape, INTEGER_DTYPES, tokens.device)
        targets = targets.long()
        if lengths is not None:
            past = torch.arange(tokens.shape[1], device=tokens.device) >= lengths.to(tokens.device)[:, None]
            targets = targets.masked_fill(past, IGNORED)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def new_cache(self, batch: int, length: int | None = None) -> ModelCache:
        """An empty cache for `batch` sequences of at most `length` tokens, `context` by default.

        Each new token then costs one step, not a whole context.
        """
        check_int("batch", batch, 0)
        room = self.config.context if length is None else length
        check_int("length", room, 1, self.config.context)
        attentions: list[Any] = [block.attention for block in self.blocks]
        recent = None
        if self.ngrams is not None:
            recent = torch.zeros(batch, self.ngrams.reach - 1, dtype=torch.int64, device=self.embedding.weight.device)
        return ModelCache([each.new_cache(batch, room) for each in attentions], batch, room, recent)

    def generate(
        self,
        prompts: generation.Prompts,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: generation.Stop | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        stream: bool = False,
    ) -> Any:
        """What the model writes after each prompt, without the prompt.

        A prompt is a str, bytes, or a tensor [S] of tokens, and its continuation has the same type. A list of prompts of any
        length, or a tensor [B, S], gives a list. With `stream` the result is an iterator of pieces: parts of the continuation, or
        for a list pairs (row, part).

        temperature=0 takes the best token each time. Otherwise tokens are drawn, from the `top_k` best, and of these from the
        fewest whose probabilities add up to `top_p`; `seed` or `generator` make the draws repeatable. A row ends after
        `max_new_tokens`, or before the first of the `stop` strings, or, where a str or bytes is written, before a token that is
        no byte. Each token depends on the last `context` tokens: while a row is shorter than that, the cache is used; after that
        the whole window is recomputed for every token.
        """
        how = Sampling(temperature, top_k, top_p, seed, generator)
        return generation.generate(self, prompts, max_new_tokens, how, stop, stream)

    def dense_twin(self) -> DenseTransformer:
        """A new model of the same config, with ordinary attention and linear layers, for comparison."""
        weight = self.embedding.weight
        return DenseTransformer(self.config, device=weight.device, dtype=weight.dtype)

    def _check_tokens(self, tokens: Any) -> None:
        check_tensor("tokens", tokens, ["B", "S"], INTEGER_DTYPES, self.embedding.weight.device)
        if not 1 <= tokens.shape[1] <= self.config.context:
            fail("tokens", tokens, f"1 to {self.config.context} tokens in a row, the context of the model")
        if torch.compiler.is_compiling() or (tokens.is_cuda and not lutetia.debug) or not tokens.numel():
            return  # reading values would break the graph, or wait for the device
        low, high = (int(value) for value in tokens.aminmax())
        if low < 0 or high >= self.config.vocab:
            raise ArgumentError(f"tokens has {low if low < 0 else high}, expected 0 to {self.config.vocab - 1}")

    def _room(self, cache: Any, tokens: Tensor, lengths: Tensor | None) -> Tensor:
        """How many tokens are new in each row, int64 [B] on the host, once it is known that they fit the cache."""
        if not isinstance(cache, ModelCache):
            fail("cache", cache, "a ModelCache, made with new_cache")
        check_tensor("cache.lengths", cache.lengths, ["B"], torch.int64)
        if len(cache.lengths) != len(tokens):
            fail("tokens", tokens, f"{len(cache.lengths)} rows, as the cache has")
        kinds: list[type] = [
            SoftmaxCache if isinstance(block.attention, SoftmaxAttention) else IndexCache for block in self.blocks
        ]
        held = cache.check(self, len(tokens), kinds, self.config.context)
        if self.ngrams is not None:
            check_tensor("cache.recent", cache.recent, [len(tokens), self.ngrams.reach - 1], torch.int64, tokens.device)
        elif cache.recent is not None:
            fail("cache.recent", cache.recent, "None: the model has no n-gram tables")
        new = [tokens.shape[1]] * len(tokens) if lengths is None else lengths.tolist()
        for row, (before, more) in enumerate(zip(held, new, strict=True)):
            if not 0 <= before <= cache.context - more:
                raise ArgumentError(
                    f"row {row} of the cache holds {before} tokens and {more} more are brought, "
                    f"expected no more than the context of {cache.context} in total"
                )
        return torch.tensor(new, dtype=torch.int64)


class DenseTransformer(LUTTransformer):
    """The twin of a `LUTTransformer` of the same config: softmax attention, a feed-forward of two linear layers with a hidden one
    of ff_multiple · width, a linear unembedding. Fields about tables have no effect."""

    kind: ClassVar[str] = "dense_transformer"

    def _build(self, config: TransformerConfig) -> None:
        super()._build(dense(config))

    @classmethod
    def least_size(cls, config: TransformerConfig) -> ModelSize:
        return dense_transformer_size(config)


def dense(config: TransformerConfig) -> TransformerConfig:
    """The config of the dense twin.

    Where the heads of a LUT attention do not divide the width, the twin has the nearest number that does. Without a norm a dense
    transformer hardly learns: the twin then has the "rms" one.
    """
    if config.width % 2:
        fail("width", config.width, "an even number for the dense twin, whose rotary positions rotate pairs of elements")
    heads = config.n_heads if config.attention == "softmax" else _heads_of_twin(config)
    return replace(
        config,
        attention="softmax",
        n_heads=heads,
        n_kv_heads=config.n_kv_heads if config.attention == "softmax" else None,
        feed_forward="dense",
        unembedding="linear",
        ngrams=(),
        ngram_word=False,
        norm="rms" if config.norm == "none" else config.norm,
        sums="float",
    )


def _heads_of_twin(config: TransformerConfig) -> int:
    fit = [h for h in range(1, config.width // 2 + 1) if config.width % (2 * h) == 0 and config.width // h <= MAX_HEAD_DIM]
    return min(fit, key=lambda heads: (abs(heads - config.n_heads), heads))

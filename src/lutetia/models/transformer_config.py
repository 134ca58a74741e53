"""`TransformerConfig`: what a language model is made of."""

from __future__ import annotations

from dataclasses import dataclass

from lutetia.errors import MAX_INT32, ArgumentError, check_choice, check_int, fail
from lutetia.lut import GRADIENTS, MAX_ANCHORS, READS, Sums, check_algorithm, check_bits
from lutetia.models.fields import ModelConfig, check_bool, check_number
from lutetia.nn import check_dropout, check_orders

ATTENTIONS = ("lut", "softmax")
FEED_FORWARDS = ("lut", "projected", "dense", "none")
NORMS = ("rms", "layer", "none")
MAX_HEAD_DIM = 256  # of lutetia.attention
UNEMBEDDINGS = ("linear", "lut")


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """A language model: an embedding, `n_layers` blocks of attention and feed-forward, an unembedding.

    attention="lut" is one LUT attention of n_heads · n_detectors detectors: heads whose outputs are only added up are the same as
    more detectors. attention="softmax" has n_heads query heads, n_kv_heads (n_heads by default) of keys and values, and rotary
    positions; it ignores the fields from n_detectors to algorithm. With n-gram tables, their rows are added to the embedding by a
    linear layer, and to every block through a gate: x + out(silu(gate(norm(x))) · rows).
    """

    vocab: int = 256  # bytes; tokens from 256 on are yours
    context: int = 256  # the most tokens that a forward pass sees
    width: int = 128  # of the embedding and the residual stream
    n_layers: int = 4

    attention: str = "lut"  # "lut" | "softmax"
    n_heads: int = 4
    n_kv_heads: int | None = None  # softmax: divides n_heads
    n_detectors: int = 16  # lut: of each head
    n_anchors: int = 3
    positional_dim: int = 3
    shared_positions: bool = False
    algorithm: str = "auto"  # "auto" | "pairs" | "cells"
    rope_base: float = 10000.0  # softmax: the longest wavelength of the rotary positions, over 2π

    feed_forward: str = "lut"  # "lut" | "projected" | "dense" | "none"
    ff_detectors: int = 64  # projected: of each head
    ff_anchors: int = 8
    ff_heads: int = 8  # projected
    ff_head_width: int = 48  # projected
    ff_multiple: int = 4  # dense: the hidden layer is this many times the width
    read: str = "hard"  # of the feed-forward tables and of a LUT unembedding
    table_dropout: float = 0.0  # of the feed-forward tables

    ngrams: tuple[int, ...] = ()  # each a table addressed by a hash of that many last tokens: see nn.NgramTables
    ngram_word: bool = False  # one more, addressed by the word so far
    ngram_rows: int = 2**18  # of each table
    ngram_width: int = 64  # of each row
    ngram_dropout: float = 0.0  # of single numbers of the rows
    ngram_order_dropout: float = 0.0  # of the rows of a random order and of all after it

    dropout: float = 0.0  # of what attention, feed-forward and n-gram tables add to the residual stream
    norm: str = "rms"  # "rms" | "layer" | "none", before each attention and feed-forward and before the unembedding
    unembedding: str = "linear"  # "linear" | "lut"
    unembedding_detectors: int = 64
    unembedding_anchors: int = 6

    gradient: str = "dense"  # of all tables
    sums: str = "float"
    int_rescaler: float = 1.0
    initial_noise: float = 1e-3  # tables start uniform in ± this
    seed: int | None = None  # None: torch's global generator

    def __post_init__(self) -> None:
        for name in ("vocab", "width"):
            check_int(name, getattr(self, name), 2)
        for name in ("context", "n_layers", "n_heads", "ff_detectors", "unembedding_detectors", "ff_multiple", "ff_heads"):
            check_int(name, getattr(self, name), 1)
        for name in ("ff_anchors", "unembedding_anchors"):
            check_int(name, getattr(self, name), 1, MAX_ANCHORS)
        check_int("ff_head_width", self.ff_head_width, 2)
        choices = {
            "attention": ATTENTIONS,
            "feed_forward": FEED_FORWARDS,
            "read": READS,
            "norm": NORMS,
            "unembedding": UNEMBEDDINGS,
            "gradient": GRADIENTS,
        }
        for name, known in choices.items():
            check_choice(name, getattr(self, name), known)
        check_number("rope_base", self.rope_base, 0.0, low_fits=False)
        check_number("initial_noise", self.initial_noise, 0.0)
        Sums(self.sums, self.int_rescaler).check()
        check_dropout("table_dropout", self.table_dropout)
        check_dropout("dropout", self.dropout)
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**63 - 1)
        self._check_attention()
        self._check_ngrams()
        if self.sums == "fixed" and self.feed_forward == "projected":
            raise ArgumentError(
                'sums is "fixed" and feed_forward "projected", whose projections are float: expected other sums or feed_forward'
            )

    def _check_attention(self) -> None:
        check_int("n_detectors", self.n_detectors, 1)
        check_int("n_anchors", self.n_anchors, 1)
        check_int("positional_dim", self.positional_dim)
        check_bits(self.n_anchors, self.positional_dim)
        check_bool("shared_positions", self.shared_positions)
        check_algorithm(self.algorithm, False)
        if self.n_kv_heads is not None:
            check_int("n_kv_heads", self.n_kv_heads, 1)
        if self.attention == "softmax":
            if self.width % (2 * self.n_heads):
                fail("width", self.width, f"a multiple of 2 · n_heads = {2 * self.n_heads}, as rotary positions rotate pairs")
            if self.width // self.n_heads > MAX_HEAD_DIM:
                fail("width", self.width, f"at most {MAX_HEAD_DIM} · n_heads = {MAX_HEAD_DIM * self.n_heads}")
            if self.n_heads % self.kv_heads:
                fail("n_heads", self.n_heads, f"a multiple of n_kv_heads = {self.kv_heads}")

    def _check_ngrams(self) -> None:
        object.__setattr__(self, "ngrams", tuple(self.ngrams) if isinstance(self.ngrams, list) else self.ngrams)
        check_bool("ngram_word", self.ngram_word)
        if self.ngrams != () or self.ngram_word:
            check_orders(self.ngrams, self.ngram_word)
        check_int("ngram_rows", self.ngram_rows, 1, MAX_INT32)
        check_int("ngram_width", self.ngram_width, 1)
        for name in ("ngram_dropout", "ngram_order_dropout"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        if self.n_ngrams and self.sums == "fixed":
            raise ArgumentError(
                'sums is "fixed" and there are n-gram tables, whose gates are float: expected another value for one of them'
            )

    @property
    def n_ngrams(self) -> int:
        """Numbers that the n-gram tables give a position."""
        return (len(self.ngrams) + self.ngram_word) * self.ngram_width

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_kv_heads or self.n_heads

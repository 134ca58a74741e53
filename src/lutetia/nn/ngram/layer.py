"""`NgramTables`: rows selected by a hash of the last few tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia._shared.dtypes import FLOATS, INTEGER_DTYPES
from lutetia._shared.threads import spread
from lutetia._uncompiled import is_exporting, uncompiled
from lutetia.errors import MAX_INT32, ArgumentError, check_choice, check_int, check_module, check_range, check_tensor, fail
from lutetia.lut import backend_name
from lutetia.nn.ngram.hashing import REACH, Hash, addresses, begins_word, draw_multipliers

GRADIENTS = ("sparse", "dense")
MAX_ORDER = REACH


class NgramTables(nn.Module):
    """tokens [B, S] -> rows [B, S, n_tables · width]: from each table the row that the last tokens hash to.

    A table for each of `orders`, which hashes that many tokens, and with `word` one more, of the word so far: what follows the
    last beginning of a word, 16 tokens at most. Rows start at zero. Nothing before the first token is read: hashes do not reach
    beyond a window.

    weight         [n_tables · n_rows, width]; its gradient is sparse by default, one row for each that was read: see `RowAdam`
    dropout        of single numbers, in training
    order_dropout  in training, how often a position loses the rows of a random table and of all after it, so that shorter
                   orders learn to work without longer ones
    """

    multipliers: Tensor
    lengths: Tensor
    words: Tensor

    def __new__(cls, *args: Any, gradient: str = "sparse", **options: Any) -> NgramTables:
        """Tables of this class or, with sparse gradients, of one that DistributedDataParallel recognises."""
        return super().__new__(_SparseNgramTables if cls is NgramTables and gradient == "sparse" else cls)

    def __init__(
        self,
        orders: Sequence[int] = (2, 3, 4),
        *,
        word: bool = False,
        n_rows: int = 2**18,
        width: int = 64,
        dropout: float = 0.0,
        order_dropout: float = 0.0,
        gradient: str = "sparse",
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)  # and not that of EmbeddingBag, which a subclass only claims to be
        self.orders, self.word = check_orders(orders, word), bool(word)
        check_int("n_rows", n_rows, 1, MAX_INT32)
        check_int("width", width, 1)
        check_int("seed", seed, 0, 2**63 - 1)
        check_choice("gradient", gradient, GRADIENTS)
        for name, value in (("dropout", dropout), ("order_dropout", order_dropout)):
            check_range(name, value, 0, 1)
        self.n_rows, self.width, self.seed, self.gradient = n_rows, width, seed, gradient
        self.dropout, self.order_dropout = float(dropout), float(order_dropout)
        lengths = self.orders + ((REACH,) if word else ())
        self.n_tables, self.reach = len(lengths), max(lengths)
        self.weight = nn.Parameter(torch.zeros(self.n_tables * n_rows, width, device=device, dtype=dtype))
        self.hashed = tuple(lengths), (*[False] * len(self.orders), *[True] * self.word)
        self.share: Any = None  # of a rank, where `training.shard_detectors` has spread the rows
        self._draw(self.weight.device)

    def _draw(self, device: torch.device) -> None:
        """Register what the hashes are made of, which follows from the seed and is not saved."""
        with torch.device("cpu"):
            drawn, lengths, words = draw_multipliers(self.n_tables, self.reach, self.seed), *map(torch.tensor, self.hashed)
        for name, buffer in (("multipliers", drawn), ("lengths", lengths.int()), ("words", words.int())):
            self.register_buffer(name, buffer.to(device), persistent=False)

    def _apply(self, *args: Any, **options: Any) -> NgramTables:
        """To another device or dtype; what was on meta is drawn again, because no state brings it."""
        was_meta = self.multipliers.is_meta
        super()._apply(*args, **options)
        if was_meta and not self.multipliers.is_meta:
            self._draw(self.multipliers.device)
        return self

    @property
    def n_outputs(self) -> int:
        """How many numbers each position gets."""
        return self.n_tables * self.width

    def forward(self, tokens: Tensor, past: Tensor | None = None) -> Tensor:
        """tokens, integers [B, S], and what `recent` returned for those before them -> rows [B, S, n_tables · width]."""
        rows = self._look_up(tokens, past)
        if self.training and self.order_dropout:
            rows = self._drop_orders(rows)
        return F.dropout(rows.flatten(-2), self.dropout, self.training)

    @uncompiled("n-gram tables hash in their own kernel, and have sparse gradients")
    def _look_up(self, tokens: Tensor, past: Tensor | None) -> Tensor:
        """[B, S, n_tables, width], in the dtype of the products where autocast says one."""
        index = self.addresses(tokens, past)
        rows = self.rows(index) if self.share is None else self.share.rows(self, index)
        kind = rows.device.type
        return rows.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else rows

    def rows(self, index: Tensor) -> Tensor:
        """The rows of these numbers: index int64 [...] -> [..., width]."""
        return F.embedding(index, self.weight, sparse=self.gradient == "sparse")

    def addresses(self, tokens: Tensor, past: Tensor | None = None) -> Tensor:
        """Which rows each position reads: int64 [B, S, n_tables], numbers of rows of `weight`."""
        check_tensor("tokens", tokens, ["B", "S"], INTEGER_DTYPES, self.multipliers.device)
        if past is None:
            past = tokens.new_zeros(len(tokens), self.reach - 1, dtype=torch.int64)
        check_tensor("past", past, [len(tokens), self.reach - 1], torch.int64, tokens.device)
        tokens, hash_ = tokens.long(), Hash(*self.hashed, self.n_rows, self.multipliers)
        backend = "reference" if is_exporting() else backend_name(tokens)  # a program holds torch's own ops
        if backend == "triton":
            from lutetia.nn.ngram import kernels

            return kernels.addresses(tokens, past, hash_, self.lengths, self.words)
        if backend == "cpu":
            return _addresses_cpu(tokens, past, hash_, self.lengths, self.words)
        return addresses(tokens, past, hash_)

    def recent(self, tokens: Tensor, past: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """What the next call needs to know about the tokens so far, the first `lengths` [B] of each row: int64 [B, reach - 1]."""
        check_tensor("tokens", tokens, ["B", "S"], INTEGER_DTYPES)
        n, (batch, S) = self.reach - 1, tokens.shape
        if past is None:
            past = tokens.new_zeros(batch, n, dtype=torch.int64)
        check_tensor("past", past, [batch, n], torch.int64, tokens.device)
        if lengths is not None:
            check_tensor("lengths", lengths, [batch], INTEGER_DTYPES)
            if not lengths.is_cuda and bool(((lengths < 0) | (lengths > S)).any()):  # on CUDA looking would mean waiting
                raise ArgumentError(f"lengths holds {lengths.tolist()}, expected numbers of tokens from 0 to {S}")
        whole = torch.cat([past, tokens.long() + 1], 1)
        ends = torch.full((batch,), S, device=tokens.device) if lengths is None else lengths.to(tokens.device).long()
        return whole.gather(1, ends[:, None] + torch.arange(n, device=tokens.device))

    def token_shares(self, relevance: Tensor, tokens: Tensor) -> Tensor:
        """The relevance of rows, [B, S, n_tables · width], in equal parts for the tokens that each row depends on: [B, S]."""
        check_tensor("tokens", tokens, ["B", "S"], INTEGER_DTYPES)
        check_tensor("relevance", relevance, [*tokens.shape, self.n_outputs], FLOATS)
        shifted = F.pad(tokens.long() + 1, (self.reach, 0))
        begins, S = begins_word(shifted), tokens.shape[1]
        found = relevance.new_zeros(len(tokens), S + self.reach)
        totals = relevance.unflatten(-1, (self.n_tables, self.width)).sum(-1)
        for table, (length, word) in enumerate(zip(*self.hashed, strict=True)):
            inside = torch.ones_like(tokens, dtype=torch.bool)
            members = []
            for i in range(length):
                at = slice(self.reach - i, self.reach - i + S)
                inside = inside & (shifted[:, at] > 0)
                members.append(inside)
                if word:
                    inside = inside & ~begins[:, at]
            part = totals[..., table] / torch.stack(members).sum(0)
            for i, member in enumerate(members):
                found[:, self.reach - i : self.reach - i + S] += part * member
        return found[:, self.reach :]

    def _drop_orders(self, rows: Tensor) -> Tensor:
        """rows [B, S, n_tables, width]: at some positions those of a random table, and of all after it, are zero."""
        places, n = rows.shape[:2], self.n_tables
        lost = torch.rand(places, device=rows.device) < self.order_dropout
        first = torch.where(lost, torch.randint(n, places, device=rows.device), n)
        keep = torch.arange(n, device=rows.device) < first[..., None]
        return rows * keep[..., None].to(rows.dtype)

    def extra_repr(self) -> str:
        word = ", word=True" if self.word else ""
        return f"orders={self.orders}{word}, n_rows={self.n_rows}, width={self.width}, gradient={self.gradient!r}"


NgramTables.__new__.__signature__ = inspect.signature(NgramTables.__init__)  # type: ignore[attr-defined]  # for help()


class _SparseNgramTables(NgramTables, nn.EmbeddingBag):  # type: ignore[misc]
    """Tables with sparse gradients, and an EmbeddingBag in name only: DistributedDataParallel detects these through
    `EmbeddingBag.sparse`."""

    sparse = property(lambda self: self.gradient == "sparse" and self.share is None)  # DDP is not given the weight of a share

    def _get_name(self) -> str:
        return "NgramTables"


def check_orders(orders: object, word: object) -> tuple[int, ...]:
    """Numbers of tokens from 1 to 16, ascending; none of them only where there is a table of words."""
    if not isinstance(orders, tuple | list):
        fail("orders", orders, "a list of numbers of tokens, such as [2, 3, 4]")
    for order in orders:
        check_int("an order", order, 1, MAX_ORDER)
    if list(orders) != sorted(set(orders)):
        fail("orders", orders, "different numbers in ascending order")
    if not isinstance(word, bool):
        fail("word", word, "True or False")
    if not orders and not word:
        fail("orders", orders, "at least one order, or word=True")
    return tuple(orders)


def ngram_tables(model: nn.Module) -> Iterator[NgramTables]:
    """The layers of n-gram tables in a model."""
    check_module("model", model)
    return (module for module in model.modules() if isinstance(module, NgramTables))


def _addresses_cpu(tokens: Tensor, past: Tensor, hash_: Hash, lengths: Tensor, words: Tensor) -> Tensor:
    from lutetia.nn.ngram import loops

    out = torch.empty(*tokens.shape, len(hash_.lengths), dtype=torch.int64)
    tensors = (tokens.contiguous(), past.contiguous(), lengths, words, hash_.multipliers)
    threads = torch.get_num_threads() if tokens.numel() > 4096 else 1
    spread(threads, len(tokens), loops.addresses, *(each.numpy() for each in tensors), hash_.n_rows, out.numpy())
    return out

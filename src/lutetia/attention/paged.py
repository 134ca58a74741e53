"""The paged KV cache: sequences grow page by page out of one pool, and may share the pages they have in common."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lutetia.attention.arguments import CACHES, INTEGERS, QUERIES, check_int
from lutetia.attention.reference import as_bytes, to_cache
from lutetia.errors import ArgumentError, check_memory, check_tensor, fail


@dataclass
class _Sequence:
    length: int = 0
    pages: list[int] = field(default_factory=list)


class PagedKVCache:
    """Keys and values of any number of sequences, in pages of `page_len` tokens.

    k, v               [n_pages, page_len, H_kv, d]
    k_scale, v_scale   None, or float32 [H_kv]: an 8-bit cache stores what `append` is given divided by them. Or
                       [n_pages, page_len, H_kv], as an int8 cache has from the start: `append` sets the scale of each token

    A sequence is known by a number that `allocate` or `fork` gave. A fork shares all pages of its parent; the first of the two to
    write into a page they share gets a copy of its own. `page_table` and `lengths` are what `decode_attention` takes.
    """

    def __init__(
        self,
        n_pages: int,
        page_len: int,
        n_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = {"n_pages": n_pages, "page_len": page_len, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
        for name, size in sizes.items():
            check_int(name, size, 1)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in CACHES:
            fail("dtype", dtype, "one of " + ", ".join(str(each).removeprefix("torch.") for each in CACHES))
        self.k = torch.zeros(n_pages, page_len, n_kv_heads, head_dim, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)
        scales = [torch.ones(self.k.shape[:3], device=device) for _ in range(2)] if dtype == torch.int8 else [None, None]
        self.k_scale: Tensor | None = scales[0]
        self.v_scale: Tensor | None = scales[1]
        self._users = [0] * n_pages  # sequences that hold each page
        self._free = list(range(n_pages))[::-1]
        self._sequences: dict[int, _Sequence] = {}
        self._next = 0

    @property
    def page_len(self) -> int:
        """How many tokens a page holds."""
        return self.k.shape[1]

    @property
    def n_free(self) -> int:
        """How many pages are free."""
        return len(self._free)

    @property
    def sequences(self) -> tuple[int, ...]:
        """All sequences, oldest first."""
        return tuple(self._sequences)

    # ---- sequences ---------------------------------------------------------------------------------------------------

    def allocate(self, length: int = 0) -> int:
        """A new, empty sequence, with pages set aside for `length` tokens."""
        check_int("length", length, 0)
        wanted = -(-length // self.page_len)
        self._check_free(wanted, f"a sequence of {length} tokens")
        return self._add(_Sequence(0, [self._take() for _ in range(wanted)]))

    def fork(self, sequence: int) -> int:
        """A new sequence with the tokens of another, whose pages it shares; pages set aside for later are not shared."""
        parent = self._get(sequence)
        pages = parent.pages[: -(-parent.length // self.page_len)]
        for page in pages:
            self._users[page] += 1
        return self._add(_Sequence(parent.length, pages))

    def free(self, sequence: int) -> None:
        """Free a sequence, and the pages that no other sequence holds."""
        pages = self._get(sequence).pages
        del self._sequences[sequence]
        for page in pages:
            self._drop(page)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all tokens of a sequence but the first `length`; empty pages that no other sequence holds are freed."""
        each = self._get(sequence)
        check_int("length", length, 0, each.length)
        needed = -(-length // self.page_len)
        for page in each.pages[needed:]:
            self._drop(page)
        each.pages, each.length = each.pages[:needed], length

    def append(self, sequences: Sequence[int], k_new: Tensor, v_new: Tensor, lengths: Tensor | None = None) -> None:
        """k_new, v_new [n, H_kv, s, d]: each of n sequences grows by s tokens, or by the first lengths[i] (integers [n]).

        If pages run out, an error is raised and nothing is changed.
        """
        new = self._check(sequences, k_new, v_new, lengths)
        found = [self._get(sequence) for sequence in sequences]
        copies, fresh = self._needed(found, new)
        self._check_free(copies + fresh, f"{sum(new)} more tokens")
        for each, count in zip(found, new, strict=True):
            self._make_room(each, count)
        row = [i for i, count in enumerate(new) for _ in range(count)]
        at = [position for count in new for position in range(count)]
        position = [found[i].length + offset for i, offset in zip(row, at, strict=True)]
        page = [found[i].pages[p // self.page_len] for i, p in zip(row, position, strict=True)]
        slot = [p % self.page_len for p in position]
        where = [torch.tensor(each, dtype=torch.long, device=self.k.device) for each in (page, slot, row, at)]
        for cache, tensor, factor in ((self.k, k_new, self.k_scale), (self.v, v_new, self.v_scale)):
            stored, scales = to_cache(tensor, cache.dtype, factor)
            as_bytes(cache)[where[0], where[1]] = as_bytes(stored)[where[2], :, where[3]]
            if scales is not None and factor is not None:
                factor[where[0], where[1]] = scales[where[2], :, where[3]]
        for each, count in zip(found, new, strict=True):
            each.length += count

    # ---- what decode_attention takes ---------------------------------------------------------------------------------

    def lengths(self, sequences: Sequence[int]) -> Tensor:
        """How many tokens each of n sequences has: int32 [n]."""
        found = [self._get(sequence).length for sequence in sequences]
        return torch.tensor(found, dtype=torch.int32, device=self.k.device)

    def page_table(self, sequences: Sequence[int]) -> Tensor:
        """The pages of n sequences: int32 [n, most pages], -1 past the last."""
        pages = [self._get(sequence).pages for sequence in sequences]
        widest = max(map(len, pages), default=0)
        padded = [row + [-1] * (widest - len(row)) for row in pages]
        return torch.tensor(padded, dtype=torch.int32, device=self.k.device).reshape(len(pages), widest)

    def prefix(self, sequences: Sequence[int], new: int = 0) -> int:
        """How many tokens at their start n sequences have in shared pages: `prefix` of `decode_attention`.

        The last `new` tokens of each, those of several queries, do not count: of one sequence alone they would.
        """
        check_int("new", new, 0)
        rows = [self._get(sequence) for sequence in sequences]
        numbers = zip(*(row.pages for row in rows), strict=False)
        pages = len(list(itertools.takewhile(lambda page: len(set(page)) == 1, numbers)))
        return min([pages * self.page_len, *(max(0, row.length - new) for row in rows)]) if rows else 0

    # ---- pages -------------------------------------------------------------------------------------------------------

    def _needed(self, found: list[_Sequence], new: list[int]) -> tuple[int, int]:
        """How many pages an append takes: copies of shared pages, and new pages."""
        users = self._users.copy()  # of two forks in one append only the first to write needs a copy
        copies = fresh = 0
        for each, count in zip(found, new, strict=True):
            fresh += max(0, -(-(each.length + count) // self.page_len) - len(each.pages))
            for page in self._written(each, count):
                if users[page] > 1:
                    users[page] -= 1
                    copies += 1
        return copies, fresh

    def _written(self, each: _Sequence, count: int) -> list[int]:
        """The pages it holds that `count` more tokens would be written into."""
        if not count:
            return []
        return each.pages[each.length // self.page_len : -(-(each.length + count) // self.page_len)]

    def _make_room(self, each: _Sequence, count: int) -> None:
        """Unshared pages for `count` more tokens."""
        for page in self._written(each, count):
            if self._users[page] > 1:
                own = self._take()
                for cache in (self.k, self.v):
                    as_bytes(cache)[own] = as_bytes(cache)[page]
                for factor in (self.k_scale, self.v_scale):
                    if factor is not None and factor.dim() == 3:
                        factor[own] = factor[page]
                each.pages[each.pages.index(page)] = own
                self._users[page] -= 1
        while len(each.pages) * self.page_len < each.length + count:
            each.pages.append(self._take())

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _drop(self, page: int) -> None:
        self._users[page] -= 1
        if not self._users[page]:
            self._free.append(page)

    def _add(self, sequence: _Sequence) -> int:
        number, self._next = self._next, self._next + 1  # never used again, so that a stale number is an error
        self._sequences[number] = sequence
        return number

    # ---- checks ------------------------------------------------------------------------------------------------------

    def _get(self, sequence: object) -> _Sequence:
        if sequence not in self._sequences:
            fail("sequence", sequence, f"one of the {len(self._sequences)} sequences in the cache")
        return self._sequences[sequence]

    def _check_free(self, wanted: int, what: str) -> None:
        if wanted > self.n_free:
            raise ArgumentError(
                f"the cache is full: {what} would take {wanted} pages and {self.n_free} of {len(self._users)} are free, "
                "expected enough: free a sequence, or make a larger cache"
            )

    def _check(self, sequences: Sequence[int], k_new: Any, v_new: Any, lengths: Any) -> list[int]:
        """How many tokens are new in each sequence."""
        for sequence in sequences:
            check_int("each of sequences", sequence, 0)
        if len(set(sequences)) != len(sequences):
            fail("sequences", list(sequences), "each sequence once")
        n, (_, _, n_kv_heads, head_dim) = len(sequences), self.k.shape
        check_tensor("k_new", k_new, [n, n_kv_heads, "s", head_dim], QUERIES, self.k.device)
        check_tensor("v_new", v_new, [n, n_kv_heads, k_new.shape[2], head_dim], QUERIES, self.k.device)
        if lengths is None:
            return [k_new.shape[2]] * n
        check_tensor("lengths", lengths, [n], INTEGERS)
        check_memory("lengths", lengths)
        new = lengths.tolist()
        for row, count in enumerate(new):
            if not 0 <= count <= k_new.shape[2]:
                raise ArgumentError(f"lengths has {count} in row {row}, expected 0 to {k_new.shape[2]}")
        return new

    def __repr__(self) -> str:
        used = len(self._users) - self.n_free
        return (
            f"PagedKVCache({len(self._sequences)} sequences, {used} of {len(self._users)} pages of {self.page_len} tokens in use)"
        )

"""The contiguous KV cache: a row of S_max slots for every sequence."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lutetia.attention.arguments import CACHES, INTEGERS, QUERIES, check_int
from lutetia.attention.reference import as_bytes, to_cache
from lutetia.errors import ArgumentError, check_memory, check_tensor, fail


class KVCache:
    """Keys and values of the tokens seen so far.

    k, v      [B, H_kv, S_max, d]
    lengths   int32 [B], on the device of k: how many slots of each row are live; `seq_lens` of `decode_attention`

    owner     the layer whose tokens they are, None until one claims the cache: another layer's tokens mean something else

    k_scale, v_scale   None, or float32 [H_kv]: an 8-bit cache stores keys and values divided by them; pass them to
                       `decode_attention` too. Or [B, H_kv, S_max], as an int8 cache has from the start: `append` sets the scale
                       of each token

    On CUDA the lengths are also counted on the host, so that appending does not wait for the device.
    """

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        max_length: int,
        head_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = {"batch": batch, "n_kv_heads": n_kv_heads, "max_length": max_length, "head_dim": head_dim}
        for name, size in sizes.items():
            check_int(name, size, 0 if name == "batch" else 1)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in CACHES:
            fail("dtype", dtype, "one of " + ", ".join(str(each).removeprefix("torch.") for each in CACHES))
        self.k = torch.zeros(batch, n_kv_heads, max_length, head_dim, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        scales = [torch.ones(self.k.shape[:3], device=device) for _ in range(2)] if dtype == torch.int8 else [None, None]
        self.k_scale: Tensor | None = scales[0]
        self.v_scale: Tensor | None = scales[1]
        self.owner: weakref.ref[nn.Module] | None = None
        self._counted: tuple[Tensor, int, list[int]] | None = None

    @property
    def max_length(self) -> int:
        """How many tokens a row has room for."""
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        """The bytes of keys and values."""
        return self.k.nbytes + self.v.nbytes

    @torch.no_grad()
    def append(self, k_new: Tensor, v_new: Tensor, lengths: Tensor | None = None) -> None:
        """k_new, v_new [B, H_kv, s, d]: each row grows by s tokens, or by the first lengths[b] of them (integers [B]).

        If a row would not fit, an error is raised and nothing is written.
        """
        new = self._check(k_new, v_new, lengths)
        before = self._host_lengths()
        for row, (old, more) in enumerate(zip(before, new, strict=True)):
            if old < 0:
                raise ArgumentError(f"lengths of the cache has {old} in row {row}, expected 0 to {self.max_length}")
            if old + more > self.max_length:
                raise ArgumentError(
                    f"the cache is full: row {row} holds {old} tokens and {more} more were given, "
                    f"expected no more than max_length {self.max_length} in total"
                )
        self._write(k_new, v_new, lengths, fits=all(old + k_new.shape[2] <= self.max_length for old in before))
        self.lengths += k_new.shape[2] if lengths is None else lengths.to(self.lengths)
        after = [old + more for old, more in zip(before, new, strict=True)]
        self._counted = (self.lengths, _version(self.lengths), after)

    def _write(self, k_new: Tensor, v_new: Tensor, lengths: Tensor | None, fits: bool) -> None:
        """Write the new tokens [B, H_kv, s, d] into the slots after the live ones."""
        of = torch.arange(k_new.shape[2], device=self.k.device).expand(len(self.lengths), -1)
        row = torch.arange(len(self.lengths), device=self.k.device)[:, None].expand_as(of)
        if not fits:  # padding without a slot; padding with one is written where no query looks
            assert lengths is not None
            row, of = torch.nonzero(of < lengths.to(of)[:, None], as_tuple=True)
        at = self.lengths[row].long() + of
        for cache, new, factor in ((self.k, k_new, self.k_scale), (self.v, v_new, self.v_scale)):
            stored, scales = to_cache(new, cache.dtype, factor)
            as_bytes(cache)[row, :, at] = as_bytes(stored)[row, :, of]
            if scales is not None and factor is not None:
                factor[row, :, at] = scales[row, :, of]

    def reset(self, rows: Tensor | Sequence[int] | None = None) -> None:
        """Forget all tokens, or those of some rows: integers [n], a list of them, or a bool tensor [B]."""
        if rows is None:
            self.lengths.zero_()
            self.owner = None
            return
        try:
            index = torch.as_tensor(rows, device=self.lengths.device)
        except (TypeError, ValueError, RuntimeError):
            fail("rows", rows, "whole numbers, or a bool tensor [B]")
        if index.numel() and index.dtype not in (torch.bool, torch.uint8, torch.int8, torch.int16, *INTEGERS):
            fail("rows", index, "whole numbers, or a bool tensor [B]")
        if index.dtype == torch.bool:
            check_tensor("rows", index, [len(self.lengths)])
        else:
            index = index.long()
            check_tensor("rows", index, ["n"])
            outside = (index < 0) | (index >= len(self.lengths))
            if bool(outside.any()):
                fail("rows", index.tolist(), f"rows from 0 to {len(self.lengths) - 1}")
        self.lengths[index] = 0

    def _check(self, k_new: Any, v_new: Any, lengths: Any) -> list[int]:
        """How many tokens are new in each row."""
        check_tensor("k of the cache", self.k, ["B", "n_kv_heads", "max_length", "head_dim"], CACHES)
        check_tensor("v of the cache", self.v, list(self.k.shape), self.k.dtype, self.k.device)
        check_tensor("lengths of the cache", self.lengths, [len(self.k)], INTEGERS, self.k.device)
        for name, tensor in (("k", self.k), ("v", self.v), ("lengths", self.lengths)):
            if not tensor.is_contiguous() or tensor.is_meta:
                fail(f"{name} of the cache", tensor, "a contiguous tensor, as it was made")
        batch, n_kv_heads, _, head_dim = self.k.shape
        for name, tensor in (("k_new", k_new), ("v_new", v_new)):
            check_tensor(name, tensor, [batch, n_kv_heads, "s", head_dim], QUERIES, self.k.device)
        s = k_new.shape[2]
        check_tensor("v_new", v_new, [batch, n_kv_heads, s, head_dim])
        if lengths is None:
            return [s] * batch
        check_tensor("lengths", lengths, [batch], INTEGERS)
        check_memory("lengths", lengths)
        new = lengths.tolist()
        for row, count in enumerate(new):
            if not 0 <= count <= s:
                raise ArgumentError(f"lengths has {count} in row {row}, expected 0 to {s}")
        return new

    def _host_lengths(self) -> list[int]:
        """The lengths, read from the device only when something other than `append` changed them."""
        if self._counted is not None and self.lengths.is_cuda:
            tensor, version, lengths = self._counted
            if tensor is self.lengths and version == _version(tensor):
                return lengths
        return self.lengths.tolist()

    def __repr__(self) -> str:
        batch, n_kv_heads, max_length, head_dim = self.k.shape
        dtype = str(self.k.dtype).removeprefix("torch.")
        return f"KVCache({batch}, {n_kv_heads}, {max_length}, {head_dim}, dtype={dtype}, lengths={self.lengths.tolist()})"


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; inference tensors keep no such count, and then lengths are read each time."""
    return next(_never) if tensor.is_inference() else tensor._version


_never = itertools.count(-1, -1)

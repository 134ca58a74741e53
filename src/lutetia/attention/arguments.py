"""The arguments of a decode attention call, checked once for every executor.

B batch · H_q query heads · H_kv key heads · G = H_q / H_kv · s_active new tokens · d head dimension · S_max slots of a cache row.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lutetia
from lutetia.errors import ArgumentError, check_choice, check_range, check_tensor, fail

SHARDS = ("auto", "batch", "sequence")
SYNCS = ("lse", "deferred", "lockstep")
MAX_CORES = 4096
LARGEST_FLOAT = torch.finfo(torch.float32).max
BACKENDS = ("auto", "reference", "cores", "cpu", "triton")
POLICIES = ("cost", "neuron")
MAX_ACTIVE = 4096
FEW_ACTIVE = 8  # new tokens for which a cache is read here rather than in `prefill`, where there is a choice
MAX_TREE = 64  # new tokens of a tree: the bits of an integer
MAX_HEAD_DIM = 256
MAX_LATENT_DIM = 576  # of keys whose first numbers are the values
QUERIES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
EIGHT_BITS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}  # and the largest numbers
CACHES = (*QUERIES, *EIGHT_BITS)
INTEGERS = (torch.int32, torch.int64)
LARGEST = 2**31 - 1  # position: the executors count in int32


class Prefix(NamedTuple):
    """The positions that all rows of a batch share at their start, read once, from row 0 of these tensors."""

    length: int
    k: Tensor  # [B, H_kv, S_max, d], or pages
    v: Tensor
    page_table: Tensor | None = None  # int32 [B, max_pages]
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


class DecodeCall(NamedTuple):
    """The tensors of one call, checked to fit each other."""

    q: Tensor  # [B, H_q, s_active, d]
    k_cache: Tensor  # [B, H_kv, S_max, d], or pages [n_pages, page_len, H_kv, d]
    v_cache: Tensor  # the same shape except for its width, d_v; it may be the first d_v numbers of each key
    seq_lens: Tensor  # int32 [B]: live length, the new tokens included
    k_new: Tensor | None = None  # [B, H_kv, s_active, d], to be written into the last s_active live slots
    v_new: Tensor | None = None
    scale: float = 1.0
    window: int | None = None
    sink: Tensor | None = None  # [H_q]
    page_table: Tensor | None = None  # int32 [B, max_pages]
    k_scale: Tensor | None = None  # float32 [H_kv], or as the cache without d: what its numbers are multiplied with
    v_scale: Tensor | None = None
    starts: Tensor | None = None  # int32 [B]: the first position of each row that counts, as after padding on the left
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    prefix: Prefix | None = None
    alibi: Tensor | None = None  # float32 [H_q]: a key at distance n from its query loses alibi · n of its score
    rotary: Tensor | None = None  # float32 [2, n_positions, r]: cosines and sines that turn queries and new keys, 2r <= d
    tree: Tensor | None = None  # int64 [B, s_active]: bit j of a says whether new token a sees new token j

    @property
    def batch(self) -> int:
        """B."""
        return self.q.shape[0]

    @property
    def n_q_heads(self) -> int:
        """H_q."""
        return self.q.shape[1]

    @property
    def n_kv_heads(self) -> int:
        """H_kv."""
        return self.k_cache.shape[1 if self.page_table is None else 2]

    @property
    def group(self) -> int:
        """G: how many query heads read one key head."""
        return self.n_q_heads // self.n_kv_heads

    @property
    def s_active(self) -> int:
        """How many new tokens there are."""
        return self.q.shape[2]

    @property
    def head_dim(self) -> int:
        """d."""
        return self.q.shape[3]

    @property
    def value_dim(self) -> int:
        """d_v: the width of a value, and of the output."""
        return self.v_cache.shape[3]

    @property
    def shared(self) -> bool:
        """Whether the values are the first elements of the keys, as in the absorbed form of latent attention."""
        return shares(self.k_cache, self.v_cache)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """[B, H_q, s_active, d_v]."""
        return (*self.q.shape[:-1], self.v_cache.shape[3])

    @property
    def page_len(self) -> int:
        """Slots of one page; of the whole row where there are no pages."""
        return self.k_cache.shape[2 if self.page_table is None else 1]

    @property
    def capacity(self) -> int:
        """How many positions a row has room for: S_max, or those of all its pages."""
        return self.page_len if self.page_table is None else self.page_table.shape[1] * self.page_len

    @property
    def ring(self) -> bool:
        """Whether position p lives in slot p mod S_max: a window needs no more slots than it sees."""
        return self.window is not None and self.page_table is None and self.window + self.s_active - 1 <= self.capacity

    @property
    def statistics_dtype(self) -> torch.dtype:
        """The dtype of maxima, sums and lse: float32, or float64 for float64 queries."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32


OPTIONS = DecodeCall._fields[4:]  # the keyword arguments of `check_call`
NOT_GIVEN: dict[str, Any] = dict.fromkeys(OPTIONS)


def check_call(q: Any, k_cache: Any, v_cache: Any, seq_lens: Any, *new: Any, **options: Any) -> DecodeCall:
    """The arguments of `decode_attention` as a DecodeCall; shapes and names as there. Nothing is changed."""
    if not options.keys() <= NOT_GIVEN.keys():
        raise TypeError(f"decode attention has no argument {min(options.keys() - NOT_GIVEN.keys())!r}")
    given = NOT_GIVEN | dict(zip(OPTIONS, new, strict=False)) | options
    check_tensor("q", q, ["B", "H_q", "s_active", "d"], QUERIES)
    batch, n_q_heads, s_active, head_dim = q.shape
    if not 1 <= s_active <= MAX_ACTIVE:
        fail("q", q, f"1 to {MAX_ACTIVE} new tokens (s_active) in [B, H_q, s_active, d]; see prefill for more")
    if not 1 <= head_dim <= MAX_LATENT_DIM:
        fail("q", q, f"a head dimension from 1 to {MAX_HEAD_DIM}, or {MAX_LATENT_DIM} where values are part of the keys")
    n_kv_heads = _check_caches(q, k_cache, v_cache, given["page_table"])
    if shares(k_cache, v_cache):
        _share(given, v_cache.shape[3])
    elif head_dim > MAX_HEAD_DIM:
        fail("q", q, f"a head dimension from 1 to {MAX_HEAD_DIM}: v_cache is not part of k_cache")
    if n_kv_heads < 1 or n_q_heads % n_kv_heads:
        raise ArgumentError(f"q has {n_q_heads} heads and the cache {n_kv_heads}, expected a multiple of the cache's heads")
    check_tensor("seq_lens", seq_lens, [batch], INTEGERS, q.device)
    _check_new(q, (n_kv_heads, v_cache.shape[3]), given["k_new"], given["v_new"])
    if given["sink"] is not None:
        check_tensor("sink", given["sink"], [n_q_heads], QUERIES, q.device)
    if given["alibi"] is not None:
        check_tensor("alibi", given["alibi"], [n_q_heads], QUERIES, q.device)
        given["alibi"] = given["alibi"].float().contiguous()
    softcap = given["softcap"]
    if softcap is not None:
        check_range("softcap", softcap, math.ulp(0.0), LARGEST_FLOAT)
    given |= {
        "scale": _scale(given["scale"], head_dim),
        "window": _window(given["window"]),
        "k_scale": _factor("k_scale", given["k_scale"], k_cache, n_kv_heads),
        "v_scale": _factor("v_scale", given["v_scale"], k_cache, n_kv_heads),
        "starts": _starts(given["starts"], q),
        "softcap": None if softcap is None else float(softcap),
        "rotary": _rotary(given["rotary"], q),
        "tree": _tree(given, q),
    }
    call = DecodeCall(q, k_cache, v_cache, narrow("seq_lens", seq_lens), **given)
    if call.rotary is not None and call.value_dim < head_dim:
        raise ArgumentError(f"rotary is given and values have {call.value_dim} elements, expected {head_dim}, as many as keys")
    return call if call.prefix is None else call._replace(prefix=_prefix(call, given["prefix"]))


def shares(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether values are the first elements of the keys: a narrower view of the same memory."""
    same = k_cache.data_ptr() == v_cache.data_ptr() and k_cache.stride() == v_cache.stride()
    return same and v_cache.shape[3] < k_cache.shape[3] and k_cache.numel() > 0


def _share(given: dict[str, Any], width: int) -> None:
    """Values and their scale follow from the keys', which share their memory."""
    if given["v_scale"] is not None and given["v_scale"] is not given["k_scale"]:
        fail("v_scale", given["v_scale"], "k_scale alone: values are part of the keys")
    given["v_scale"] = given["k_scale"]
    if given["k_new"] is not None:
        check_tensor("k_new", given["k_new"], ["B", "H_kv", "s_active", "d"], QUERIES)
        given["v_new"] = given["k_new"][..., :width]


def _check_new(q: Tensor, sizes: tuple[int, int], k_new: object, v_new: object) -> None:
    if (k_new is None) != (v_new is None):
        fail("v_new" if v_new is None else "k_new", None, "a tensor, since the other of the two is given")
    for name, new in (("k_new", k_new), ("v_new", v_new)):
        if new is not None:
            width = sizes[1] if name == "v_new" else q.shape[3]
            check_tensor(name, new, [q.shape[0], sizes[0], q.shape[2], width], QUERIES, q.device)


def _window(window: Any) -> int | None:
    if window is None:
        return None
    window = min(window, LARGEST) if isinstance(window, int) else window  # larger than any position is the same
    check_int("window", window, 1)
    return window


def _starts(starts: Any, q: Tensor) -> Tensor | None:
    if starts is None:
        return None
    check_tensor("starts", starts, [q.shape[0]], INTEGERS, q.device)
    return narrow("starts", starts)


def _rotary(rotary: Any, q: Tensor) -> Tensor | None:
    if rotary is None:
        return None
    check_tensor("rotary", rotary, [2, "n_positions", "r"], QUERIES, q.device)
    if not (rotary.shape[1] and 1 <= rotary.shape[2] <= q.shape[3] // 2):
        fail("rotary", rotary, f"at least one position, and 1 to {q.shape[3] // 2} pairs of the {q.shape[3]} elements of a head")
    return angles_of(rotary, q)


def angles_of(rotary: Tensor, q: Tensor) -> Tensor:
    """Rotary angles as the executors take them; float64 where the queries are."""
    return rotary.to(torch.promote_types(q.dtype, torch.float32)).contiguous()


def _tree(given: dict[str, Any], q: Tensor) -> Tensor | None:
    tree, (batch, _, s_active, _) = given["tree"], q.shape
    if tree is None:
        return None
    check_tensor("tree", tree, dtype=(torch.bool, torch.int64), device=q.device)
    shapes = [[batch, s_active]] if tree.dtype == torch.int64 else [[s_active, s_active], [batch, s_active, s_active]]
    if list(tree.shape) not in shapes:
        fail("tree", tree, f"shape {' or '.join(map(str, shapes))}")
    if s_active > MAX_TREE:
        fail("tree", tree, f"at most {MAX_TREE} new tokens")
    for name in ("window", "alibi", "rotary"):
        if given[name] is not None:
            raise ArgumentError(f"tree and {name} are both given, expected one of them: in a tree a slot is not a position")
    return tree_bits(tree, batch)


def tree_bits(tree: Tensor, batch: int) -> Tensor:
    """tree bool [(B,) s_active, s_active] -> int64 [B, s_active]: bit j of a is tree[.., a, j]; int64 is that already."""
    if tree.dtype == torch.int64:
        return tree.contiguous()
    powers = torch.arange(tree.shape[-1], device=tree.device)
    return (tree.long() << powers).sum(-1).expand(batch, -1).contiguous()


def _prefix(call: DecodeCall, length: Any) -> Prefix | None:
    """A prefix of this many positions, in row 0 of the cache."""
    check_int("prefix", length, 0, call.capacity)
    for name, value in (("window", call.window), ("starts", call.starts)):
        if value is not None:
            raise ArgumentError(f"prefix and {name} are both given, expected one of them: with both, rows see different prefixes")
    return prefix_of(call, length) if call.batch else None


def prefix_of(call: DecodeCall, length: int) -> Prefix | None:
    """The first `length` positions, or None for none of them."""
    return Prefix(length, call.k_cache, call.v_cache, call.page_table, call.k_scale, call.v_scale) if length else None


def check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Check a whole number; a bool is not one."""
    if not isinstance(value, int) or isinstance(value, bool):
        fail(name, value, "a whole number")
    check_range(name, value, low, high)
    if value >= 2**63:
        fail(name, value, "a whole number of 64 bits")


class RunOptions(NamedTuple):
    """How a call is to run: the options of `decode_attention` that do not change its result."""

    cores: int
    shard: str
    sync: str
    backend: str
    batch_invariant: bool
    policy: str


def check_how(how: RunOptions) -> None:
    """Check the options that say how a call is to run."""
    check_int("cores", how.cores, 1, MAX_CORES)
    check_choice("shard", how.shard, SHARDS)
    check_choice("sync", how.sync, SYNCS)
    check_choice("backend", how.backend, BACKENDS)
    check_choice("policy", how.policy, POLICIES)
    if not isinstance(how.batch_invariant, bool):
        fail("batch_invariant", how.batch_invariant, "True or False")


def _may_read(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor may be checked: on a device only when `lutetia.debug` is on, since that waits for it."""
    return not tensor.is_cuda or (lutetia.debug and not torch.cuda.is_current_stream_capturing())


def narrow(name: str, positions: Tensor) -> Tensor:
    """Positions [B] as int32; one that does not fit would come out as another position."""
    if positions.dtype == torch.int32:
        return positions
    if _may_read(positions):
        for row, position in enumerate(positions.tolist()):
            if not -LARGEST <= position <= LARGEST:
                raise ArgumentError(f"{name} has {position} in row {row}, expected 0 to {LARGEST}")
    return positions.to(torch.int32)


def check_values(call: DecodeCall) -> None:
    """The checks that read tensors, where they may be read."""
    if not _may_read(call.seq_lens):
        return
    lengths, most = call.seq_lens.tolist(), math.inf if call.ring else call.capacity
    for row, length in enumerate(lengths):
        if not 0 <= length <= most:
            ring = "" if call.window is None else " (a window of up to capacity - s_active + 1 may run over: see ring caches)"
            raise ArgumentError(f"seq_lens has {length} in row {row}, expected 0 to {call.capacity}{ring}")
    starts = [0] * len(lengths) if call.starts is None else call.starts.tolist()
    for row, start in enumerate(starts):
        if start < 0:
            raise ArgumentError(f"starts has {start} in row {row}, expected 0 or more")
    if call.prefix is not None:
        check_prefix(call, call.prefix.length)
    if call.rotary is not None and max(lengths, default=0) > call.rotary.shape[1]:
        raise ArgumentError(
            f"rotary has {call.rotary.shape[1]} positions and seq_lens {max(lengths)}, expected as many as are live"
        )
    if call.page_table is not None:
        _check_pages(call, call.page_table, lengths, starts)


def check_prefix(call: DecodeCall, prefix: int) -> None:
    """Check that every row is empty, or long enough for all its queries to see a prefix of this length."""
    # The first query may be the last position of the prefix, unless it is written now, or a tree says who sees it.
    least = prefix + call.s_active - (call.k_new is None and call.tree is None)
    for row, length in enumerate(call.seq_lens.tolist() if prefix and _may_read(call.seq_lens) else []):
        if 0 < length < least:
            raise ArgumentError(f"seq_lens has {length} in row {row}, expected 0, or {least} or more for the prefix to be seen")


def first_seen(call: DecodeCall, length: int, start: int = 0) -> int:
    """The first position that any query of a row of this length sees, where its positions count from `start` on."""
    return start if call.window is None else max(start, length - call.s_active - call.window + 1)


def _check_pages(call: DecodeCall, page_table: Tensor, lengths: list[int], starts: list[int]) -> None:
    n_pages = call.k_cache.shape[0]
    for row, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        first, shared = first_seen(call, length, start), 0 if call.prefix is None else call.prefix.length
        first, stop = (max(first, shared), length) if row else (first, max(shared, length))
        first //= call.page_len
        used = page_table[row, first : -(-stop // call.page_len)]
        wrong = (used < 0) | (used >= n_pages)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            raise ArgumentError(
                f"page_table has {int(used[at])} in row {row}, entry {first + at}, which is live, expected 0 to {n_pages - 1}"
            )


def _check_caches(q: Tensor, k_cache: Any, v_cache: Any, page_table: Any) -> int:
    """Check the caches; returns H_kv."""
    batch, _, _, head_dim = q.shape
    if page_table is None:
        check_tensor("k_cache", k_cache, [batch, "H_kv", "S_max", head_dim], CACHES, q.device)
        n_kv_heads = k_cache.shape[1]
    else:
        check_tensor("k_cache", k_cache, ["n_pages", "page_len", "H_kv", head_dim], CACHES, q.device)
        check_tensor("page_table", page_table, [batch, "max_pages"], torch.int32, q.device)
        n_kv_heads = k_cache.shape[2]
        if k_cache.shape[1] < 1:
            fail("k_cache", k_cache, "pages of at least one slot")
    check_tensor("v_cache", v_cache, [*k_cache.shape[:3], "d_v"], k_cache.dtype, q.device)
    if not 1 <= v_cache.shape[3] <= k_cache.shape[3]:
        fail("v_cache", v_cache, f"values of 1 to {k_cache.shape[3]} elements, no wider than the keys")
    return n_kv_heads


def _scale(scale: float | None, head_dim: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    check_range("scale", scale, -LARGEST_FLOAT, LARGEST_FLOAT)
    return float(scale)


def _factor(name: str, value: Any, cache: Tensor, n_kv_heads: int) -> Tensor | None:
    """A number, or a tensor of one or H_kv numbers, as float32 [H_kv]; per-token scales unchanged."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        check_tensor(name, value, dtype=QUERIES, device=cache.device)
        if value.dim() == 3:
            _check_token_scales(name, value, cache)
        elif value.dim() > 1 or value.numel() not in (1, n_kv_heads):
            fail(name, value, f"one number, shape [{n_kv_heads}], one for each head of the cache, or {list(cache.shape[:3])}")
        return factor_of(value, n_kv_heads)
    check_range(name, value, -LARGEST_FLOAT, LARGEST_FLOAT)
    return torch.full((n_kv_heads,), float(value), device=cache.device)


def _check_token_scales(name: str, value: Tensor, cache: Tensor) -> None:
    check_tensor(name, value, list(cache.shape[:3]), torch.float32)
    if cache.dtype not in EIGHT_BITS:
        fail(name, value, f"one scale for each head: per-token scales are for 8-bit caches, and this one is {cache.dtype}")


def factor_of(value: Tensor, n_kv_heads: int) -> Tensor:
    """A tensor of one or H_kv numbers as float32 [H_kv]; per-token scales unchanged, because they are written to."""
    return value if value.dim() == 3 else value.to(torch.float32).expand(n_kv_heads).contiguous()

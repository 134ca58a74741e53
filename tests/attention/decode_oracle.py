"""Decode attention once more, in float64 and one query at a time: what every executor is compared with.

It shares no line with the package: keys are fetched by position into lists, and the softmax is written out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

NAN = float("nan")


@dataclass
class Case:
    """The arguments of one call, on the CPU; `arguments` are the keyword arguments of decode_attention."""

    q: Tensor
    k: Tensor
    v: Tensor
    arguments: dict[str, Any] = field(default_factory=dict)

    def to(self, device: str) -> Case:
        """A copy of every tensor, there."""
        moved = {name: value.clone().to(device) if isinstance(value, Tensor) else value for name, value in self.arguments.items()}
        k = self.k.clone().to(device)
        shared = self.v.data_ptr() == self.k.data_ptr()  # as a view of the keys it stays one
        return Case(self.q.to(device), k, k[..., : self.v.shape[3]] if shared else self.v.clone().to(device), moved)


def make(
    batch: int = 2,
    n_q_heads: int = 4,
    n_kv_heads: int = 2,
    s_active: int = 1,
    head_dim: int = 32,
    capacity: int = 150,
    lengths: tuple[int, ...] = (150, 37),
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    new: bool = False,
    window: int | None = None,
    sink: float | None = None,
    page_len: int = 0,
    scale: float | None = None,
    starts: tuple[int, ...] | None = None,
    softcap: float | None = None,
    prefix: int | None = None,
    alibi: float | None = None,
    turned: int = 0,
    tree: int | None = None,
    value_dim: int | None = None,
    shared: int | None = None,
    dead: float = NAN,
    spread: float = 1.0,
    seed: int = 0,
) -> Case:
    """Random tensors; `dead` fills every slot, and every page, that no live position has; `sink` is the size of the sinks."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).mul_(spread).to(of)

    q = random(batch, n_q_heads, s_active, head_dim)
    arguments: dict[str, Any] = {"seq_lens": torch.tensor(lengths, dtype=torch.int32), "window": window, "scale": scale}
    if starts is not None:
        arguments["starts"] = torch.tensor(starts, dtype=torch.int32)
    if softcap is not None:
        arguments["softcap"] = softcap
    if prefix is not None:
        arguments["prefix"] = prefix
    if alibi is not None:
        arguments["alibi"] = alibi * torch.rand(n_q_heads, generator=generator)
    if turned:
        arguments["rotary"] = torch.randn(2, max(lengths), turned, generator=generator)
    if tree is not None:  # of so many dimensions
        arguments["tree"] = torch.rand(*([batch] if tree == 3 else []), s_active, s_active, generator=generator) < 0.5
    if sink is not None:
        arguments["sink"] = sink * torch.randn(n_q_heads, generator=generator).sign()
    if new:
        arguments["k_new"], arguments["v_new"] = (random(batch, n_kv_heads, s_active, head_dim) for _ in range(2))
        arguments["v_new"] = arguments["k_new"][..., :shared] if shared else arguments["v_new"][..., :value_dim]
    n_pages = 0 if not page_len else -(-capacity // page_len)
    pool = batch * n_pages + 3
    shape = (pool, page_len, n_kv_heads, head_dim) if page_len else (batch, n_kv_heads, capacity, head_dim)
    cache_dtype = dtype if cache_dtype is None else cache_dtype
    k, v = (torch.full(shape, dead, dtype=torch.float64) for _ in range(2))
    if page_len:
        pages = torch.randperm(pool, generator=generator)[: batch * n_pages].reshape(batch, n_pages).int()
        for b, length in enumerate(lengths):
            pages[b, -(-max(length, 0 if b else prefix or 0) // page_len) :] = -1  # nobody may follow these
            pages[b, : (prefix or 0) // page_len if b else 0] = -1
        arguments["page_table"] = pages
    for cache in (k, v):
        for b, length in enumerate(lengths):
            first = (prefix or 0) if b else 0  # row 0 alone has it
            for p in range(
                first if starts is None else starts[b], max(length - (s_active if new else 0), 0 if b else prefix or 0)
            ):
                row = random(n_kv_heads, head_dim, of=torch.float64)
                if page_len:
                    cache[arguments["page_table"][b, p // page_len], p % page_len] = row
                else:
                    cache[b, :, p % capacity] = row
    k, v = k.to(cache_dtype), v.to(cache_dtype)
    return Case(q, k, k[..., :shared] if shared else v[..., :value_dim], arguments)


def with_token_scales(case: Case, dtype: torch.dtype) -> Case:
    """The case with a cache of 8 bits in which each token has a scale of its own; NaN where there is no token."""
    limit = 127 if dtype == torch.int8 else 57344
    scales = [cache.abs().amax(-1) / limit for cache in (case.k, case.v)]
    arguments = {**case.arguments, "k_scale": scales[0], "v_scale": scales[1]}
    k, v = (cache / scale[..., None] for cache, scale in zip((case.k, case.v), scales, strict=True))
    k, v = ((cache.nan_to_num().round() if dtype == torch.int8 else cache).to(dtype) for cache in (k, v))
    for name in ("k_new", "v_new"):  # on the grid: Triton's interpreter cuts off instead of rounding
        if dtype == torch.float8_e5m2 and name in arguments:
            scale = arguments[name].abs().amax(-1, keepdim=True) / limit
            arguments[name] = (arguments[name] / scale).to(dtype).float() * scale
    return Case(case.q, k, v, arguments)


def expected(case: Case) -> tuple[Tensor, Tensor]:
    """out and lse in float64; the case is not changed."""
    q, k, v = case.q.double(), case.k.double(), case.v.double()
    given = case.arguments
    batch, n_q_heads, s_active, head_dim = q.shape
    table, window, sink = given.get("page_table"), given.get("window"), given.get("sink")
    n_kv_heads = k.shape[1] if table is None else k.shape[2]
    scale, softcap = given.get("scale"), given.get("softcap")
    scale = 1 / math.sqrt(head_dim) if scale is None else scale

    def fetch(cache: Tensor, new: Tensor | None, factor: Any, b: int, h: int, p: int, length: int) -> Tensor:
        if isinstance(factor, Tensor) and factor.dim() == 3:
            return fetch_token(cache, new, factor, b, h, p, length)
        factor = 1.0 if factor is None else float(factor[h]) if isinstance(factor, Tensor) else factor
        if new is not None and p >= length - s_active:
            brought = new[b, h, p - (length - s_active)].double()
            brought = turn(brought, given.get("rotary"), p) if new is given["k_new"] else brought
            return (brought / factor).to(case.k.dtype).double() * factor
        b = 0 if p < given.get("prefix", 0) else b
        if table is None:
            return cache[b, h, p % cache.shape[2]] * factor
        return cache[table[b, p // cache.shape[1]], p % cache.shape[1], h] * factor

    def fetch_token(cache: Tensor, new: Tensor | None, factor: Tensor, b: int, h: int, p: int, length: int) -> Tensor:
        """With a scale of its own, which a new token chooses so that its largest number just fits."""
        if new is not None and p >= length - s_active:
            brought = new[b, h, p - (length - s_active)].double()
            scale = float(brought.abs().max()) / {torch.int8: 127, torch.float8_e5m2: 57344}[case.k.dtype]
            stored = (brought / scale).round() if case.k.dtype == torch.int8 else (brought / scale).to(case.k.dtype).double()
            return stored * scale
        b = 0 if p < given.get("prefix", 0) else b
        place = (b, h, p % cache.shape[2]) if table is None else (table[b, p // cache.shape[1]], p % cache.shape[1], h)
        return cache[place] * float(factor[place])

    out, lse = (
        torch.zeros(*q.shape[:-1], v.shape[3], dtype=torch.float64),
        torch.full(q.shape[:-1], -math.inf, dtype=torch.float64),
    )
    for b in range(batch):
        length = int(given["seq_lens"][b])
        start = int(given["starts"][b]) if "starts" in given else 0
        for head in range(n_q_heads):
            h = head // (n_q_heads // n_kv_heads)
            for a in range(s_active):
                at = length - s_active + a
                seen = [p for p in range(start, at + 1) if window is None or p > at - window]
                if given.get("tree") is not None:
                    sees = given["tree"].expand(batch, -1, -1)[b, a]
                    seen = [p for p in range(start, length) if p < length - s_active or sees[p - (length - s_active)]]
                    seen = [p for p in seen if p >= 0]
                query = turn(q[b, head, a], given.get("rotary"), at)
                keys = [fetch(k, given.get("k_new"), given.get("k_scale"), b, h, p, length) for p in seen]
                values = [fetch(v, given.get("v_new"), given.get("v_scale"), b, h, p, length) for p in seen]
                scores = [scale * float(query @ key) for key in keys]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                if "alibi" in given:
                    slope = float(given["alibi"][head])
                    scores = [score - slope * (at - p) for score, p in zip(scores, seen, strict=True)]
                logits = scores + ([] if sink is None else [float(sink[head])])
                if not logits:
                    continue
                top = max(logits)
                total = sum(math.exp(score - top) for score in logits)
                lse[b, head, a] = top + math.log(total)
                for score, value in zip(scores, values, strict=True):
                    out[b, head, a] += math.exp(score - top) / total * value
    return out, lse


def turn(x: Tensor, rotary: Tensor | None, position: int) -> Tensor:
    """x [d] as complex numbers i and i + r, times those of its position."""
    if rotary is None or position < 0:
        return x
    r = rotary.shape[2]
    angle = torch.complex(*rotary[:, position].double())
    both = torch.complex(x[:r], x[r : 2 * r]) * angle
    return torch.cat([both.real, both.imag, x[2 * r :]])

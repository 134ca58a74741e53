"""FlashInfer as a peer of `decode_attention`, where it is installed; without it the tables have no columns of it.

It reads the same tensors: pages as they are, and a contiguous cache as pages of 64, which is a view. It is planned outside of the
timing, as its documentation says. Of its kernels (on CUDA cores, on tensor cores, XQA) the fastest counts, row by row. One whose
output differs from ours by more than `TOLERANCE`, or that does not run, is not timed; `LEFT_OUT` says which and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from results import Row, peer, progress

try:
    import flashinfer
except ImportError:
    flashinfer = None

Call = Callable[[Tensor, Tensor], Tensor]  # attention over the keys and values that it is given
Capture = Callable[[Any, Call], Any]
# ‖theirs − ours‖ / ‖ours‖. A wrong key gives about 1; XQA rounds queries and weights to 8 bits, too, where the cache has 8.
TOLERANCE = {torch.bfloat16: 0.01, torch.float8_e4m3fn: 0.1}
LEFT_OUT: list[str] = []
KEPT: list[Call] = []  # a graph knows addresses only: what it reads must live as long as it does
DIFFERENCES: dict[str, float] = {}  # the largest one by dtype
PAGE, WORKSPACE = 64, 256 << 20


class Pages(NamedTuple):
    """Where the keys of every row are."""

    table: Tensor  # int32 [B, pages of the longest row]
    size: int
    layout: str  # of a cache: NHD [pages, size, heads, d], HND [pages, heads, size, d]

    def heads(self, k: Tensor) -> int:
        return k.shape[self.layout.index("H") + 1]

    def rows(self, lengths: Tensor) -> list[Tensor]:
        """As FlashInfer wants them: the first page of every row in a list, that list, and the keys in every last page."""
        counts = (lengths + self.size - 1) // self.size
        first = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        listed = self.table[torch.arange(self.table.shape[1], device=lengths.device) < counts[:, None]]
        return [each.int() for each in (first, listed, lengths - (counts - 1) * self.size)]


def in_pages(contiguous: Tensor, size: int = PAGE) -> Tensor:
    """A cache [B, H_kv, S, d] as overlapping pages [*, H_kv, size, d] of the same memory."""
    batch, heads, length, d = contiguous.shape
    n_pages = ((batch - 1) * heads + 1) * length // size
    return contiguous.as_strided((n_pages, heads, size, d), (size * d, length * d, d, 1))


def pages_of(contiguous: Tensor, size: int = PAGE) -> Pages:
    """Which of the pages that `in_pages` makes are whose."""
    batch, heads, length, _ = contiguous.shape
    starts = torch.arange(batch, device=contiguous.device) * (heads * length // size)
    table = starts[:, None] + torch.arange(length // size, device=contiguous.device)
    return Pages(table.int(), size, "HND")


def described() -> list[dict[str, Any]]:
    """The entry in `peers`: the version, and what was left out; or that it is not installed."""
    if flashinfer is None:
        return [peer("FlashInfer", mode="not installed, so not measured")]
    told = ["planned outside of the timing; the fastest of its kernels on CUDA cores, on tensor cores, and XQA"]
    return [{**peer("FlashInfer", mode="; left out: ".join(told + LEFT_OUT)), "version": flashinfer.__version__}]


def ways(
    where: str, calls: dict[str, Callable[[], Call]], caches: Any, expected: Tensor, captured: Capture
) -> dict[str, list[Any]]:
    """Graphs of the calls that give what we give, [B, H_q, d], by name."""
    found: dict[str, list[Any]] = {}
    for name, make in calls.items():
        try:
            call, dtype = make(), caches[0][0].dtype
            difference = float((call(*caches[0]).float() - expected.float()).norm() / expected.float().norm())
            if not difference <= TOLERANCE[dtype]:
                raise ValueError(f"differs from ours by {difference:.1%} (at most {TOLERANCE[dtype]:.0%})")
            key = str(dtype).removeprefix("torch.")
            DIFFERENCES[key] = max(difference, DIFFERENCES.get(key, 0.0))
            found[name] = [captured(caches, call)]
            KEPT.append(call)
        except Exception as error:
            LEFT_OUT.append(f"{name} on {where}: {' '.join(str(error).split())[-300:]}")
            progress(LEFT_OUT[-1])
            torch.cuda.synchronize()
    return found


def beside(times: Mapping[str, float | None], ours: str) -> Row:
    """The fastest of its times, and how many times as fast we are; nothing where it has none."""
    theirs = [time for name, time in times.items() if name.startswith("FlashInfer") and time is not None]
    return {"FlashInfer": min(theirs), "FlashInfer / Lutetia": min(theirs) / (times[ours] or float("nan"))} if theirs else {}


# ---- one token -------------------------------------------------------------------------------------------------------


def decoders(q: Tensor, k: Tensor, lengths: Tensor, pages: Pages, graph: bool = True) -> dict[str, Callable[[], Call]]:
    """What makes each of its calls, for queries [B, H_q, 1, d]; none where it is not installed."""
    if flashinfer is None:
        return {}
    kernels = {"CUDA cores": partial(planned, tensor_cores=False), "tensor cores": partial(planned, tensor_cores=True)}
    calls = {name: partial(kernel, q[:, :, 0], k, lengths, pages, graph=graph) for name, kernel in kernels.items()}
    return {**calls, "XQA": partial(xqa, q[:, :, 0], lengths, pages)}


def planned(q: Tensor, k: Tensor, lengths: Tensor, pages: Pages, tensor_cores: bool, graph: bool) -> Call:
    """`BatchDecodeWithPagedKVCacheWrapper`, with buffers of its own for a graph."""
    wrapper, plan = decode_wrapper(q, k, lengths, pages, tensor_cores, graph)
    plan()
    return lambda k, v: wrapper.run(q, (k, v))


def decode_wrapper(
    q: Tensor, k: Tensor, lengths: Tensor, pages: Pages, tensor_cores: bool, graph: bool
) -> tuple[Any, Callable[[], Any]]:
    """The wrapper, and what plans it."""
    rows = pages.rows(lengths)
    names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
    buffers = {name: each.clone() for name, each in zip(names, rows, strict=True)} if graph else {}
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace("planned"), pages.layout, use_cuda_graph=graph, use_tensor_cores=tensor_cores, backend="fa2", **buffers
    )
    sizes = (q.shape[1], pages.heads(k), q.shape[2], pages.size)
    return wrapper, lambda: wrapper.plan(*rows, *sizes, q_data_type=q.dtype, kv_data_type=k.dtype)


def plan_of(q: Tensor, k: Tensor, lengths: Tensor, pages: Pages) -> Callable[[], Any]:
    """What it does on the host before the first layer of a step."""
    return decode_wrapper(q[:, :, 0], k, lengths, pages, tensor_cores=True, graph=False)[1]


def xqa(q: Tensor, lengths: Tensor, pages: Pages) -> Call:
    """XQA reads lengths on the device, as we do: there is nothing to plan."""
    longest = pages.table.shape[1] * pages.size
    given = {"bmm1_scale": q.shape[2] ** -0.5, "bmm2_scale": 1.0, "kv_layout": pages.layout}
    return lambda k, v: flashinfer.decode.xqa_batch_decode_with_kv_cache(
        q, (k, v), workspace("XQA"), pages.table, lengths, longest, **given
    )


@cache
def workspace(of: str) -> Tensor:
    """XQA wants zeros at first, and leaves them so."""
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device="cuda")


# ---- shared prefixes and latent attention ----------------------------------------------------------------------------


def cascades(q: Tensor, k: Tensor, prefix: int, lengths: Tensor, pages: Pages) -> dict[str, Callable[[], Call]]:
    """What makes each of its calls for rows that share their first `prefix` keys; none where it is not installed."""
    if flashinfer is None:
        return {}
    given = (q[:, :, 0], k, prefix, lengths, pages)
    return {"cascade": partial(multi_level, *given), "cascade, fa2": partial(two_wrappers, *given)}


def levels(prefix: int, lengths: Tensor, pages: Pages) -> tuple[list[list[Tensor]], Pages]:
    """For the prefix, then for the rest: where queries begin, and `Pages.rows`; and the pages of the rest."""
    shared = prefix // pages.size
    own = pages._replace(table=pages.table[:, shared:])
    common = pages._replace(table=pages.table[:1, :shared]).rows(torch.full_like(lengths[:1], prefix))
    batch = torch.tensor([0, len(lengths)], dtype=torch.int32, device=lengths.device)
    each = torch.arange(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
    return [[batch, *common], [each, *own.rows(lengths - prefix)]], own


def multi_level(q: Tensor, k: Tensor, prefix: int, lengths: Tensor, pages: Pages) -> Call:
    """`MultiLevelCascadeAttentionWrapper`, which chooses its kernels."""
    arrays = [list(each) for each in zip(*levels(prefix, lengths, pages)[0], strict=True)]
    buffers = [[each.clone() for each in array] for array in arrays]
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace("planned"), pages.layout, True, *buffers)
    wrapper.plan(*arrays, q.shape[1], pages.heads(k), q.shape[2], pages.size, q_data_type=q.dtype)
    return lambda k, v: wrapper.run(q, (k, v))


def two_wrappers(q: Tensor, k: Tensor, prefix: int, lengths: Tensor, pages: Pages) -> Call:
    """The same two levels with the kernels that it does not choose: a prompt's on the prefix, a decoder's on the rest."""
    (first, _), own = levels(prefix, lengths, pages)
    common = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        workspace("planned"), pages.layout, True, *(each.clone() for each in first), backend="fa2"
    )
    common.plan(*first, q.shape[1], pages.heads(k), q.shape[2], pages.size, q_data_type=q.dtype)
    rest, plan = decode_wrapper(q, k, lengths - prefix, own, tensor_cores=True, graph=True)
    plan()

    def call(k: Tensor, v: Tensor) -> Tensor:
        out, lse = rest.run(q, (k, v), return_lse=True)
        flashinfer.merge_state_in_place(out, lse, *common.run(q, (k, v), return_lse=True))
        return out

    return call


def latents(q: Tensor, lengths: Tensor, length: int, value: int) -> dict[str, Callable[[], Call]]:
    """What makes each of its calls for latent attention over caches [B, 1, length, d] whose first `value` numbers are the value;
    none where it is not installed."""
    if flashinfer is None:
        return {}
    return {f"MLA, {backend}": partial(latent, q[:, :, 0], lengths, length, value, backend) for backend in ("fa2", "fa3")}


def latent(q: Tensor, lengths: Tensor, length: int, value: int, backend: str) -> Call:
    """`BatchMLAPagedAttentionWrapper` on pages that are views of a contiguous cache."""
    batch, heads, d = q.shape
    pages = Pages(torch.arange(batch * length // PAGE, device=q.device).view(batch, -1), PAGE, "NHD")
    queries = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    first, listed, _ = pages.rows(lengths)
    arrays = [queries, first, listed, lengths]
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(
        workspace("planned"), True, *(each.clone() for each in arrays), backend=backend
    )
    wrapper.plan(
        metadata=flashinfer.mla.MLAPlanMetadata.csr(*arrays),
        num_heads=heads,
        head_dim_ckv=value,
        head_dim_kpe=d - value,
        page_size=PAGE,
        causal=False,
        sm_scale=d**-0.5,
        q_data_type=q.dtype,
        kv_data_type=q.dtype,
    )
    return lambda k, v: wrapper.run(query=q, kv_cache=k.view(-1, PAGE, d))

"""Decode attention on a GPU takes at most 1.01 times the time of cuDNN, torch's fastest attention, and reads at memory's speed.

Medians over replays of CUDA graphs that walk through several caches, together larger than the second-level cache; the contestants
take turns. In the same run: every backend of scaled_dot_product_attention, and how fast this device reads at all. Claimed:

    dense     at most 1.01 times cuDNN's time where the cache has 250 MB, and 90% of the read rate; 1.15 times on B 1, S 8k. Large
              batches are read as fast as memory allows by both, so neither wins
    ragged    at least 1.5 times as fast as scaled_dot_product_attention with a mask (lengths evenly spaced over 10..100% of S). A
              mask reads dead slots: cuDNN given the true lengths is the fair peer, and level. Its times are constants here, upper
              bounds taken through JAX with the host loop included
    s_active  four new tokens take at most 1.3 times as long as one
    cascade   64 rows with 8k tokens in common and 128 of their own: at least 10 times as fast with the prefix read once
    latent    keys of 576 numbers whose first 512 are the value: 85% of the read rate

Where `import flashinfer` works, FlashInfer has columns of its own (flashinfer_peer.py); nothing is claimed of it.

Graph replays and eager calls of both are printed; eagerly Python's launching counts.

    lutetia bench decode_attention [--quick] [--json] [--save] [-- --only WORD]
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import flashinfer_peer
from decode_serving import cascade, chunk, latent
from gpu_timing import in_turns as medians_in_turns
from gpu_timing import several, timed
from lutetia.attention import decode_attention
from results import Row, finish, needs_cuda, options_of, peer, progress, result, table

NEEDS = ("cuda",)
KERNELS = ("CUDA cores", "tensor cores", "XQA")  # of FlashInfer
H_Q, H_KV, D = 32, 8, 128
SHAPES = {"B1 8k": (1, 8192), "B1 128k": (1, 131072), "B8 8k": (8, 8192), "B32 4k": (32, 4096), "B64 8k": (64, 8192)}
RAGGED = {"B8 8k": (8, 8192), "B32 4k": (32, 4096), "B64 8k": (64, 8192)}
TRUE_LENGTHS = {"B8 8k": 114.8, "B32 4k": 92.5, "B64 8k": 294.0}  # µs of cuDNN, at most: constants
QUICK = {"B2 256": (2, 256)}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
ROTATED = 400e6  # bytes of caches that a graph walks through: eight times the second-level cache
LARGE = 250e6
LEVEL, SMALL, MASKED, FOUR, RATE = 1.01, 1.15, 1.5, 1.3, 0.9  # what is claimed
CASCADE, LATENT_RATE = 10, 0.85
PREFIXES = {
    "64 rows": (64, 8192, 128),
    "64 rows, pages": (64, 8192, 128),
    "8 rows": (8, 8192, 128),
}  # rows, tokens in common, tokens of their own
LATENT = {"16 heads": (64, 8192, 16), "128 heads": (64, 8192, 128)}  # rows, tokens, query heads
CHUNKS = {"16 tokens": (8, 8192, 16), "64 tokens": (8, 8192, 64), "512 tokens": (8, 8192, 512)}
TINY = {"tiny": (2, 256, 16)}
Replay = tuple[torch.cuda.CUDAGraph, int]


def main(argv: list[str] | None = None) -> int:
    """Run the shapes; 1 when a claim is missed."""
    parser = options_of(__doc__)
    parser.add_argument("--only", default="", help="run the rows whose kind and shape contain this")
    options = parser.parse_args(argv)
    if not needs_cuda("decode_attention", "decode_attention_cpu"):
        return 1
    rate = read_rate(1 << 20 if options.quick else 1 << 29)
    rows: dict[str, list[Row]] = {"dense": [], "ragged": [], "four tokens": []}
    for kind, shapes in (("dense", SHAPES), ("ragged", RAGGED), ("four tokens", SHAPES)):
        rows[kind] = [measure(kind, name, *sizes, rate) for name, sizes in chosen(kind, shapes, options)]
    serving = {**SHAPES, **{f"ragged {name}": sizes for name, sizes in RAGGED.items()}}
    served = [serve(name, *sizes) for name, sizes in chosen("pages and fp8", serving, options)]
    heads = (H_Q, H_KV, D)
    serving_rows = {
        "cascade": [
            cascade("pages" in name, sizes, heads, captured, in_turns)
            for name, sizes in chosen("cascade", PREFIXES, options, TINY)
        ],
        "latent attention": [
            latent(sizes, rate, captured, in_turns) for _, sizes in chosen("latent attention", LATENT, options, TINY)
        ],
        "chunks": [chunk(sizes, heads, captured, in_turns) for _, sizes in chosen("chunks", CHUNKS, options, TINY)],
    }
    rows |= serving_rows
    has_flashinfer = flashinfer_peer.flashinfer is not None
    theirs = tuple(f"FlashInfer {kernel}" for kernel in KERNELS) if has_flashinfer else ()
    beside = {"FlashInfer": "µs", "FlashInfer / Lutetia": "x"} if has_flashinfer else {}
    times = dict.fromkeys(("Lutetia", *(f"SDPA {backend}" for backend in BACKENDS), *theirs), "µs")
    masked = dict.fromkeys(
        ("Lutetia", *(f"SDPA {backend}, masked" for backend in BACKENDS), *theirs, "cuDNN, true lengths"), "µs"
    )
    served_times = [f"FlashInfer, {each}" for each in ("pages of 16", "pages of 64", "fp8 cache")] if has_flashinfer else []
    common = {"of the read rate": "%", "cache": "MB"}
    tables = [
        table("dense", {"shape": None, **times, "cuDNN / Lutetia": "x", **beside, **common}, rows["dense"]),
        table(
            "ragged",
            {"shape": None, **masked, "masked / Lutetia": "x", "true lengths / Lutetia": "x", **beside, **common},
            rows["ragged"],
        ),
        table(
            "four tokens",
            {"shape": None, "Lutetia": "µs", "one token": "µs", "over one token": "times", **common},
            rows["four tokens"],
        ),
        table(
            "pages and fp8",
            {"shape": None, **dict.fromkeys(("bf16", "pages of 16", "pages of 64", "fp8 cache", *served_times), "µs")},
            served,
        ),
        table(
            "cascade",
            {"shape": None, "read for each row": "µs", "prefix read once": "µs", "times as fast": "x", **beside},
            rows["cascade"],
        ),
        table("latent attention", {"shape": None, "Lutetia": "µs", "SDPA": "µs", **beside, **common}, rows["latent attention"]),
        table("chunks", {"shape": None, "Lutetia": "µs", "SDPA, masked": "µs"}, rows["chunks"]),
        table("eager call", {"call": None, "time": "µs"}, eager_calls()),
    ]
    settings = {"dtype": "bfloat16", "query heads": H_Q, "key heads": H_KV, "head width": D, "bytes per second": rate}
    if flashinfer_peer.DIFFERENCES:
        settings["FlashInfer, largest relative difference"] = flashinfer_peer.DIFFERENCES
    peers = [
        peer("SDPA", "torch", "CUDA graph, the faster of two ways to give it grouped heads"),
        peer(
            "cuDNN, true lengths",
            mode="through JAX, its host loop included: an upper bound",
            constant="one H200, not in this run",
        ),
        *flashinfer_peer.described(),
    ]
    found = result(
        __doc__, "decode_attention", settings, [each for each in tables if each["rows"]], peers=peers, missed=claims(rows)
    )
    return finish(found, options)


def chosen(
    kind: str, shapes: Mapping[str, Any], options: Namespace, quick: Mapping[str, Any] = QUICK
) -> Iterator[tuple[str, Any]]:
    """The shapes to run, one after the other; the memory of the last one is free by then."""
    for name, sizes in (quick if options.quick else shapes).items():
        if options.only in f"{kind} {name}":
            progress(f"{kind} {name}")
            yield name, sizes
            torch.cuda.empty_cache()


def measure(kind: str, name: str, batch: int, length: int, rate: float) -> Row:
    """One row of a table."""
    q, caches, lengths = case(batch, length, kind == "ragged", 4 if kind == "four tokens" else 1)
    one = 2 * batch * H_KV * length * D * 2
    graphs = {"Lutetia": [captured(caches, lambda k, v: decode_attention(q, k, v, seq_lens=lengths))]}
    if kind == "four tokens":
        graphs["one token"] = [captured(caches, lambda k, v: decode_attention(q[:, :, :1], k, v, seq_lens=lengths))]
    else:
        mask = (torch.arange(length, device="cuda") < lengths[:, None])[:, None, None] if kind == "ragged" else None
        suffix = "" if mask is None else ", masked"
        for peer_name, backend in BACKENDS.items():
            if not (peer_name == "math" and one > 1e9):  # it copies the keys for every query head
                graphs[f"SDPA {peer_name}{suffix}"] = of_backend(backend, q, caches, mask)
        graphs |= of_flashinfer(f"{kind} {name}", q, caches, lengths)
    times = in_turns(graphs)
    live = int(lengths.sum()) * one // (batch * length)
    share = 100 * live / (1e-6 * times["Lutetia"]) / rate if times["Lutetia"] else None
    return {
        "shape": name,
        **times,
        **flashinfer_peer.beside(times, "Lutetia"),
        **ratios(kind, name, times),
        "of the read rate": share,
        "cache": one / 1e6,
    }


def case(batch: int, length: int, ragged: bool, s_active: int = 1) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]:
    """Queries, caches that are together larger than the second-level cache, and lengths, evenly spread where they are ragged."""
    torch.manual_seed(0)
    n_caches = max(1, -(-int(ROTATED) // (2 * batch * H_KV * length * D * 2)))
    caches = [(random(batch, H_KV, length, D), random(batch, H_KV, length, D)) for _ in range(n_caches)]
    lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
    if ragged:
        lengths = (length * torch.linspace(0.1, 1.0, batch, device="cuda")).int()[torch.randperm(batch, device="cuda")]
    return random(batch, H_Q, s_active, D), caches, lengths


def serve(name: str, batch: int, length: int) -> Row:
    """What a serving engine would use: the same keys in pages, whose order is shuffled, and in a cache of FP8."""
    q, caches, lengths = case(batch, length, name.startswith("ragged"))
    graphs = {"bf16": [captured(caches, lambda k, v: decode_attention(q, k, v, seq_lens=lengths))]}
    kept = []  # a graph knows addresses only: what it reads must live as long as it does
    for page in (16, 64):
        order = torch.randperm(batch * length // page, device="cuda")
        where = order.argsort().int().view(batch, -1)
        paged = [(pages_of(k, page)[order], pages_of(v, page)[order]) for k, v in caches]
        kept.append((where, paged))
        graphs[f"pages of {page}"] = [
            captured(paged, lambda k, v, where=where: decode_attention(q, k, v, seq_lens=lengths, page_table=where))
        ]
        theirs = of_flashinfer(f"{name}, pages of {page}", q, paged, lengths, flashinfer_peer.Pages(where, page, "NHD"))
        graphs[f"FlashInfer, pages of {page}"] = [*chain.from_iterable(theirs.values())]
    small = [(k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)) for k, v in caches] * 2  # half the bytes: twice the caches
    one = torch.ones(H_KV, device="cuda")
    graphs["fp8 cache"] = [captured(small, lambda k, v: decode_attention(q, k, v, seq_lens=lengths, k_scale=one, v_scale=one))]
    theirs = of_flashinfer(f"{name}, fp8 cache", q, small, lengths)
    graphs["FlashInfer, fp8 cache"] = [*chain.from_iterable(theirs.values())]
    return {"shape": name, **in_turns({column: ways for column, ways in graphs.items() if ways})}


def pages_of(cache: Tensor, page: int) -> Tensor:
    """A cache [B, H_kv, S, d] as pages [n_pages, page, H_kv, d]."""
    return cache.transpose(1, 2).reshape(-1, page, H_KV, D)


def ratios(kind: str, name: str, times: dict[str, float | None]) -> Row:
    """How many times as fast we are, against each peer that a claim names."""
    ours = times["Lutetia"] or float("nan")
    if kind == "four tokens":
        return {"over one token": ours / (times["one token"] or float("nan"))}
    if kind == "dense":
        cudnn = times.get("SDPA cuDNN")
        return {"cuDNN / Lutetia": cudnn and cudnn / ours}
    masked = [time for peer_name, time in times.items() if peer_name.startswith("SDPA") and time is not None]
    row: Row = {"masked / Lutetia": min(masked) / ours if masked else None}
    if name in TRUE_LENGTHS:
        row |= {"cuDNN, true lengths": TRUE_LENGTHS[name], "true lengths / Lutetia": TRUE_LENGTHS[name] / ours}
    return row


def of_backend(backend: SDPBackend, q: Tensor, caches: Any, mask: Tensor | None) -> list[Replay]:
    """Those it takes of two ways to give torch grouped heads: as heads, or as queries of one head, which no causality forbids."""
    batch = q.shape[0]
    ways = [
        lambda k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),
        lambda k, v: scaled_dot_product_attention(q.view(batch, H_KV, H_Q // H_KV, D), k, v, attn_mask=mask),
    ]
    found = []
    for way in ways:
        try:
            with sdpa_kernel(backend):
                found.append(captured(caches, way))
        except RuntimeError:  # this backend does not take these arguments
            torch.cuda.synchronize()
    return found


def of_flashinfer(
    where: str, q: Tensor, caches: Any, lengths: Tensor, pages: flashinfer_peer.Pages | None = None
) -> dict[str, list[Replay]]:
    """Its kernels by name, those whose output is ours; a contiguous cache is given as pages that are views of it."""
    if flashinfer_peer.flashinfer is None:
        return {}
    one = torch.ones(H_KV, device="cuda") if caches[0][0].dtype == torch.float8_e4m3fn else None
    given = {"seq_lens": lengths, "page_table": pages and pages.table, "k_scale": one, "v_scale": one}
    expected = decode_attention(q, *caches[0], **given)[0][:, :, 0]
    if pages is None:
        pages = flashinfer_peer.pages_of(caches[0][0])
        caches = [tuple(map(flashinfer_peer.in_pages, each)) for each in caches]
    calls = flashinfer_peer.decoders(q, caches[0][0], lengths, pages)
    found = flashinfer_peer.ways(where, calls, caches, expected, captured)
    return {f"FlashInfer {kernel}": ways for kernel, ways in found.items()}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def captured(caches: Any, call: Callable[[Tensor, Tensor], Any]) -> Replay:
    """A graph that walks through all caches several times, replayed once, and how many calls it is."""
    call(*caches[0])
    torch.cuda.synchronize()
    rounds = max(1, 12 // len(caches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for k, v in caches:
                call(k, v)
    graph.replay()
    return graph, rounds * len(caches)


def in_turns(graphs: dict[str, list[Replay]], turns: int = 9) -> dict[str, float | None]:
    """Median microseconds of one call by contestant, the fastest of its ways; None for one that has none."""
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(turns):
        for name, ways in graphs.items():
            for way, (graph, calls) in enumerate(ways):
                times.setdefault((name, way), []).append(1e3 * timed(graph.replay, graph.replay) / calls)
    medians = {name: [statistics.median(times[name, way]) for way in range(len(ways))] for name, ways in graphs.items()}
    return {name: min(found, default=None) for name, found in medians.items()}


def read_rate(numbers: int) -> float:
    """Bytes a second that this device reads: the fastest of a few ways to add up so many numbers."""
    x = torch.ones(numbers, device="cuda", dtype=torch.float32)
    ways = [lambda n=n: x.view(n, -1).sum(1) for n in (1 << 8, 1 << 11, 1 << 14, 1 << 17)]
    seconds = [1e-3 * statistics.median(timed(way) for _ in range(9)) for way in ways for _ in range(2)]
    return 4 * x.numel() / min(seconds)


def eager_calls() -> list[Row]:
    """µs of one call from Python, of a cache so small that launching is all there is."""
    q, (k, v) = random(1, H_Q, 1, D), (random(1, H_KV, 256, D) for _ in "kv")
    lengths = torch.full((1,), 256, dtype=torch.int32, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "decode_attention": lambda: decode_attention(q, k, v, seq_lens=lengths),
        "SDPA": lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True),
    }
    if flashinfer_peer.flashinfer is not None:
        pages, views = flashinfer_peer.pages_of(k), (flashinfer_peer.in_pages(k), flashinfer_peer.in_pages(v))
        theirs = flashinfer_peer.decoders(q, views[0], lengths, pages, graph=False)
        ours = calls["decode_attention"]()[0][:, :, 0]
        found = flashinfer_peer.ways("eager call", theirs, [views], ours, lambda caches, call: partial(call, *caches[0]))
        calls |= {f"FlashInfer {kernel}": call for kernel, (call,) in found.items()}
        if "tensor cores" in found:
            calls["FlashInfer plan, once for all layers"] = flashinfer_peer.plan_of(q, views[0], lengths, pages)
    times = medians_in_turns({name: several(call, 20) for name, call in calls.items()}, 20, 15)
    return [{"call": name, "time": 1e3 * time} for name, time in times.items()]


def claims(rows: dict[str, list[Row]]) -> list[str]:
    """What was claimed and is not so."""
    missed = []
    for row in rows["dense"]:
        large, ratio = row["cache"] >= LARGE / 1e6, row["cuDNN / Lutetia"]
        limit = LEVEL if large else SMALL
        if ratio is not None and 1 / ratio > limit:
            missed.append(f"dense {row['shape']}: {1 / ratio:.4f} times cuDNN's time, at most {limit} claimed")
        if large and row["of the read rate"] < 100 * RATE:
            missed.append(f"dense {row['shape']}: {row['of the read rate']:.0f}% of the read rate, {RATE:.0%} claimed")
    for row in rows["ragged"]:
        if row["masked / Lutetia"] is not None and row["masked / Lutetia"] < MASKED:
            missed.append(f"ragged {row['shape']}: {row['masked / Lutetia']:.2f} times as fast as masked SDPA, {MASKED} claimed")
    for row in rows["cascade"][:1]:
        if row["times as fast"] is not None and row["times as fast"] < CASCADE:
            missed.append(f"cascade {row['shape']}: {row['times as fast']:.1f} times as fast, {CASCADE} claimed")
    for row in rows["latent attention"][:1]:
        if row["of the read rate"] is not None and row["of the read rate"] < 100 * LATENT_RATE:
            missed.append(f"latent {row['shape']}: {row['of the read rate']:.0f}% of the read rate, {LATENT_RATE:.0%} claimed")
    for row in rows["four tokens"]:
        if row["over one token"] > FOUR:
            missed.append(f"four tokens {row['shape']}: {row['over one token']:.2f} times one token, at most {FOUR} claimed")
    return missed


if __name__ == "__main__":
    sys.exit(main())

"""The sentences below the tables of docs/results.md, with their numbers from the same files."""

from __future__ import annotations

from results import Result, rows_of
from results_tables import range_of, value


def layer_sentence(result: Result) -> str:
    rows = [row for row in rows_of(result, "layers") if row.get("train, graph/graph")]
    return (
        f"In graphs {range_of(rows, 'eval, graph/graph', 'x')} in eval and {range_of(rows, 'train, graph/graph', 'x')} in "
        f"training. Eager training steps: {range_of(rows[:2], 'train, eager/eager', 'x')} at the two small shapes, which are "
        f"launch-bound, {range_of(rows[2:], 'train, eager/eager', 'x')} at the others."
    )


def attention_sentence(result: Result) -> str:
    rows = rows_of(result, "layers")
    return (
        f"In graphs {range_of(rows, 'eval, graph/graph', 'x')} in eval and {range_of(rows, 'train, graph/graph', 'x')} in "
        f"training. Eager training steps: {range_of(rows[:1], 'train, eager/eager', 'x')} at the first shape, "
        f"{range_of(rows[-1:], 'train, eager/eager', 'x')} at the last."
    )


def rates_sentence(result: Result) -> str:
    shares = [
        {"share": row[kernel] / row["plain read"]}
        for row in rows_of(result, "rates")[1:]
        for kernel in ("eval forward", "train forward", "x gradient")
    ]
    return (
        f"From the second shape on, forward and input gradient reach {range_of(shares, 'share')} times the rate of a plain read "
        "(more than 1: rows came from a cache). The first shape is launch-bound."
    )


def cpu_sentence(result: Result) -> str:
    rows = rows_of(result, "forward")
    micro = [
        1e3 * next(row["Lutetia"] for row in rows if row["kernel"] == kernel and row["shape"].startswith("B1 "))
        for kernel in ("eval forward", "nn.LUT")
    ]
    return (
        f"{range_of(rows, 'addresses + embedding_bag', 'x')} as fast as `embedding_bag`, {range_of(rows, 'eager torch', 'x')} as "
        f"fast as eager torch. At batch 1 the kernel takes {micro[0]:.0f} µs and `nn.LUT` {micro[1]:.0f} µs."
    )


def serving_sentence(result: Result) -> str:
    rows = rows_of(result, "pages and fp8")
    pages = [{"cost": row["pages of 64"] / row["bf16"]} for row in rows]
    eight = [{"cost": row["fp8 cache"] / row["bf16"]} for row in rows if row.get("fp8 cache")]
    return (
        f"Pages of 64 take {range_of(pages, 'cost')} times as long, an FP8 cache {range_of(eight, 'cost', None, 3)} times. An "
        f"eager call takes {value(result, 'eager call', 'time', call='decode_attention')} µs, SDPA's "
        f"{value(result, 'eager call', 'time', digits=2, call='SDPA')} µs."
    )


def dense_sentence(result: Result) -> str:
    large = [row for row in rows_of(result, "dense") if row["shape"] != "B1 8k"]
    return (
        f"{range_of(rows_of(result, 'dense'), 'cuDNN / Lutetia', 'x', 3)} as fast as cuDNN. From caches of 250 MB on, both read "
        f"at {range_of(large, 'of the read rate', '%')} of a plain read. The claim: at most 1.01 times cuDNN's time."
    )


def ragged_sentence(result: Result) -> str:
    long = next(row for row in rows_of(result, "ragged") if row["shape"] == "B64 8k")
    return (
        f"{range_of(rows_of(result, 'ragged'), 'masked / Lutetia', 'x', 3)} as fast as a mask. cuDNN with true lengths takes at "
        f"most {long['cuDNN, true lengths']:.0f} µs on the largest batch (its host loop is included), Lutetia "
        f"{long['Lutetia']:.0f} µs. FlashInfer and FlashAttention 3 were not measured."
    )


def train_cpu_sentence(result: Result) -> str:
    rows = rows_of(result, "runs")
    return (
        f"{range_of(rows, 'over the C program', 'x')} the throughput of a reference C program at full batch size "
        f"({range_of(rows, 'whole run', None, 3)} samples a second against 13 with the small initial batches), with a lower "
        "loss after the same samples than plain SGD. One seed, rates chosen on this task."
    )


def relevance_sentence(result: Result) -> str:
    rows = rows_of(result, "models")
    return (
        f"{range_of(rows, 'fresh', None, 3)} times a backward pass; with the forward pass "
        f"{range_of(rows, 'forward and attribute', None, 3)} times, less than zennit and captum where those run."
    )


def tabular_sentence(result: Result) -> str:
    """What the numbers are, how many folds they come from, and which claims do not hold."""
    settings = result["settings"]
    missed = f" Not reached: {'; '.join(result['missed'])}." if result["missed"] else ""
    return (
        "Accuracy in %, RMSE in the unit of the target; means are of accuracy, and of RMSE relative to the best boosting method "
        f"of each set. Folds fitted: {settings['folds fitted']} of {settings['folds']}.{missed}"
    )

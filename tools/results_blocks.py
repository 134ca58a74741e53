"""The generated tables of README.md and SECURITY.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from results import Result, Row, rows_of, text_of
from results_sentences import LONG, tests_of
from results_tables import range_of, value

Results = dict[str, Result]


def summary(results: Results) -> str:
    """What comes out with default settings, what circuits and language models reach, and how fast the kernels are."""
    groups = {
        "Models with default settings": (
            boosting_row(results["tabular"]),
            losses_row(results["tabular_losses"]),
            ranking_row(results["ranking"]),
            texts_row(results["texts"]),
            windows_row(results["windows"]),
            images_row(results["images"]),
        ),
        "Digits and circuits": digit_rows(results),
        "Language models, bits per byte, lower is better": language_rows(results),
        "Speed, as a multiple of the other's": speed_rows(results),
    }
    return "\n\n".join("\n".join([f"| {name} | Lutetia | others |", "|---|---|---|", *rows]) for name, rows in groups.items())


def boosting_row(result: Result) -> str:
    """Accuracy on the reported sets of tables of data."""
    means = {
        row["method"]: f"{row['mean']:.2f}%"
        for row in rows_of(result, "means")
        if row["task"] == "classification" and row["half"] == "report"
    }
    others = ", ".join(f"{name} {means[name]}" for name in ("HistGradientBoosting", "LightGBM", "XGBoost"))
    return f"| tables of data, mean accuracy: eight sets, five folds | {means['Lutetia']} | {others} |"


def predict_row(result: Result) -> str:
    """How much longer the fastest other estimator takes to predict one row, and many."""
    rows = rows_of(result, "calls")
    ratios = ", ".join(
        f"{range_of([row for row in rows if row['rows'] == size], 'others / Lutetia', 'x')} of {words}"
        for size, words in ((min(row["rows"] for row in rows), "one row"), (max(row["rows"] for row in rows), "many"))
    )
    what = "predictions of tables of data, three sets, one CPU thread"
    return f"| {what} | {ratios} | the fastest estimator of HistGradientBoosting, LightGBM and XGBoost |"


def losses_row(result: Result) -> str:
    """Other losses of regressions on the reported sets, relative to the best boosting method."""
    means = [row for row in rows_of(result, "means") if row["half"] == "report"]
    ours = ", ".join(f"{row['task']} {row['mean']:.2f}" for row in means if row["method"] == "Lutetia")
    others = ", ".join(
        f"{name} {range_of([row for row in means if row['method'] == name], 'mean', None, 3)}"
        for name in ("HistGradientBoosting", "LightGBM", "XGBoost")
    )
    what = "losses of regressions, relative to the best boosting method per set, lower is better: three sets each"
    return f"| {what} | {ours} | {others} |"


def ranking_row(result: Result) -> str:
    """How well rows are put in order, on the reported sets."""
    means = {row["method"]: row for row in rows_of(result, "means") if row["half"] == "report"}
    others = ", ".join(f"{name} {means[name]['NDCG@10']:.3f}" for name in ("LightGBM", "XGBoost"))
    return f"| rankings, mean NDCG@10: four sets, five folds | {means['Lutetia']['NDCG@10']:.3f} | {others} |"


def texts_row(result: Result) -> str:
    """How often texts are classified correctly, on average."""
    means = {row["method"]: row for row in rows_of(result, "means")}

    def told(name: str) -> str:
        loss = means[name]["log loss"]
        return f"{means[name]['accuracy']:.2f}%" + ("" if loss is None else f", {loss:.3f}")

    others = "; ".join(f"{name} {told(name)}" for name in ("LR", "SVM", "SVM, pairs", "LightGBM"))
    return f"| texts, mean accuracy and log loss: six sets, three folds | {told('Lutetia')} | on TF-IDF: {others} |"


def windows_row(result: Result) -> str:
    """How often windows of a watch are classified correctly, and series on average over the sets on which nothing was chosen."""
    watch = {row["method"]: row["accuracy"] for row in rows_of(result, "methods") if row["set"] == "watch"}
    told = {row["method"]: f"{watch[row['method']]:.2f}%, {row['new sets']:.2f}%" for row in rows_of(result, "means")
            if row["method"] in watch}  # fmt: skip
    others = "; ".join(f"{name} {told[name]}" for name in ("MiniRocket", "catch22", "RandomForest", "LightGBM"))
    what = "windows of signals: a watch, by people (inputs chosen on it); mean of six new sets of series"
    return f"| {what} | {told['Lutetia']} | {others} |"


def images_row(result: Result) -> str:
    """Accuracy on a part of MNIST."""
    rows = [row for row in rows_of(result, "sets") if row["set"].startswith("MNIST")]
    found = {row["method"]: f"{row['accuracy']:.2f}%" for row in rows if row["set"] == rows[0]["set"]}
    names = ("HistGradientBoosting", "LightGBM", "RandomForest", "SVM", "SVM on HOG", "CNN")
    others = ", ".join(f"{'a small CNN, same processor time,' if name == 'CNN' else name} {found[name]}" for name in names)
    ours = f"{found['Lutetia']}; pixels only {found['Lutetia, pixels']}; pixels, not shifted {found['Lutetia, unshifted']}"
    return f"| {rows[0]['set']}, accuracy of `lutetia train` | {ours} | {others} |"


def speed_rows(results: Results) -> list[str]:
    """How fast, mode for mode, against whom."""
    original = "Spiky, the original CUDA library"
    steps = (("LUT layers, smallest to largest", "lut_step"), ("LUT attention, 32 to 1,024 positions", "lut_attention"))
    decode = {
        kind: range_of(
            [row for row in rows_of(results["decode_attention_cpu"], "decode") if row["kind"] == kind], "SDPA / Lutetia", "x"
        )
        for kind in ("dense", "ragged")
    }
    cpu = range_of(rows_of(results["train_cpu"], "runs"), "over the C program", "x")
    return [
        *(
            f"| {what}, training step on one H200 | {faster(rows_of(results[name], 'layers'))} | {original} |"
            for what, name in steps
        ),
        *decode_rows(results["decode_attention"]),
        predict_row(results["predict"]),
        f"| decode attention, two CPU cores | {decode['dense']} dense, {decode['ragged']} ragged | SDPA, masked where ragged |",
        f"| training a 3.2 GB language model, two CPU cores | {cpu} | a reference C program |",
    ]


def faster(rows: list[Row]) -> str:
    """How many times as fast, in both modes, over the rows that have a peer."""
    eager, graph = (range_of(compared(rows), f"train, {mode}/{mode}", "x") for mode in ("eager", "graph"))
    return f"{eager} eager, {graph} in a CUDA graph"


def compared(rows: list[Row]) -> list[Row]:
    """The rows that have a peer."""
    return [row for row in rows if row.get("train, graph/graph") is not None]


def decode_rows(result: Result) -> list[str]:
    dense = range_of(rows_of(result, "dense"), "cuDNN / Lutetia", "x", 3)
    masked = range_of(rows_of(result, "ragged"), "masked / Lutetia", "x", 3)
    lengths = value(result, "ragged", "true lengths / Lutetia", "x", shape="B64 8k")
    return [
        f"| decode attention, H200, CUDA graphs | {dense} dense, {masked} ragged | SDPA (cuDNN), masked where ragged |",
        f"| decode attention, H200, ragged, batch 64, up to 8,192 keys | at most {lengths} | cuDNN with true lengths |",
        *flashinfer_row(result),
    ]


def flashinfer_row(result: Result) -> list[str]:
    """How FlashInfer compares, in a run that had all of it."""
    column, page = "FlashInfer / Lutetia", "pages of 16"
    served = [row for row in rows_of(result, "pages and fp8") if f"FlashInfer, {page}" in row]
    tables = {
        "dense": rows_of(result, "dense"),
        f"in {page}": [{column: row[f"FlashInfer, {page}"] / row[page]} for row in served],
        "with a shared prefix": rows_of(result, "cascade"),
        "on latent attention": rows_of(result, "latent attention"),
    }
    if not all(rows and all(column in row for row in rows) for rows in tables.values()):
        return []
    parts = [f"{range_of(rows, column, 'x', 3)} {name}" for name, rows in tables.items()]
    return [f"| decode attention, H200, CUDA graphs | {', '.join(parts)} | FlashInfer |"]


def digit_rows(results: Results) -> list[str]:
    """What tables make of MNIST, and what they cost as a circuit."""
    ours, theirs = (
        [row for row in rows_of(results["train_mnist"], "accuracy") if (row["source"] == "report") is reported]
        for reported in (False, True)
    )
    rows = rows_of(results["mnist_circuits"], "circuits")
    circuits = [sized(row) for row in rows if row["network"].startswith("Lutetia (gates)")]
    peers = [sized(row) for row in rows if row["network"] == "DWN" and row.get("encoder")]
    return [
        f"| MNIST, one layer of tables, two minutes on a CPU core | {range_of(ours, 'test accuracy', '%', 4)} | "
        f"{range_of(theirs, 'test accuracy', '%', 4)} reported by the tables' authors, with fewer weights |",
        f"| MNIST as a circuit, pixels to class, three seeds | {', '.join(circuits)} (yosys) | "
        f"DWN, placed and routed: {', '.join(peers)} |",
    ]


def language_rows(results: Results) -> list[str]:
    """What tables learn of texts, beside dense twins."""
    enwik8, shakespeare = results["train_enwik8"], results["train_shakespeare"]
    dense, wider, ngrams, tables = (
        tests_of(enwik8, kind)
        for kind in (
            *("dense twin, dropout", "dense twin, wider, dropout"),
            *("dense, n-gram tables", "table feed-forwards, n-gram tables"),
        )
    )
    once = [row for row in rows_of(enwik8, "bits") if row["time"] != LONG]
    once_dense, once_tables = (
        range_of([row for row in once if (row["model"] == "dense twin") is dense], "test", None, 4) for dense in (True, False)
    )
    twin, lut = (
        range_of([{"loss": min(losses_of(shakespeare, kind), key=sum)}], "loss", None, 4)
        for kind in ("dense twin", "confidence2")
    )
    half_hour = {row["model"]: row for row in rows_of(results["language_cpu"], "models")}
    cpu_tables, cpu_twin = (half_hour[name] for name in ("n-gram tables, no other feed-forward", "dense twin"))
    return [
        "| enwik8, each byte read once, 29 seconds of one GPU: n-gram tables beside a narrower feed-forward | "
        f"{once_tables} | dense twin: {once_dense} |",
        f"| enwik8, 8 minutes of one GPU: n-gram tables added to a dense model | {bits_of(ngrams)} | "
        f"dense twin: {bits_of(dense)}, widened to equal step time: {bits_of(wider)}, both with dropout |",
        f"| enwik8, 8 minutes of one GPU: tables in place of every feed-forward | {bits_of(tables)} | "
        f"dense twin: {bits_of(dense)}, **better** |",
        "| enwik8, half an hour of two CPU cores: n-gram tables in place of every feed-forward | "
        f"{cpu_tables['bits per byte']:.3f} | dense twin: {cpu_twin['bits per byte']:.3f} |",
        f"| tiny Shakespeare, the same bytes, dropout tuned for both | {lut} nats per byte | dense twin: {twin} |",
    ]


def bits_of(tests: list[float]) -> str:
    """Bits per byte of one model, and of how many seeds they are."""
    ends = dict.fromkeys(f"{each:.4f}" for each in (min(tests), max(tests)))
    return f"{' to '.join(ends)} ({len(tests)} seed{'s' if len(tests) > 1 else ''})"


def losses_of(shakespeare: Result, kind: str) -> list[list[float]]:
    """Of the seeds with each dropout that was tried."""
    return [[row["seed 0"], row["seed 1"]] for row in rows_of(shakespeare, "loss") if row["feed-forward"] == kind]


def sized(row: Row) -> str:
    return f"{text_of(row['accuracy'], '%', 4)} with {text_of(row['LUTs'])} LUTs"


COUNTS = Path(__file__).resolve().parent.parent / "tests" / "fuzz" / "counts.json"  # of `pytest tests/fuzz --fuzz-counts`


def fuzz(results: Results) -> str:
    """How many random calls and damaged files ended how, by package."""
    counts = json.loads(COUNTS.read_text(encoding="utf-8"))
    groups: dict[str, list[Counter[str]]] = {}
    for name, ends in counts["calls"].items():
        groups.setdefault(f"functions of `lutetia.{name.partition('.')[0]}`", []).append(Counter(ends))
    groups["loaders of files"] = [Counter(ends) for ends in counts["loader"].values()]
    lines = ["| what | how many | calls or files of each | worked | refused | failed |", "|---|---|---|---|---|---|"]
    for group, members in groups.items():
        total = sum(members, Counter[str]())
        worked, refused = total["accepted"], total["refused"] + total["out of memory"]
        least = min(each.total() for each in members)
        lines.append(f"| {group} | {len(members)} | {least:,} | {worked:,} | {refused:,} | {total.total() - worked - refused} |")
    return "\n".join(lines)


BLOCKS: dict[str, dict[str, Callable[[Results], str]]] = {"README.md": {"": summary}, "SECURITY.md": {"fuzz": fuzz}}

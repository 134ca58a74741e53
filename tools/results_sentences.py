"""The sentences below the tables of docs/results.md, with their numbers from the same files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from statistics import mean

from results import Result, Row, rows_of, text_of
from results_tables import range_of, value

TIE = 0.95  # of eager: what is less of a gain than that is none


def layer_sentence(result: Result) -> str:
    return f"Eager steps of the two small shapes are launch-bound. {compile_floor(result)}"


def compile_floor(result: Result) -> str:
    """Which stacks of nn.LUT `torch.compile` speeds up in its two modes, and what stands in the way of the others."""
    rows = {tuple(row["module"].split(" × ")): row for row in rows_of(result, "compiling")}
    ours = {int(number): row for (number, name), row in rows.items() if name == "nn.LUT"}

    def faster(step: str, mode: str) -> list[int]:
        return [number for number, row in ours.items() if row[f"{step}, {mode}"] <= TIE * row[f"{step}, eager"]]

    def listed(numbers: Sequence[int]) -> str:
        return " and ".join(map(str, numbers)) or "none"

    usual, reduced = (
        ", ".join(f"in {word} {listed(faster(step, mode))}" for step, word in (("train", "training"), ("eval", "evaluation")))
        for mode in ("compiled", "reduce-overhead")
    )
    floors = []
    for step, word in (("eval", "evaluation"), ("train", "training")):
        for number, row in ours.items():
            nothing = rows[str(number), "empty graph"][f"{step}, compiled"]
            if nothing > row[f"{step}, eager"]:
                floors.append(f"{word} of {number} ({1e3 * nothing:.0f} µs, ours {1e3 * row[f'{step}, eager']:.0f})")
    return (
        f"How many layers of nn.LUT `torch.compile` speeds up by 5% or more: {usual}; with `reduce-overhead` {reduced}. An empty "
        "graph has our tensors, allocates the results and launches nothing. Compiling cannot help where that takes longer than "
        f"our eager layers: {', '.join(floors)}."
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
    kernel, layer = micro
    steps = [row for row in rows if row["kernel"] == "nn.LUT, training step"]
    trained = ", ".join(f"{1e3 * row['Lutetia']:.0f} at {row['shape'].split()[0]}" for row in steps)
    return (
        f"At batch 1 `nn.LUT` takes {layer:.0f} µs; the kernel called by its name checks all arguments and takes {kernel:.0f}. "
        f"A training step of a layer with 32 inputs takes, in µs, {trained}.{not_reached(result)}"
    )


def decode_sentence(result: Result) -> str:
    """What the tables do not show: pages and FP8 against plain bf16, and eager calls."""
    served = rows_of(result, "pages and fp8")
    pages = [{"cost": row["pages of 64"] / row["bf16"]} for row in served]
    eight = [{"cost": row["fp8 cache"] / row["bf16"]} for row in served if row.get("fp8 cache")]
    return (
        "For dense batches the claim is at most 1.01 times cuDNN's time. The times with true lengths include a host loop. "
        f"Pages of 64 take {range_of(pages, 'cost')} times as long, an FP8 cache {range_of(eight, 'cost', None, 3)} times. An "
        f"eager call takes {value(result, 'eager call', 'time', call='decode_attention')} µs, SDPA's "
        f"{value(result, 'eager call', 'time', digits=2, call='SDPA')} µs."
        f"{flashinfer_sentence(result)}"
    )


def flashinfer_sentence(result: Result) -> str:
    """Its times over ours where the tables do not show them; nothing where it was not measured."""
    served = rows_of(result, "pages and fp8")
    costs = [
        {
            name: row[f"FlashInfer, {name}"] / row[name]
            for name in ("pages of 16", "pages of 64", "fp8 cache")
            if theirs(row, name)
        }
        for row in served
    ]
    several = {
        "in pages of 16": range_or_nothing(costs, "pages of 16"),
        "in pages of 64": range_or_nothing(costs, "pages of 64"),
        "with an FP8 cache": range_or_nothing(costs, "fp8 cache"),
        "with a shared prefix": range_or_nothing(rows_of(result, "cascade"), "FlashInfer / Lutetia"),
        "on latent attention": range_or_nothing(rows_of(result, "latent attention"), "FlashInfer / Lutetia"),
    }
    told = [f"{ratio} {where}" for where, ratio in several.items() if ratio]
    if not told:
        return ""
    (version,) = (each["version"] for each in result["peers"] if each["name"] == "FlashInfer")
    eager = [
        row["time"]
        for row in rows_of(result, "eager call")
        if row["call"].startswith("FlashInfer ") and "plan" not in row["call"]
    ]
    calls = f" Its eager call takes {text_of(min(eager), None, 2)} µs, without planning." if eager else ""
    return f" FlashInfer {version} takes, in multiples of our time and with the fastest of its kernels, {', '.join(told)}.{calls}"


def theirs(row: Row, name: str) -> bool:
    return row.get(f"FlashInfer, {name}") is not None


def range_or_nothing(rows: Sequence[Row], key: str) -> str:
    """The range of a column; nothing where it was not measured."""
    return range_of(rows, key) if any(row.get(key) is not None for row in rows) else ""


def train_cpu_sentence(result: Result) -> str:
    rows = rows_of(result, "runs")
    ours, plain = rows[0], min(rows[1:], key=lambda row: row["loss"])
    return (
        f"{range_of(rows, 'over the C program', 'x')} the throughput of a reference C program at full batch size "
        f"({range_of(rows[:1], 'samples per second', None, 3)} samples a second; {range_of(rows, 'whole run', None, 3)} against "
        f"13 with the small initial batches). Loss after the same samples: {ours['loss']} nats per byte, {plain['run']} "
        f"{plain['loss']}. One seed, rates chosen on this task."
    )


LONG = "8 minutes"  # of enwik8
ALONE = "n-gram tables, no feed-forward, 9 blocks"


def enwik8_sentence(result: Result) -> str:
    once = [row for row in rows_of(result, "bits") if row["time"] != LONG]
    twins, tables = ([row["test"] for row in once if (row["model"] == "dense twin") is dense] for dense in (True, False))
    leads = [twin - ours for twin, ours in zip(twins, tables, strict=True)]
    names = ("dense twin, dropout", "dense twin, wider, dropout", "dense, n-gram tables")
    (twin,), wider, ours = (tests_of(result, name) for name in names)
    (all_tables,), (ngrams,) = (tests_of(result, name) for name in ("table feed-forwards, n-gram tables", ALONE))
    late = [theirs - own for theirs, own in zip(wider, ours, strict=True)]
    return (
        f"Bits per byte. N-gram tables lead by {min(leads):.2f} to {max(leads):.2f} where each byte is read once "
        "(runs shared the GPU; the time is of steps alone). "
        f"After eight minutes they lead by {twin - ours[0]:.3f} over the twin with dropout (one seed), and by "
        f"{' and '.join(f'{lead:.3f}' for lead in late)} (mean {mean(late):.3f}) over one widened to equal step time. "
        f"Tables in place of every feed-forward end {all_tables - twin:.3f} above that twin, n-gram tables alone "
        f"{ngrams - twin:.3f}."
    )


def tests_of(result: Result, model: str) -> list[float]:
    """Bits per byte on the test text after eight minutes, seed by seed."""
    rows = [row for row in rows_of(result, "bits") if (row["model"], row["time"]) == (model, LONG)]
    return [row["test"] for row in sorted(rows, key=lambda row: row["seed"])]


def feed_forwards_sentence(result: Result) -> str:
    rows = rows_of(result, "models")
    others = ("on the whole width", "dense", "none")
    whole, dense, none = (value(result, "models", "bits per byte", digits=4, **{"feed-forward": name}) for name in others)
    heads = range_of([row for row in rows if row["feed-forward"] not in others], "bits per byte", None, 4)
    return (
        f"Bits per byte after {result['settings']['seconds']:.0f} seconds: tables {others[0]} {whole}, in heads {heads}; dense "
        f"{dense}, none {none}. One seed."
    )


def relevance_sentence(result: Result) -> str:
    deep = rows_of(result, "deep graphs")
    return f"Deep graphs take {range_of(deep, 'ratio', None, 2)} times, [most with tiny tensors](notes/relevance.md#deep-graphs)."


def not_reached(result: Result) -> str:
    """Which claims do not hold, as the last sentence of a text; empty where all do."""
    return f" Not reached: {'; '.join(result['missed'])}." if result["missed"] else ""


def intervals_sentence(result: Result) -> str:
    """What is wanted, and which claims do not hold."""
    return (
        "Wanted: nine in ten new rows inside. The hardest fifth are the rows to which the model gives the widest intervals. "
        f"The size of the tables that learn the widths was chosen on these sets.{not_reached(result)}"
    )


def predict_sentence(result: Result) -> str:
    """What was called, and where another call is faster."""
    rows = rows_of(result, "calls")
    ahead = [
        f"{name} on {row['rows']:,} row{'s' if row['rows'] > 1 else ''} of {row['set']}"
        for row in rows
        for name in ("HistGradientBoosting", "LightGBM", "XGBoost", "LightGBM Booster", "XGBoost Booster")
        if row[name] < row["Lutetia"]
    ]
    told = f" Faster than ours: {', '.join(ahead)}." if ahead else ""
    return (
        "`predict_proba`, of diamonds `predict`, of float64 arrays. *Booster* is the call below the estimator that a library has "
        f"for speed.{told}"
    )


def tabular_sentence(result: Result) -> str:
    """What the numbers are, how many folds they come from, and which claims do not hold."""
    settings = result["settings"]
    return (
        "Accuracy in %, RMSE in the unit of the target; the mean of regression is relative to the best boosting method per "
        f"set. Folds fitted: {settings['folds fitted']} of {settings['folds']}.{not_reached(result)}"
    )


def losses_sentence(result: Result) -> str:
    """What the numbers are, and which claims do not hold."""
    return (
        "Each method is measured by the loss that it was fitted to, in the unit of the target; the mean is relative to the best "
        f"boosting method per set. Lower is better.{not_reached(result)}"
    )


def ranking_sentence(result: Result) -> str:
    """What the numbers are, where ours is behind, and which claims do not hold."""
    rows = [row for row in rows_of(result, "sets") if row["half"] == "report"]
    behind = [row["set"] for row in rows if row["Lutetia"] < max(row["LightGBM"], row["XGBoost"])]
    lost = f"One of them is ahead on {', '.join(behind)}. " if behind else ""
    return (
        "NDCG@10 of held-out queries, in five folds of whole queries; higher is better. Graded sets were made for other tasks: a "
        "number grades the rows of each query. The synthetic set is made by the benchmark. By default ours holds out queries to "
        f"stop early, and the others fit 100 trees. {lost}{not_reached(result)}"
    )


def unusual_sentence(result: Result) -> str:
    """What was looked for, what our limit flags, where others are ahead, and which claims do not hold."""
    parts = [row["flagged"] for row in rows_of(result, "flagged")]
    means = [row for row in rows_of(result, "means") if row["half"] == "report"]
    ahead = []
    for where, key in product(dict.fromkeys(row["rows"] for row in means), ("ROC AUC", "average precision")):
        own = {row["method"]: row for row in means if row["rows"] == where}
        ours = own.pop("Lutetia")
        ranked = [name for name, row in own.items() if row[f"rank by {key}"] < ours[f"rank by {key}"]]
        greater = [name for name, row in own.items() if row[key] > ours[key] and name not in ranked]
        for names, what in ((ranked, "rank"), (greater, "mean alone")):
            ahead += [f"{', '.join(names)} in {what} by {key} on {where}"] if names else []
    lost = f"Ahead of ours: {'; '.join(ahead)}. " if ahead else ""
    return (
        "The rarest class of each set is unusual: among new rows at most a tenth as many as usual ones, among fitted rows a "
        "twentieth. The rank is 1 for the best method of a set; means over sets. Seconds of processor time, to fit and to score. "
        f'{lost}With `contamination="auto"` ours flagged {sum(parts) / len(parts):.2f}% of new usual rows on average over all '
        f"{len(parts)} sets ({min(parts):.2f}% to {max(parts):.2f}%), where 1% is wanted.{not_reached(result)}"
    )


def texts_sentence(result: Result) -> str:
    """What the sets are, where ours is behind, and which claims do not hold."""
    rows = rows_of(result, "methods")
    found = {(row["set"], row["method"]): row for row in rows}
    sizes = ", ".join(f"{row['set']} {row['texts']:,} in {row['classes']} classes" for row in rows_of(result, "sizes"))
    behind = []
    for name in dict.fromkeys(row["set"] for row in rows):
        best = max((row for row in rows if row["set"] == name), key=lambda row: row["accuracy"])
        if best["method"] != "Lutetia":
            gap = best["accuracy"] - found[name, "Lutetia"]["accuracy"]
            behind.append(f"{best['method']} on {name} by {gap:.1f} points")
    lost = f"More accurate than ours: {', '.join(behind)}. " if behind else ""
    return (
        f"Accuracy in % and log loss; processor seconds of a fit and of predictions. Texts: {sizes}. How ours reads texts was "
        "chosen on messages, reviews and headlines, not on docstrings, sentences and tweets. Linear models and LightGBM get "
        "TF-IDF, of pairs too where it says so; HistGradientBoosting gets counts of 200 words. "
        f"{lost}{not_reached(result)}"
    )


def windows_sentence(result: Result) -> str:
    """What the sets are, on which the inputs were chosen, and where ours is behind."""
    sizes, rows = rows_of(result, "sizes"), rows_of(result, "methods")
    new = [row["set"] for row in sizes if row["seen"] == "not looked at before"]
    told = ", ".join(f"{row['set']} {row['series']:,} of {row['channels']} × {row['length']:,}" for row in sizes)
    behind = []
    for name in new:
        own = {row["method"]: row["accuracy"] for row in rows if row["set"] == name}
        best = max(own, key=lambda method: own[method])
        if own[best] > own["Lutetia"]:
            behind.append(f"{best} on {name} by {own[best] - own['Lutetia']:.1f} points")
    lost = f"More accurate than ours on new sets: {', '.join(behind)}." if behind else ""
    return (
        "Accuracy in %; processor seconds of a fit and of predictions, means of the new sets. Series, and channels × samples of "
        f"each: {told}. What is made of windows was chosen on the others, not on the new sets: {', '.join(new)}. LightGBM and "
        "RandomForest get our inputs, catch22 its own and a forest; with fewer than 40 rows LightGBM's defaults cannot split. "
        f"{lost}{not_reached(result)}"
    )


def forecasts_sentence(result: Result) -> str:
    """What the numbers are, and which claims do not hold."""
    ours = {row["set"]: row["rmse"] for row in rows_of(result, "sets") if row["method"] == "Lutetia"}
    plain = [row for row in rows_of(result, "sets") if row["method"] in ("last value", "a season before")]
    lost = [name for name in ours if any(row["set"] == name and row["rmse"] < ours[name] for row in plain)]
    worse = f" A forecast without a model is better than ours on {', '.join(lost)}." if lost else ""
    return (
        "First the RMSE as a multiple of that of the better forecast without a model, geometric means over the sets, and the "
        "processor time of a fit. Then the RMSE of each set. Twelve months ahead, but 5 days for exchange, 24 hours for nox, a "
        f"year for tree rings. ETS knows the season, ours finds it.{worse}{not_reached(result)}"
    )


def targets_sentence(result: Result) -> str:
    """What the numbers are, and which claims do not hold."""
    return (
        "First the error, the processor time of a fit and the tables, as a multiple of our model for each target: geometric "
        "means over the sets. Then the errors: the mean over the targets of RMSE as a part of the spread, or for doctor and "
        f"films of the log loss of labels. The sets were used to choose how targets share tables.{not_reached(result)}"
    )


def monotone_sentence(result: Result) -> str:
    """What the numbers are, how often answers go the wrong way, and which claims do not hold."""
    rows = [row for name in ("rmse", "accuracy") for row in rows_of(result, name)]
    ours = [row for row in rows if row["method"] == "Lutetia"]
    most, times = max(row["wrong, free"] for row in ours), [row["time"] for row in ours]
    return (
        "RMSE in the unit of the target, then accuracy in % of the same sets as two classes, above the median or not. "
        "Constraints, upwards: speed, hd, ram, screen; bmi, bp; carat, x, y, z; school; LNOxEm, and sqrtWS downwards; education. "
        f"Without constraints, up to {most:.0f}% of our steps through a constrained column go the wrong way; with them, none. "
        f"Our fit with constraints takes {min(times):.1f} to {max(times):.1f} times as long.{not_reached(result)}"
    )


def curves_sentence(result: Result) -> str:
    """What the numbers are, where others are ahead of ours within the same limit, and which claims do not hold."""
    ahead = []
    limits = {row["method"]: row["limit"] for row in rows_of(result, "means")}
    for name in dict.fromkeys(row["set"] for row in rows_of(result, "folds")):
        own = [row for row in rows_of(result, "folds") if row["set"] == name]
        sign = 1 if own[0]["task"] == "classification" else -1
        for ours in (row for row in own if row["method"] in ("Lutetia, curves", "Lutetia, pairs")):
            same = [row for row in own if limits[row["method"]] == limits[ours["method"]]]
            best = max(same, key=lambda row: sign * row["score"])
            if sign * best["score"] > sign * ours["score"]:
                ahead.append(f"{best['method']} on {name} ({limits[ours['method']]})")
    told = f" Better than ours within the same limit: {'; '.join(ahead)}." if ahead else ""
    return (
        "Accuracy in %, and RMSE as a multiple of that of our curves; the mean rank is that among methods of the same limit. "
        "EBM: an explainable boosting machine. Settings of ours were chosen on the other half of the sets. One fold of few rows "
        f"tells large differences alone.{told}{not_reached(result)}"
    )


def images_sentence(result: Result) -> str:
    """What was fitted, and which claims do not hold."""
    return (
        "*Lutetia* is what `lutetia train` fits: patterns if its own trial selects them, each image also shifted by a pixel, "
        "1,000 tables. *Pixels* has no patterns. *Unshifted* has 500 tables and sees each image as it is, as the others do. HOG: "
        "histograms of oriented gradients. CNN: four small convolutions, trained for the processor time of our fit. Tested on "
        "the 10,000 test images of MNIST, strips of photos, and a quarter of the other sets. Patterns were chosen on other sets "
        "and other images of MNIST; shift and number of tables on digits, photos, shapes and MNIST."
        f"{not_reached(result)}"
    )


OPERATIONS = {  # what stops a model, or cuts its input off, by the beginning of its name
    "LightGlue": "`detach` of its descriptors, and `nonzero` for its keypoints",
    "Mimi": "`argmin` of codes",
    "PeAudioEncoder": "its codec runs under `no_grad`",
    "Xcodec": "`argmin` of codes",
}


def models_sentence(result: Result) -> str:
    """How many models were explained, which of them not by their inputs or not as built, and what stopped the others."""
    rows = rows_of(result, "models")
    counts = {row["outcome"]: row["models"] for row in rows_of(result, "outcomes")}
    absent = counts["not built"]
    built = sum(counts.values()) - absent
    named = [row["model"] for row in rows if row["outcome"] == "embeddings"]
    cut = [name for name in named if name.startswith(tuple(OPERATIONS))]
    absorbed = [row for row in rows if row["outcome"] == "absorbed"]
    deaf = [row["model"] for row in absorbed if not row.get("faint")]
    ran, zeros = counts["ran"] + counts["embeddings"], [row["model"] for row in rows if row["outcome"] == "output 0"]
    stopped = [row["model"] for row in rows if row["outcome"] in ("linear", "stopped", "not finite")]
    others = f" Not explained: {', '.join(stopped)}." if stopped else ""
    return (
        f"{built - len(stopped):.0f} of {built:.0f} models that are built run with the weights they have. In {ran:.0f} "
        "relevance reaches an input. By their own embeddings: "
        f"{', '.join(name for name in named if name not in cut)}. By a "
        f"module: {_with_operations(cut)}. {len(zeros)} have an output of 0, and relevance 0: {', '.join(zeros)}. In "
        f"{len(absorbed)} biases and ε absorb everything: {len(absorbed) - len(deaf)} fade, and need an ε of 10⁻³⁰; "
        f"{len(deaf)} ignore their input: {', '.join(deaf)}.{others} {absent:.0f} more need packages or "
        "downloads."
    )


def sums_sentence(result: Result) -> str:
    """How far the sums of LRP-0 are off at most, without biases and where shares cancel."""
    rows = rows_of(result, "sums")
    plain, spread = ([row for row in rows if row["biases"] == kind] for kind in ("none", "redistributed"))
    off = [row for row in spread if row["exact above 1e-6"]]
    fine = max((row["exact"] for row in spread if row not in off), default=0.0)
    wild = "".join(
        f" In {row['exact above 1e-6']:.0f} row of the {row['model'].partition(',')[0]}, where shares are {row['cancels']:.0e} "
        f"times the output, by {row['exact']:.1g}."
        for row in off
    )
    return (
        f"Six kinds of nets, {sum(row['rows'] for row in rows):,.0f} rows. Without biases `r[x]` is off by at most "
        f"{max(row['float32'] for row in plain):.0e} of the output; redistributed, `r.exact(x)` by {fine:.0e}.{wild} Of "
        f"{sum(row['rows'] for row in spread):,.0f} such rows {sum(row['float32 above 1e-6'] for row in spread):.0f} are off by "
        "more than 10⁻⁶ once rounded to float32."
    )


def _with_operations(models: Sequence[str]) -> str:
    """The models by the operation that stops them; one without is an error."""
    reasons: dict[str, list[str]] = {}
    for model in models:
        start = next(start for start in OPERATIONS if model.startswith(start))
        reasons.setdefault(OPERATIONS[start], []).append(model)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def vision_sentence(result: Result) -> str:
    """How many nets of each library were explained, and which were not."""
    rows = rows_of(result, "models")
    parts = []
    for library, what in (("torchvision", "classifiers"), ("timm", "nets, one per module")):
        own = [row for row in rows if row["model"].startswith(library)]
        built = [row for row in own if row["outcome"] != "not built"]
        others = [row["model"].partition(" ")[2] for row in own if row["outcome"] != "ran"]
        but = f" (not {', '.join(others)})" if others else ""
        parts.append(f"{sum(row['outcome'] == 'ran' for row in own)} of {len(built)} of {library}'s {what}{but}")
    largest = max(row.get("nodes") or 0 for row in rows)
    return f"Explained: {'; '.join(parts)}. Their graphs have up to {largest:,.0f} nodes."


def gradient_sentence(result: Result) -> str:
    """The weight gradient into a new buffer, then added to an existing one; where a whole batch hits one row is left out."""
    rows = [row for row in rows_of(result, "weight gradient") if "one row" not in row["shape"]]
    anew, added = ([row for row in rows if row["kernel"] == f"weight gradient, {kind}"] for kind in ("anew", "added"))
    return (
        f"{range_of(anew, 'index_add_', 'x')} as fast as `index_add_` (whose time includes repeating the gradient for every "
        f"table), {range_of(anew, 'index_add_ per detector', 'x')} as fast as one per detector; added to an existing gradient, "
        f"{range_of(added, 'index_add_', 'x')}."
    )


def cpu_attention_sentence(result: Result) -> str:
    rows = [row for row in rows_of(result, "steps") if row["shape"] == "claimed"]
    return (
        f"A training step of {rows[0]['sizes']} is {range_of(rows, 'reference / step', 'x')} as fast as the reference; the "
        "claim is 20x."
    )


def tables_sentence(result: Result) -> str:
    ours, plain = (value(result, "tables", "tables per second", digits=4, what=what) for what in ("Lutetia", "plain torch"))
    return f"{ours} checked tables of 16 input bits a second (goal: 300) from Linear 16 → 64; plain torch, unchecked: {plain}."


def emission_sentence(result: Result) -> str:
    (row,) = rows_of(result, "emission")
    return (
        f"{row['neurons']:,} neurons of six inputs of two bits in {row['to Verilog']} seconds and {row['peak memory']} GiB; "
        "the goal is 60 seconds and 2 GiB."
    )


def growth_sentence(result: Result) -> str:
    rows = rows_of(result, "growth")
    steps = ", ".join(f"{row['over the length before']:.2f}" for row in rows[1:])
    return (
        f"From {rows[0]['length']:,} to {rows[-1]['length']:,} positions, each doubling of the length multiplies a training "
        f"step by {steps}; the last takes {rows[-1]['train, graph']:.3g} ms and {rows[-1]['peak memory']:.2g} GiB. Memory "
        "grows linearly."
    )


def reads_sentence(result: Result) -> str:
    rows = rows_of(result, "reads")
    times = "; ".join(f"`{row['read']}` {row['eval, graph']:.3g} and {row['train, graph']:.3g}" for row in rows)
    return (
        f"Milliseconds in a graph, eval and training step: {times}. That is {range_of(rows, 'eval', 'x')} and "
        f"{range_of(rows, 'train', 'x')} as fast as the original's author reports for an H100, mode not stated."
    )


def floors_sentence(result: Result) -> str:
    parts = [
        f"{row['shape']}: {row['eval, graph']:.3g} and {row['train, graph']:.3g} ms, floor {row['eval floor']:.3g} and "
        f"{row['train floor']:.3g} ms"
        for row in rows_of(result, "floors")
    ]
    return f"Eval and training step. {'; '.join(parts)}. 10x the original's eager training step cannot be reached here."


def clock_sentence(result: Result) -> str:
    parts = [
        f"{row['network']} at speed grade {row['speed grade']}: {row['clock']:.1f} MHz, {row['cycles']} cycles "
        f"({row['answer']:.0f} ns), {row['LUT4']:,} LUT4, {row['flip-flops']:,} flip-flops"
        for row in rows_of(result, "clock")
    ]
    numbers = {tool: re.search(r"\d+[.]\d+", result["settings"][tool]) for tool in ("yosys", "nextpnr")}
    tools = ", ".join(f"{tool} {found[0]}" for tool, found in numbers.items() if found)
    return f"{'; '.join(parts)} ({tools}), not counting what feeds it. It is seed 0 of the network of 98.42%."


def gates_sentence(result: Result) -> str:
    rows = rows_of(result, "training")
    *_, network = rows
    return (
        "10,000 test images. Ours counts everything from 8-bit pixels to the class; 1,000 simulated images of one seed agreed. "
        "Settings were chosen on held-out training images; those of the smallest network by test accuracy. "
        f"The network of 98.42% trains in {sum(row['seconds'] for row in rows):.0f} seconds with its teachers "
        f"(one seed: {network['accuracy']}%, {network['LUTs']:,} LUTs). Counts of others are from papers."
    )


def torchlogix_sentence(result: Result) -> str:
    parts = [f"{row['network']}: {row['accuracy']}% with {row['LUT6']:,} LUT6" for row in rows_of(result, "networks")]
    return f"{'; '.join(parts)}. 30 simulated images agreed; tuned by us, not by its authors."


def int8_sentence(result: Result) -> str:
    rows = rows_of(result, "layers")
    return f"One layer of 256 tables takes less processor time: {range_of(rows, 'faster', 'x', 3)} as fast at batch 1 and 256."


def faithful_sentence(result: Result) -> str:
    rows, settings = rows_of(result, "areas"), result["settings"]
    ours = [row for row in rows if row["rule"] == "decisive"]
    knowing = [row for row in rows if row["rule"] in KNOWING]
    counts = [(settings[f"inputs{kind}"], settings[f"seeds{kind}"]) for kind in ("", " of text") if f"inputs{kind}" in settings]
    digits, text = (counts[0], counts[-1])
    return (
        f"{digits[0]} digits, {digits[1]} models of each kind, a pixel becomes its mean; {text[0]} pieces of 32 bytes, "
        f"{text[1]} of each kind, a byte becomes another one. `decisive` beats gradient × input by {range_of(ours, 'z')} "
        f"standard errors. An order that knows the replacement (gradient × (x - mean), or the last byte first) reaches "
        f"{range_of(knowing, 'probability')}."
    )


KNOWING = ("gradient × (x - mean)", "last byte first")  # no fair competitors of rules


def integer_sentence(result: Result) -> str:
    """C against Python and against the fastest dense engine, whose model is no worse."""
    rows = rows_of(result, "engines")
    rates = {row["engine"]: row["written"] for row in rows if "written" in row}
    own, python = rates["tables, C"], rates["tables, Python"]
    best = max((name for name in rates if name.startswith("dense")), key=lambda name: rates[name])
    return (
        f"C writes {own / python:.0f} times as fast as Python's `generate` and {own / rates[best]:.1f} times as fast as the "
        f"fastest dense engine, {best.removeprefix('dense, ')}. The dense model is the smallest tried whose validation loss is "
        "no higher after as many steps on the same text."
    )


def trees_sentence(result: Result) -> str:
    rows = rows_of(result, "trees")
    worst, same = max(row["difference"] for row in rows), min(row["same classes"] for row in rows)
    return (
        f"Sums differ by at most {worst:.1g} of the largest, and {same:.2%} of the classes are the same. Ours are taken as "
        "having no missing values. Our C is in whole numbers of 8 bits, that of the others in floats. A dash: the peer does not "
        "read the model."
    )


def microcontroller_sentence(result: Result) -> str:
    rows = {row["method"]: row for row in rows_of(result, "means") if row["size"] == "16 KB"}
    forest, own = rows["emlearn forest"], rows["Lutetia"]
    return (
        "Columns are readings of 12 bits, the same for all. Bytes are what a program adds to an empty one, steps the mean "
        "of five rows, in simavr and qemu. 16 KB: of a few shapes, each as large as fits, the best on a fifth of the training "
        f"rows. A forest of emlearn takes {own['AVR cycles'] / forest['AVR cycles']:.0f}x fewer cycles than tables, as it stops "
        "at a leaf. The weights of its network lie in RAM on an AVR. A dash: the C has more than a megabyte, or does not fit."
        f"{not_reached(result)}"
    )

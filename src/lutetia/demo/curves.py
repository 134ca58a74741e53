"""A model that can be read whole: the progression of diabetes as a sum of one curve for each measurement."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.demo.telling import Context, Told
from lutetia.errors import require
from lutetia.report import CellTable, write_curves

HELD_OUT = 4  # every fourth patient
TARGET = "progression"
TABLES = 600
SHOWN = 5  # measurements in the report
WHOLE = (
    "Each table of this model compares one measurement, so the prediction is an average and one curve for each of them: "
    "curves.html, beside this page, is the whole model. These five move the prediction most, on average over the patients."
)


def tell(context: Context) -> Told:
    """Fit curves to three quarters of the patients, draw them, and compare their error with that of tables without limits."""
    datasets: Any = require("sklearn.datasets", "the patients of the demo", "scikit-learn")
    from lutetia.sklearn import LUTRegressor

    data = datasets.load_diabetes(scaled=False)
    held = np.arange(len(data.target)) % HELD_OUT == 0
    x, y, names = data.data[~held], data.target[~held], list(data.feature_names)
    model = LUTRegressor(TABLES, 2, candidates=8, interaction_cst="no_interactions", random_state=0).fit(x, y)
    model.model_.metadata |= {"features": names, "target": TARGET}
    path = context.out / "curves.html"
    found = model.curves(x)
    write_curves(path, found, "The progression of diabetes, curve by curve")
    errors = [
        float(np.sqrt(np.mean((each.predict(data.data[held]) - data.target[held]) ** 2)))
        for each in (model, LUTRegressor(TABLES, random_state=0).fit(x, y))
    ]
    cells = [(each.name, f"{each.importance:.1f}") for each in found.curves[:SHOWN]]
    context.data.append(CellTable(("measurement", "moves it by"), cells, WHOLE, "A model that can be read whole"))
    return Told(
        f"{len(found.curves)} curves are the whole of a model of diabetes: its error on {int(held.sum())} unseen patients is "
        f"{errors[0]:.1f}, that of tables without limits {errors[1]:.1f}; {cells[0][0]} moves the prediction most",
        (path,),
    )

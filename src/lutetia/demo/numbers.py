"""A number from a table of data: the progression of diabetes after a year, with an interval, never lower for a higher body mass
index."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.demo.telling import Context, Told
from lutetia.errors import require
from lutetia.files import write_atomically
from lutetia.report import CellTable

HELD_OUT = 4  # every fourth patient
TARGET, RISING = "progression", "bmi"
TABLES = 60
SHOWN = 5  # patients in the report
STEPS = (18, 24, 30, 36, 42)  # body mass indices of one patient
INTERVALS = (
    "An index of how far diabetes had progressed after a year, from ten earlier measurements. Intervals are meant to hold the "
    "true value for nine in ten patients like those of the fit. Their width differs from row to row."
)
APART = (
    "The average prediction for the patients of the fit is {average:.0f}; for the first unseen patient it is {number:.0f}. Exact "
    "Shapley values say how far each measurement moves the prediction. These five move it most."
)
RISES = f"With a constraint (monotonic_cst={{{RISING!r}: 1}}) no prediction falls as the body mass index rises, in any row."


def tell(context: Context) -> Told:
    """Fit `LUTRegressor` to three quarters of the patients, save it and the rest, and give intervals for the rest."""
    datasets: Any = require("sklearn.datasets", "the patients of the demo", "scikit-learn")
    from lutetia.sklearn import LUTRegressor

    data = datasets.load_diabetes(scaled=False)
    names, bmi = list(data.feature_names), list(data.feature_names).index(RISING)
    held = np.arange(len(data.target)) % HELD_OUT == 0
    x, y = data.data[held], data.target[held]
    signs = [int(name == RISING) for name in names]
    model = LUTRegressor(TABLES, 3, intervals=True, early_stopping=False, monotonic_cst=signs, random_state=1)
    model.fit(data.data[~held], data.target[~held])
    model.model_.metadata |= {"features": names, "target": TARGET}
    model.save(context.out / "diabetes")
    file = context.out / "diabetes.csv"
    with write_atomically(file) as out:
        rows = [[*names, TARGET], *([*row, number] for row, number in zip(x, y, strict=True))]
        out.write("".join(",".join(map(str, row)) + "\n" for row in rows).encode())
    middle, ends = model.predict(x), model.predict_interval(x)
    low, high = ends.T
    inside = int(((low <= y) & (y <= high)).sum())
    cells = [
        (float(row[bmi]), round(number), f"{a:.0f} to {b:.0f}".replace("-", "−"), round(truth))
        for row, number, (a, b), truth in list(zip(x, middle, ends, y, strict=True))[:SHOWN]
    ]
    context.data.append(
        CellTable((RISING, "prediction", "interval", "true value"), cells, INTERVALS, "A number, with an interval")
    )
    moved = np.repeat(x[:1], len(STEPS), 0)
    moved[:, bmi] = STEPS
    risen = model.predict(moved)
    rising = [(step, round(number)) for step, number in zip(STEPS, risen, strict=True)]
    context.data.append(CellTable((RISING, "prediction"), rising, RISES, "The first patient, with another body mass index"))
    found = model.explain(x[:1], rule="shapley", background=data.data[~held])
    assert found.average is not None
    order = np.argsort(-np.abs(found.relevance[0]))[:SHOWN]
    apart = [(names[at], float(x[0, at]), f"{found.relevance[0, at]:+.1f}".replace("-", "−")) for at in order]
    said = APART.format(average=found.average[0], number=middle[0])
    context.data.append(CellTable(("measurement", "value", "moves it by"), apart, said, "What sets the first patient apart"))
    context.figures[f"of {len(y)} unseen patients within their 90% intervals"] = f"{inside / len(y):.1%}"
    return Told(
        f"{TABLES} tables predict the progression of diabetes: {inside} of {len(y)} unseen patients lie within their 90% "
        f"intervals. The first is predicted {middle[0]:.0f} ({low[0]:.0f} to {high[0]:.0f}); the true value is {y[0]:.0f}. "
        f"{names[order[0]]} moves it furthest from the average of {found.average[0]:.0f}. "
        f"A higher body mass index never lowers the prediction: {', '.join(f'{number:.0f}' for number in risen)}",
        (context.out / "diabetes", file),
    )

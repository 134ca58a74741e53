"""Unusual rows, found from usual ones alone: tumours that are not like the benign ones, and why one of them is not."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.demo.telling import Context, Told
from lutetia.errors import require
from lutetia.report import CellTable

HELD_OUT = 4  # every fourth benign tumour
BENIGN = 1
TABLES = 200
SHOWN = 5  # comparisons in the report
ASKED = (
    "Tables were fitted to benign tumours alone. They flag rows that are not like these, and about one in a hundred that is. "
    "These comparisons add most to the score of the first malignant tumour that they flag."
)


def tell(context: Context) -> Told:
    """Fit `LUTOutlierDetector` to three quarters of the benign tumours, and look at the others and the malignant ones."""
    datasets: Any = require("sklearn.datasets", "the tumours of the demo", "scikit-learn")
    from lutetia.sklearn import LUTOutlierDetector

    data = datasets.load_breast_cancer()
    benign, malignant = data.data[data.target == BENIGN], data.data[data.target != BENIGN]
    held = np.arange(len(benign)) % HELD_OUT == 0
    model = LUTOutlierDetector(TABLES, contamination="auto", random_state=0).fit(benign[~held])
    model.model_.metadata |= {"features": list(map(str, data.feature_names))}
    model.save(context.out / "unusual")
    flagged = model.predict(malignant) < 0
    alarms = int((model.predict(benign[held]) < 0).sum())
    explained = model.explain(malignant[flagged][:1])
    cells = [(each.text, f"{each.effect:+.2f}".replace("-", "−")) for each in explained.comparisons[0][:SHOWN]]
    context.data.append(CellTable(("comparison", "effect"), cells, ASKED, "Why a tumour is unusual"))
    context.figures[f"of {len(malignant)} malignant tumours found unusual, by tables that knew benign ones alone"] = (
        f"{flagged.mean():.1%}"
    )
    return Told(
        f"{TABLES} tables know {int((~held).sum())} benign tumours and nothing else: they flag {int(flagged.sum())} of "
        f"{len(malignant)} malignant ones, and {alarms} of {int(held.sum())} unseen benign ones; why the first is unusual:",
        (context.out / "unusual",),
        "\n".join(f"    {name} ({effect})" for name, effect in cells[:3]),
    )

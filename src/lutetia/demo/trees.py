"""A model that scikit-learn has fitted: boosted trees become tables that predict the same, and then have reasons."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.demo.telling import Context, Told
from lutetia.errors import require
from lutetia.files import write_atomically
from lutetia.report import CellTable

HELD_OUT = 4  # every fourth tumour
TARGET, CLASSES = "diagnosis", ["malignant", "benign"]
ROUNDS, DEPTH = 20, 3
SHOWN = 5  # measurements in the report
APART = (
    "Scikit-learn's gradient boosting was fitted to three quarters of the tumours, and taken over as it is: {tables} tables give "
    "the probabilities of {rounds} rounds of trees. Exact Shapley values say how far each measurement of an unseen tumour that "
    "is read as {answer} moves the score of that class away from the average. These five move it most."
)


def tell(context: Context) -> Told:
    """Fit trees, take them over, compare all probabilities, save the tables and the rows that were not fitted."""
    datasets: Any = require("sklearn.datasets", "the tumours of the demo", "scikit-learn")
    from sklearn.ensemble import GradientBoostingClassifier

    from lutetia.integrations.trees import from_trees

    data = datasets.load_breast_cancer()
    names = list(map(str, data.feature_names))
    held = np.arange(len(data.target)) % HELD_OUT == 0
    x, y = data.data[held], data.target[held]
    trees = GradientBoostingClassifier(n_estimators=ROUNDS, max_depth=DEPTH, random_state=0)
    trees.fit(data.data[~held], data.target[~held])
    model = from_trees(trees, class_names=CLASSES, missing="none")
    model.model_.metadata |= {"features": names, "target": TARGET}
    model.save(context.out / "trees")
    file = context.out / "tumours.csv"
    rows = [[*names, TARGET], *([*row, CLASSES[number]] for row, number in zip(x, y, strict=True))]
    with write_atomically(file) as out:
        out.write("".join(",".join(map(str, row)) + "\n" for row in rows).encode())
    apart = float(np.abs(model.predict_proba(x) - trees.predict_proba(x)).max())
    predicted = model.predict(x)
    equal = int((predicted == trees.predict(x)).sum())
    shown = x[int(np.argmax(predicted == 0))]  # the first that is read as malignant
    found = model.explain(shown[None], rule="shapley", background=data.data[~held])
    order = np.argsort(-np.abs(found.relevance[0]))[:SHOWN]
    n_tables = len(model.model_.tables.anchors)
    cells = [(names[at], float(shown[at]), f"{found.relevance[0, at]:+.2f}".replace("-", "−")) for at in order]
    said = APART.format(tables=n_tables, rounds=ROUNDS, answer=CLASSES[0])
    context.data.append(CellTable(("measurement", "value", "moves the score by"), cells, said, "Trees of another library"))
    within = "less than a millionth" if apart < 1e-6 else f"{apart:.1e}"
    return Told(
        f"{ROUNDS} rounds of scikit-learn's trees are now {n_tables} tables: {equal} of {len(y)} unseen tumours get the same "
        f"class, with probabilities that differ by {within}",
        (context.out / "trees", file),
    )

"""A table of data: wines classified by their measurements, with the comparisons that decided for one of them."""

from __future__ import annotations

from typing import Any

from lutetia.demo.telling import Context, Told
from lutetia.errors import require
from lutetia.files import write_atomically
from lutetia.report import CellTable

HELD_OUT = 4  # every fourth wine
TARGET = "cultivar"
TABLES = 60
SHOWN = 8  # comparisons in the report
BY_RANK = (
    "The strongest comparisons, with their answers for this wine. The effect is how much of its lead over the other classes it "
    "would lose with the opposite answer. By rank: each value's place in its own column is compared."
)


def tell(context: Context) -> Told:
    """Fit `LUTClassifier` to three quarters of the wines, save it and the rest, and explain the first of the rest."""
    datasets: Any = require("sklearn.datasets", "the wines of the demo", "scikit-learn")
    from lutetia.sklearn import LUTClassifier

    wine = datasets.load_wine()
    held = [number % HELD_OUT == 0 for number in range(len(wine.target))]
    fit = [not each for each in held]
    names = wine.target_names[wine.target]
    model = LUTClassifier(n_tables=TABLES, random_state=0).fit(wine.data[fit], names[fit])
    model.model_.metadata |= {"features": list(wine.feature_names), "target": TARGET}
    model.save(context.out / "wine")
    file = context.out / "wine.csv"
    rows = [[*wine.feature_names, TARGET], *([*row, name] for row, name in zip(wine.data[held], names[held], strict=True))]
    with write_atomically(file) as out:
        out.write("".join(",".join(map(str, row)) + "\n" for row in rows).encode())
    right = model.score(wine.data[held], names[held])
    explained = model.explain(wine.data[held][:1])
    strongest = explained.comparisons[0][:SHOWN]
    context.figures[f"of {sum(held)} unseen wines classified correctly"] = f"{right:.1%}"
    why = f"Why the first unseen wine was classified as {model.predict(wine.data[held][:1])[0]}"
    cells = [(each.text, f"{each.effect:+.2f}") for each in strongest]
    context.data.append(CellTable(("comparison", "effect"), cells, BY_RANK, why))
    said = f"{TABLES} tables classify {sum(held)} unseen wines, {right:.1%} correctly; what decided for the first"
    return Told(
        f"{said} (by rank: each value's place in its own column):",
        (context.out / "wine", file),
        "\n".join(f"    {each}" for each in strongest[:3]),
    )

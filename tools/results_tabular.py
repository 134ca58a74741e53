"""What the results pages show of models of tables of data, images, texts and signals."""

from __future__ import annotations

from results import Row
from results_sentences import (
    curves_sentence,
    forecasts_sentence,
    images_sentence,
    intervals_sentence,
    losses_sentence,
    microcontroller_sentence,
    monotone_sentence,
    predict_sentence,
    ranking_sentence,
    tabular_sentence,
    targets_sentence,
    texts_sentence,
    trees_sentence,
    unusual_sentence,
    windows_sentence,
)
from results_tables import Section, Spread, column, table

RANKERS = ("Lutetia", "LightGBM", "XGBoost", "by chance")
CALLS = ("Lutetia", "HistGradientBoosting", "LightGBM", "XGBoost", "LightGBM Booster", "XGBoost Booster")
BYTES_AND_STEPS = ("AVR flash", "AVR RAM", "AVR cycles", "M0 flash", "M0 RAM", "M0 instructions")
TABULAR = ("Lutetia", "HistGradientBoosting", "LightGBM", "XGBoost", "MLP")


DETECTORS = ("Lutetia", "IsolationForest", "LOF", "OneClassSVM", "EllipticEnvelope", "kNN", "ECOD", "COPOD", "HBOS")


def is_reported(row: Row) -> bool:
    """Whether a set was not used to choose our defaults."""
    return row["half"] == "report"


TREES = Section(
    "Imported trees",
    "trees",
    [
        table(
            "trees",
            "model",
            "tables",
            "rows of each",
            column("Lutetia, ms", "Lutetia"),
            column("library, ms", "library"),
            column("treelite, ms", "treelite"),
            column("Lutetia, C", "Lutetia C"),
            column("m2cgen, C", "m2cgen C"),
            column("TL2cgen, C", "TL2cgen C"),
        )
    ],
    trees_sentence,
    setting="Two classes, 100 rounds of depth 6, 12 columns: processor time for 10,000 rows on one thread, bytes of C by cc -Os.",
)

TABLE_SECTIONS = [
    Section(
        "Tables of data",
        "tabular",
        [
            Spread("means", ("mean", "mean rank", "seconds"), "task", ("method",), digits=4, where=is_reported),
            table("accuracy", "set", *(column(name, digits=4) for name in TABULAR), where=is_reported),
            table("rmse", "set", *(column(name, digits=4) for name in TABULAR), where=is_reported),
        ],
        tabular_sentence,
        setting="Default settings, chosen on other sets (computers was looked at twice).",
    ),
    Section(
        "Predictions",
        "predict",
        [table("calls", "set", "rows", *(column(name) for name in CALLS))],
        predict_sentence,
        setting="Default settings; microseconds of processor time of a call, one thread.",
    ),
    Section(
        "Losses of regressions",
        "tabular_losses",
        [
            Spread("means", ("mean", "mean rank", "seconds"), "task", ("method",), digits=4, where=is_reported),
            table("losses", "loss", "set", *(column(name, digits=4) for name in TABULAR[:-1]), where=is_reported),
        ],
        losses_sentence,
        setting="Default settings except for the loss, chosen on other sets (solder was looked at twice).",
    ),
    Section(
        "Rankings",
        "ranking",
        [
            table("means", "method", *(column(name, digits=4) for name in ("NDCG@10", "NDCG@5", "seconds")), where=is_reported),
            table("sets", "set", "kind", "queries", *(column(name, digits=4) for name in RANKERS), where=is_reported),
        ],
        ranking_sentence,
        setting="Default settings, chosen on other sets.",
    ),
    Section(
        "Several targets",
        "targets",
        [
            table("means", "method", *(column(name, digits=3) for name in ("error", "seconds", "tables"))),
            Spread("sets", ("error",), "set", ("method",), digits=3),
        ],
        targets_sentence,
        setting="Default settings, three folds.",
    ),
    Section(
        "Unusual rows",
        "unusual",
        [
            table(
                "means",
                "rows",
                "method",
                "ROC AUC",
                column("rank", "rank by ROC AUC"),
                "average precision",
                column("rank", "rank by average precision"),
                "seconds",
                where=is_reported,
            ),
            table("ROC AUC", "set", "rows", *DETECTORS, where=is_reported),
            table("average precision", "set", "rows", *DETECTORS, where=is_reported),
        ],
        unusual_sentence,
        setting="Default settings, chosen on other sets; one thread, three draws of each set.",
    ),
    Section(
        "Texts",
        "texts",
        [
            table("means", "method", *(column(name, digits=4) for name in ("accuracy", "log loss", "fit", "predict"))),
            Spread("methods", ("accuracy", "log loss"), "set", ("method",), digits=4),
        ],
        texts_sentence,
        setting="Default settings, one thread, three folds.",
    ),
    Section(
        "Windows of signals",
        "windows",
        [
            table("means", "method", *(column(name, digits=4) for name in ("new sets", "chosen on", "fit", "predict"))),
            Spread("methods", ("accuracy",), "set", ("method",), digits=4),
        ],
        windows_sentence,
        setting="Default settings, one thread, three splits of each set.",
    ),
    Section(
        "Forecasts",
        "forecasts",
        [
            table("means", "method", column("RMSE", "rmse", digits=3), "best on", column("seconds", digits=2)),
            Spread("sets", ("rmse",), "set", ("method",), digits=3),
        ],
        forecasts_sentence,
        setting="Default settings; the latest fifth of each series, at a hundred moments.",
    ),
    Section(
        "Microcontrollers",
        "microcontroller",
        [
            table("means", "method", "size", column("accuracy", digits=4), *BYTES_AND_STEPS),
            table("sets", "set", "method", "size", column("accuracy", digits=4), *BYTES_AND_STEPS),
        ],
        microcontroller_sentence,
        setting="C by gcc -Os, three folds, at most 1,000 rows of a set of columns.",
    ),
    Section(
        "Monotonic constraints",
        "monotone",
        [
            Spread("rmse", ("free", "constrained"), "set", ("method",), digits=4),
            Spread("accuracy", ("free", "constrained"), "set", ("method",), digits=4),
        ],
        monotone_sentence,
        setting="Default settings, without constraints and with plausible ones.",
    ),
    Section(
        "Curves",
        "curves",
        [
            table(
                "means",
                "limit",
                "method",
                *(column(name, digits=4) for name in ("accuracy", "RMSE ratio")),
                *(column(name, digits=2) for name in ("mean rank", "seconds")),
                where=is_reported,
            ),
            Spread("folds", ("score",), "set", ("method",), digits=4, where=is_reported),
        ],
        curves_sentence,
        setting="At most 2,000 rows of each set, one fold of five, one thread.",
    ),
    Section(
        "Intervals of predicted numbers",
        "intervals",
        [
            table(
                "sets",
                "set",
                column("equally wide: inside (hardest fifth)", "equal, inside", "equal, hardest fifth inside"),
                column("**by row**: inside (hardest fifth)", "own, inside", "own, hardest fifth inside"),
                column("mean width, by row / equal", "width"),
                column("time to fit", "fit time"),
            )
        ],
        intervals_sentence,
        setting="Means of ten divisions, at most 6,000 rows.",
    ),
    Section(
        "Images",
        "images",
        [Spread("sets", ("accuracy",), "set", ("method",), digits=4)],
        images_sentence,
        setting="Default settings, accuracy in %.",
    ),
    Section(
        "Tables in a circuit",
        "circuit_tables",
        [
            table(
                "sets",
                "set",
                "classes",
                "model",
                column("first tables (how many)", "first tables", "their number"),
                column("fitted again (how many)", "fitted again", "tables"),
                column("built", "circuit"),
                column("a quarter of its tables", "a quarter"),
            )
        ],
        "Accuracy of the whole model, of circuits of its first tables without and with a second fit of their rows, and of the "
        "circuit that `lutetia build` makes, which a trial on training rows selects. On marketing all 500 tables overfit.",
        setting="One fold, 6-bit weights. Models of two classes are built whole.",
    ),
]

"""What the results pages show of learning with tables: int8 tables, learned anchors, n-gram tables over many passes."""

from __future__ import annotations

from results_tables import Section, column, table

LEARNING_SECTIONS = [
    Section(
        "Int8 tables",
        "int8",
        [
            table(
                "models",
                "model",
                column("bits per byte, float32", digits=5),
                column("bits per byte, int8", digits=5),
                column("bytes of tables, int8 / float32", "share", digits=2),
            ),
            table("layers", "layer", "batch", "float32", "int8", "faster"),
        ],
        "Processor time of one layer in microseconds, one thread.",
    ),
]

LEARNING_NOTES = [
    Section(
        "Learned anchors",
        "anchors",
        [
            table("anchors", "data", "read", "anchors", column("accuracy", digits=4), "seconds"),
            table("language", "read", "anchors", column("bits per byte", digits=4), "seconds"),
        ],
        "Equal tables and steps, three seeds, processor time of training. The mix is ahead in three cases of four and level on "
        "the digits with confidence2. Re-drawing gains up to 0.4 points on MNIST and nothing on the digits. In the small "
        "language model the sums, whose weights start near zero, are behind after 300 steps (one seed).",
    ),
    Section(
        "N-gram tables over many passes",
        "sweep_ngrams",
        [
            table(
                "runs",
                "feed-forward",
                "blocks",
                "orders",
                "rows",
                "dropout of rows",
                "dropout of orders",
                column("rate", "lr", digits=1),
                "decay",
                column("eps", digits=1),
                "passes",
                column("training", digits=4),
                column("validation", digits=4),
                column("test", digits=4),
            )
        ],
        "Bits per byte of small models on a twentieth of enwik8, one seed. Rows of many orders, dropped orders, and more blocks "
        "in the place of the feed-forward help.",
    ),
]

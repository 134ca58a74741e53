"""What the results pages show of learning with tables: int8 tables, learned anchors, n-gram tables over many passes."""

from __future__ import annotations

from results import Row
from results_sentences import faithful_sentence, feed_forwards_sentence, int8_sentence
from results_tables import Section, Spread, column, table

SHOWN_RULES = ("random order", "gradient", "occlusion", "epsilon", "decisive")


def has_default_rates(row: Row) -> bool:
    """Whether the n-gram tables, if there are any, had the rate, decay and eps that they have by default."""
    return row.get("lr") is None or (row["lr"], row["decay"], row["eps"]) == (0.01, 0.5, 1e-8)


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
        ],
        int8_sentence,
    ),
]

LEARNING_NOTES = [
    Section(
        "Learned anchors",
        "anchors",
        [
            Spread("anchors", ("accuracy",), "anchors", ("data", "read"), digits=4),
            Spread("language", ("bits per byte",), "anchors", ("read",), digits=4),
        ],
        "Equal tables and steps, three seeds. The mix leads in three cases of four; in the language model it is "
        "behind after 300 steps (one seed).",
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
                column("training", digits=4),
                column("test", digits=4),
                where=has_default_rates,
            )
        ],
        "Bits per byte of small models after 15 passes over a twentieth of enwik8, one seed. Rows of many orders, dropped "
        "orders, and more blocks in place of the feed-forward help.",
    ),
    Section("Table feed-forwards", "sweep_tables", [], feed_forwards_sentence),
]

FAITHFUL_NOTES = [
    Section(
        "Models of tables",
        "lut_faithfulness",
        [Spread("areas", ("probability",), "model", ("rule",), where=lambda row: row["rule"] in SHOWN_RULES)],
        faithful_sentence,
        setting="Mean probability of the original decision while inputs are replaced, most relevant first: less is better.",
    )
]

"""What docs/results.md and docs/notes/results.md show of the results: which columns, under which heading, with which words."""

from __future__ import annotations

from results import Row, rows_of
from results_learning import LEARNING_NOTES, LEARNING_SECTIONS
from results_sentences import (
    attention_sentence,
    cpu_sentence,
    dense_sentence,
    layer_sentence,
    ragged_sentence,
    rates_sentence,
    relevance_sentence,
    serving_sentence,
    tabular_sentence,
    train_cpu_sentence,
)
from results_tables import Section, Spread, Table, column, range_of, table

MILLION = 1e6

INTRODUCTION = """# Results

<!-- written by tools/make_results.py from benchmarks/results: change those files, then run `make results` -->

Generated from the files in `benchmarks/results`, which also hold all versions, commits, settings and columns. Above 1x Lutetia is
faster. *Original* is Spiky, the CUDA library behind the LUT runtime. Two numbers in a cell are eval / training step; a dash
is a range over runs. [How this was measured](notes/measuring.md) · [what others do better](comparison.md) ·
[more, for kernel authors](notes/results.md)
"""

NOTES = """# Notes: more measurements

<!-- written by tools/make_results.py from benchmarks/results: change those files, then run `make results` -->

Kernels one by one, floors, faithfulness, and the steps of a build. The rest: [Results](../results.md).
"""


STEP_COLUMNS = [
    column("shape"),
    column("original, eager", "original eval, eager", "original train, eager"),
    column("Lutetia, eager", "eval, eager", "train, eager"),
    column("**eager / eager**", "eval, eager/eager", "train, eager/eager", digits=2),
    column("original, graph", "original eval, graph", "original train, graph"),
    column("Lutetia, graph", "eval, graph", "train, graph"),
    column("**graph / graph**", "eval, graph/graph", "train, graph/graph", digits=2),
]
STEP_SETTING = "Milliseconds, float32. The original cannot be captured as shipped: its graph times are of a patched build."
TABULAR = ("Lutetia", "HistGradientBoosting", "LightGBM", "XGBoost", "MLP")
SHAPES = "B batch, I inputs, O outputs, N_t tables, N_c comparisons each."


def is_reported(row: Row) -> bool:
    """Whether a set was not used to choose our defaults."""
    return row["half"] == "report"


CIRCUITS = table("circuits", "network", column("accuracy", digits=4), "LUTs", column("encoder counted", "encoder"), "tool")


def kernel_table(name: str, kernel: str, **peers: str) -> Table:
    """The rows of one kernel on the CPU; where a whole batch hits one row is not shown."""
    columns = [column("shape"), *(column(heading, key) for key, heading in peers.items())]
    return Table(name, columns, lambda row: row["kernel"] == kernel and "one row" not in row["shape"])


LUT_SECTIONS = [
    Section(
        "One LUT layer on a GPU", "lut_step", [table("layers", *STEP_COLUMNS)], layer_sentence, setting=f"{STEP_SETTING} {SHAPES}"
    ),
    Section(
        "LUT attention on a GPU",
        "lut_attention",
        [table("layers", STEP_COLUMNS[0], "algorithm", *STEP_COLUMNS[1:])],
        attention_sentence,
        setting="As above; S length, E inputs and outputs, N_pe position bits.",
    ),
    Section(
        "LUT layers on two CPU cores",
        "lut_cpu",
        [
            kernel_table(
                "forward",
                "eval forward",
                **{
                    "addresses + embedding_bag": "addresses + `embedding_bag`",
                    "fused row loop": "fused row loop",
                    "eager torch": "eager torch",
                },
            )
        ],
        cpu_sentence,
        setting="Eval forward. On a shared machine ratios move by 10 to 20%.",
    ),
]

MODEL_SECTIONS = [
    Section(
        "Generating on two CPU cores",
        "generate",
        [
            table(
                "bytes",
                "model",
                column("weights, millions", "weights", scale=MILLION),
                "cached",
                "recomputed",
                "ratio",
                where=lambda row: row["part"] == "last bytes",
            )
        ],
        "Milliseconds per byte at batch 1, last bytes of a context of 256.",
    ),
    Section(
        "Training on two CPU cores",
        "train_cpu",
        [
            table(
                "runs",
                "run",
                "samples per second",
                "over the C program",
                column("validation loss, nats per byte", "loss", digits=4),
            )
        ],
        train_cpu_sentence,
        setting="After 8,192 samples of 32 bytes; six layers of tables, 3.2 GB, updated in place.",
    ),
    Section(
        "MNIST",
        "train_mnist",
        [table("accuracy", "network", "seed", "weights", column("test accuracy", digits=4))],
        "Ten epochs, one to two minutes; the checkpoint is the best on 5,000 held-out images.",
    ),
    *LEARNING_SECTIONS,
    Section(
        "Tiny Shakespeare",
        "train_shakespeare",
        [
            table(
                "loss",
                "feed-forward",
                column("weights, millions", "weights", scale=MILLION),
                column("seed 0", digits=4),
                column("seed 1", digits=4),
            )
        ],
        "Lowest validation loss, nats per byte, after the same bytes. Dropout, which the dense twin lacks, is part of the gap.",
    ),
    Section(
        "enwik8",
        "train_enwik8",
        [
            table(
                "bits",
                "model",
                "time",
                column("weights, millions", "weights", scale=MILLION),
                "steps",
                column("passes over the text", "passes"),
                column("test", digits=4),
            ),
            table(
                "shared",
                "feed-forward",
                column("weights, millions", "weights", scale=MILLION),
                column("steps in 8 minutes", "steps"),
                column("test", digits=4),
            ),
        ],
        "Bits per byte, one seed. N-gram tables lead by 0.06 within the first pass, and by 0.013 after fifteen, when their rows "
        "have begun to memorise. The run of 2.6 minutes shared the GPU for most of them: its steps take 86 seconds alone. Second "
        "table: two older runs that shared a GPU, without graphs; tables in place of the feed-forward lose to the dense twin.",
    ),
]

ATTENTION_SECTIONS = [
    Section(
        "Decode attention on a GPU",
        "decode_attention",
        [
            table(
                "dense",
                column("batch, length", "shape"),
                column("Lutetia", digits=4),
                column("SDPA cuDNN", digits=4),
                "SDPA flash",
                column("against cuDNN", "cuDNN / Lutetia"),
                "of the read rate",
            )
        ],
        dense_sentence,
        setting="bf16, 32 query heads on 8 key heads of 128, one new token, microseconds, graph replays.",
    ),
    Section(
        "Ragged decode attention on a GPU",
        "decode_attention",
        [
            table(
                "ragged",
                column("batch, longest", "shape"),
                "Lutetia",
                "SDPA cuDNN, masked",
                column("against the mask", "masked / Lutetia"),
                column("cuDNN, true lengths (at most)", "cuDNN, true lengths"),
                column("against true lengths (at most)", "true lengths / Lutetia"),
                column("`varlen_attn`", "varlen_attn"),
                column("`flex_attention`", "flex_attention"),
            )
        ],
        ragged_sentence,
        setting="Lengths evenly spread over 10 to 100% of the longest, microseconds, graph replays.",
    ),
    Section(
        "Pages, FP8 and the call itself",
        "decode_attention",
        [table("pages and fp8", column("batch, length", "shape"), "bf16", "pages of 16", "pages of 64", "fp8 cache")],
        serving_sentence,
        setting="Microseconds, graph replays.",
    ),
    Section(
        "Decode attention on two CPU cores",
        "decode_attention_cpu",
        [Spread("decode", "SDPA / Lutetia", "shape", ("kind", "dtype"))],
        lambda result: (
            f"{range_of(rows_of(result, 'decode'), 'SDPA / Lutetia', 'x')} as fast as SDPA, which gets a mask on ragged batches."
        ),
        setting="Batch × query heads on key heads × keys × head width.",
    ),
    Section(
        "A decoder of transformers",
        "transformers_decode",
        [
            table(
                "decode",
                "kind",
                "Lutetia",
                "SDPA",
                "SDPA, our cache",
                column("**Lutetia / SDPA**", "Lutetia / SDPA"),
                "by processor time",
            )
        ],
        "At batch 1 most of the time is spent on the weights. SDPA reads the padding of a ragged batch; its DynamicCache copies "
        "all keys for every token.",
        setting="Tokens per second. SmolLM2's sizes, float32, context 1,024 (10 to 100% of it in a ragged batch), one thread.",
    ),
]

RELEVANCE_SECTIONS = [
    Section(
        "What relevance costs",
        "relevance",
        [
            table(
                "models",
                "model",
                "fresh",
                "planned",
                "peak memory",
                column("forward and `attribute`", "forward and attribute"),
                column("zennit 0.5.1", "zennit"),
                column("captum 0.9.0", "captum"),
            )
        ],
        relevance_sentence,
        setting="As a multiple of one full backward pass: less is better. zennit 1.0 was not measured.",
    ),
]

CIRCUIT_SECTIONS = [
    Section(
        "MNIST in gates",
        "mnist_circuits",
        [CIRCUITS],
        "Accuracy on the 10,000 test images. Ours counts everything from 8-bit pixels to the class; 1,000 simulated images "
        "agreed. The gates' sizes and settings were chosen from 86 runs whose test accuracy was seen. torchlogix was trained and "
        "counted here; the other counts are from papers.",
    ),
    Section(
        "Tables of data",
        "tabular",
        [
            table(
                "means", "task", "method", column("mean", digits=4), "mean rank", column("seconds", digits=2), where=is_reported
            ),
            table("accuracy", "set", *(column(name, digits=4) for name in TABULAR), where=is_reported),
            table("rmse", "set", *(column(name, digits=4) for name in TABULAR), where=is_reported),
        ],
        tabular_sentence,
        setting="Default settings, on sets that did not choose them (computers was looked at twice).",
    ),
    Section(
        "Tables in a circuit",
        "circuit_tables",
        [
            table(
                "sets",
                "set",
                "classes",
                column("tables of 500", "tables"),
                column("LUTs, estimated", "LUTs"),
                *(column(name, digits=3) for name in ("model", "first tables", "fitted again")),
            )
        ],
        "Accuracy of the whole model, and of circuits of its first tables without and with a second fit of their rows.",
        setting="One fold, 6-bit weights. Models of two classes are built whole.",
    ),
]

SECTIONS = [*LUT_SECTIONS, *ATTENTION_SECTIONS, *MODEL_SECTIONS, *RELEVANCE_SECTIONS, *CIRCUIT_SECTIONS]

# For those who work on the kernels: on a page of the notes.
NOTE_SECTIONS = [
    *LEARNING_NOTES,
    Section(
        "The four reads on a GPU",
        "lut_reads",
        [
            table(
                "reads",
                "read",
                column("original, H100", "original eval", "original train"),
                column("Lutetia, eager", "eval, eager", "train, eager"),
                column("Lutetia, graph", "eval, graph", "train, graph"),
                column("ratio", "eval", "train", digits=2),
            )
        ],
        "The original's times are its author's, on an H100, mode not stated: part of each ratio is the machine and the mode.",
        setting="24,576 rows, 8 heads of 64 tables, N_c 8, 48 → 48, float32, milliseconds.",
    ),
    Section(
        "Digits",
        "train_digits",
        [table("accuracy", "read", "test accuracy", column("training, s", "training", digits=2))],
        "360 unseen digits, two CPU cores.",
    ),
    Section(
        "How faithful relevance is",
        "relevance_pretrained",
        [
            table(
                "areas",
                "model",
                "inputs",
                column("`epsilon`, `attnlrp`", "epsilon, attnlrp", digits=2),
                column("`gamma(0.25)`", "gamma(0.25)", digits=2),
                column("integrated gradients", digits=2),
                column("with a fitting baseline", "integrated gradients, fitting baseline", digits=2),
                column("gradient × input", digits=2),
            )
        ],
        "The area between removing the least and the most relevant parts first: more is better, random gives 0. Few inputs: a "
        "fitting baseline is as good.",
    ),
    Section(
        "Which tokens decide",
        "relevance_prompts",
        [
            table(
                "methods",
                "method",
                column("probability that remains", "probability"),
                column("time per prompt", "time"),
                column("difference from ours", "distance"),
            )
        ],
        "The mean probability of the predicted token while tokens are blanked, the most relevant first: less is better. "
        "Integrated gradients take 32 steps. Ours also records what each step absorbed, which takes the time beyond LXT's.",
        setting="SmolLM2-135M, 20 prompts, one thread, processor time.",
    ),
    Section(
        "Which preset explains best",
        "relevance_presets",
        [
            table(
                "differences",
                "rule",
                "perceptron",
                "convolutions",
                "squeeze and excitation",
                "transformer",
                "LSTM",
                "GRU",
            )
        ],
        "The area of insertion less that of deletion: more is better, random gives 0.",
        setting="Six small nets trained on digits, 120 test images each; standard errors are 0.01 to 0.036.",
    ),
    Section(
        "Relevance of long texts",
        "relevance_long",
        [table("lengths", "tokens", "relevance", "forward and backward", "memory", "memory of backward", "not conserved")],
        "Seconds and GiB beyond the model, with blocks computed again. The last column is the share of the score that does not "
        "arrive at a token: stabilisers and the softmax of attention keep it.",
        setting="A decoder of SmolLM2's sizes, random weights, one text, float32.",
    ),
    Section(
        "Which models relevance runs on",
        "relevance_models",
        [
            table("outcomes", "outcome", "models"),
            table("models", "model", "outcome", "why", where=lambda row: row["outcome"] not in ("ran", "not built")),
        ],
        "The second table lists the models that were built and not explained by their inputs as they are. IBERT, Reformer and "
        "YOSO compute in custom functions without a rule. Untrained, LightGlue matches nothing, so its output does not depend on "
        "its input. The encoder of PE Audio runs its codec under no_grad. Models that were not built need packages or downloads.",
        setting="The models of transformers' own tests, from a checkout: `-- --suite FOLDER`. Tiny, random weights.",
    ),
    Section(
        "How close a LUT layer comes to the memory's speed",
        "lut_step",
        [table("rates", "shape", "eval forward", "train forward", "x gradient", "weight gradient", "plain read")],
        rates_sentence,
        setting="TB/s of rows gathered, beside repeated plain reads of a buffer as large as the tables.",
    ),
    Section(
        "How close walking pairs comes to its floor",
        "lut_attention",
        [
            table(
                "floors",
                "shape",
                column("floor, eval / train", "eval floor", "train floor"),
                column("measured", "eval, graph", "train, graph"),
            )
        ],
        "Milliseconds. Moving the bytes takes the floor, so 10x the original's eager training step cannot be reached here.",
    ),
    Section(
        "LUT attention by length",
        "lut_attention",
        [
            table(
                "growth",
                "length",
                column("training step, ms", "train, graph"),
                "over the length before",
                column("peak memory, GiB", "peak memory", digits=2),
            )
        ],
        "Time grows by less than the square of the length, memory linearly.",
        setting="B4 E256 N_t32 N_c3 N_pe3, graph replay.",
    ),
    Section(
        "The weight gradient on two CPU cores",
        "lut_cpu",
        [
            kernel_table(
                "weight gradient",
                "weight gradient, anew",
                **{"index_add_": "`index_add_`", "index_add_ per detector": "`index_add_` per detector"},
            ),
            kernel_table("weight gradient", "weight gradient, added", index_add_="`index_add_`, added in place"),
        ],
        "Repeating the gradient for every table is part of `index_add_`'s time.",
        setting="First into a new buffer, then added to an existing one.",
    ),
    Section(
        "LUT attention on two CPU cores",
        "lut_attention_cpu",
        [
            table(
                "steps",
                "sizes",
                "backend",
                column("over the reference backend", "reference / step"),
                where=lambda row: row["shape"] == "claimed",
            )
        ],
        "The claim is 20x for a training step.",
    ),
    Section(
        "Layers into tables",
        "precompute",
        [table("tables", "what", column("tables per second", digits=4), "checked")],
        "Tables of 16 input bits for Linear 16 → 64 on two cores; the goal is 300 a second.",
    ),
    Section(
        "Neurons into Verilog",
        "hardware",
        [
            table(
                "emission", "neurons", column("to Verilog, s", "to Verilog"), column("peak memory, GiB", "peak memory", digits=2)
            )
        ],
        "Neurons of six inputs of two bits; the goal is 60 seconds and 2 GiB.",
    ),
    Section(
        "Smaller tables",
        "hardware",
        [table("forms", "table", column("yosys 0.70", "yosys"), "Shannon tree", "partial sums", "kept")],
        "LUT6 of single tables; `minimise` keeps the smallest form.",
    ),
    Section(
        "torchlogix on MNIST",
        "mnist_torchlogix",
        [table("networks", "network", column("accuracy", digits=4), "LUT6", "simulated, equal")],
        "Comparisons and argmax included; tuned by us, not by its authors.",
    ),
]

"""What docs/results.md shows of the results: which columns, under which heading, with which words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from results import Result, rows_of
from results_sentences import (
    attention_sentence,
    cpu_sentence,
    dense_sentence,
    layer_sentence,
    ragged_sentence,
    rates_sentence,
    relevance_sentence,
    serving_sentence,
    train_cpu_sentence,
)
from results_tables import Spread, Table, column, range_of, table

GPU = "needs a CUDA device"
LONG = "it takes minutes"
DATA = "it needs the data"
MILLION = 1e6

INTRODUCTION = """# Results

<!-- written by tools/make_results.py from benchmarks/results: change those files, then run `make results` -->

Each table is generated from a file in `benchmarks/results`, which also records the machine, the software versions and the
settings. An `x` says how many times as fast Lutetia is: above 1 it is faster. A dash between two numbers gives the range over
several runs.
*Original* is Spiky, the CUDA library that the LUT runtime is modelled on. [How this was measured](notes/measuring.md) ·
[what others do better](comparison.md)
"""


@dataclass(frozen=True)
class Section:
    """One claim on the results page: the command above its tables, one sentence below."""

    heading: str
    result: str  # the name of the file
    tables: Sequence[Table | Spread]
    sentence: str | Callable[[Result], str]
    why_not_run: str = GPU
    setting: str = ""


STEP_COLUMNS = [
    column("shape"),
    column("original, eager", "original eval, eager", "original train, eager"),
    column("Lutetia, eager", "eval, eager", "train, eager"),
    column("**eager / eager**", "eval, eager/eager", "train, eager/eager", digits=2),
    column("Lutetia, compiled", "eval, compiled", "train, compiled"),
    column("original, graph", "original eval, graph", "original train, graph"),
    column("Lutetia, graph", "eval, graph", "train, graph"),
    column("**graph / graph**", "eval, graph/graph", "train, graph/graph", digits=2),
]
STEP_SETTING = (
    "float32, milliseconds, eval / training step. A training step is the forward pass and the gradients of inputs and weights. "
    "The original's times are constants, measured beside ours; as shipped it synchronises after every kernel and cannot be "
    "captured in a CUDA graph, so its graph times are those of a patched build."
)
SHAPES = "B batch, I inputs, O outputs, N_t tables, N_c comparisons per table."


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
        "How close a LUT layer comes to the memory's speed",
        "lut_step",
        [table("rates", "shape", "eval forward", "train forward", "x gradient", "weight gradient", "plain read")],
        rates_sentence,
        setting="TB/s of rows gathered, beside a kernel that reads a buffer of the size of the tables again and again.",
    ),
    Section(
        "LUT attention on a GPU",
        "lut_attention",
        [table("layers", STEP_COLUMNS[0], "algorithm", *STEP_COLUMNS[1:], "in place, graph")],
        attention_sentence,
        setting=f"{STEP_SETTING} S length, E inputs and outputs, N_pe position bits.",
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
        "The goal of 10x the original's eager time in training cannot be met at these two shapes by walking pairs: "
        "moving the bytes alone takes the floor, in milliseconds.",
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
        "Time grows by less than the square of the length, and memory linearly.",
        setting="B4 E256 N_t32 N_c3 N_pe3, graph replay.",
    ),
    Section(
        "The four reads on a GPU",
        "lut_reads",
        [
            table(
                "reads",
                "read",
                column("original, H100", "original eval", "original train"),
                column("Lutetia, eager", "eval, eager", "train, eager"),
                column("Lutetia, compiled", "eval, compiled", "train, compiled"),
                column("Lutetia, graph", "eval, graph", "train, graph"),
                column("ratio", "eval", "train", digits=2),
            )
        ],
        "The original's times are its author's report, on an H100, in a mode that they do not state; ours are graph replays on "
        "an H200, so part of each ratio is the machine and the mode.",
        setting="24,576 rows, 8 heads of 64 tables, N_c 8, 48 → 48, float32, milliseconds, eval / training step.",
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
        why_not_run=LONG,
        setting="Eval forward. Peers take turns in one run on the same threads; on a shared machine ratios move by 10 to 20%.",
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
        "`index_add_` needs the gradient repeated for every table, which is part of its time; 64 rows added to 33 MB are bound "
        "by memory on both sides.",
        why_not_run=LONG,
        setting="First made anew, as in a training step, then added to a buffer that is there, as in a step in place.",
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
        why_not_run=LONG,
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
        "Milliseconds per byte at batch 1, for the last bytes of a context of 256: through the cache, and with the context "
        "recomputed for every byte, which gives the same bytes.",
        why_not_run=LONG,
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
        why_not_run="it takes a quarter of an hour",
        setting="After 8,192 samples of 32 bytes; six layers of tables, 3.2 GB, updated in place.",
    ),
    Section(
        "MNIST",
        "train_mnist",
        [table("accuracy", "network", "seed", "weights", column("test accuracy", digits=4))],
        "Ten epochs, one to two minutes on one CPU core; the checkpoint is the best on 5,000 images held out of training.",
        why_not_run=DATA,
    ),
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
        "The lowest validation loss, in nats per byte, after the same bytes; the tables drop a fifth of their detectors in "
        "training and the dense twin has no dropout, which is part of the gap.",
        why_not_run="it needs the data and a GPU",
    ),
    Section(
        "enwik8",
        "train_enwik8",
        [
            table(
                "bits",
                "feed-forward",
                column("weights, millions", "weights", scale=MILLION),
                column("steps in 8 minutes", "steps"),
                column("test", digits=4),
                column("validation at step 2,500", digits=4),
                column("at step 5,000", "validation at step 5,000", digits=4),
            )
        ],
        "In the same eight minutes of one shared GPU the dense twin wins, in bits per byte; at the same number of steps the "
        "tables are ahead, though their schedule had cooled further by then.",
        why_not_run="it needs the data and a GPU",
    ),
    Section(
        "Digits",
        "train_digits",
        [table("accuracy", "read", "test accuracy", column("training, s", "training", digits=2))],
        "360 unseen digits, two CPU cores.",
        why_not_run=LONG,
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
        setting="bf16, 32 query heads on 8 key heads of 128, one new token, microseconds, graph replays over rotating caches.",
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
            f"{range_of(rows_of(result, 'decode'), 'SDPA / Lutetia', 'x')} as fast as `scaled_dot_product_attention`, which is "
            "given a mask on ragged batches; the third row on dense float32 is the one that can fall below 1, on a shared "
            "machine over thirteen runs."
        ),
        why_not_run=LONG,
        setting="Batch × query heads on key heads × keys × head width.",
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
        why_not_run=LONG,
        setting="As a multiple of one full backward pass: less is better. zennit 1.0 was not measured.",
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
        "The area between removing the least and the most relevant parts first: more is better, a random order gives 0; measured "
        "by hand on few inputs, which cannot tell the first two columns from a baseline that fits.",
    ),
]

CIRCUIT_SECTIONS = [
    Section(
        "Layers into tables",
        "precompute",
        [table("tables", "what", column("tables per second", digits=4), "checked")],
        "Tables of 16 input bits for Linear 16 → 64 on two cores; the goal is 300 a second.",
        why_not_run=LONG,
    ),
    Section(
        "Neurons into Verilog",
        "hardware",
        [
            table(
                "emission", "neurons", column("to Verilog, s", "to Verilog"), column("peak memory, GiB", "peak memory", digits=2)
            )
        ],
        "From the trace to Verilog, neurons of six inputs of two bits; the goal is 60 seconds and 2 GiB.",
        why_not_run=LONG,
    ),
    Section(
        "Smaller tables",
        "hardware",
        [table("forms", "table", column("yosys 0.70", "yosys"), "Shannon tree", "partial sums", "kept")],
        "LUT6 of single tables: `minimise` keeps the smallest form, which was never above yosys's.",
        why_not_run=LONG,
    ),
    Section(
        "MNIST in gates",
        "mnist_circuits",
        [CIRCUITS],
        "Ours counts everything from 8-bit pixels to the class and was simulated on 1,000 images without a difference; counts of "
        "others are their papers' and Vivado's, except torchlogix, which was trained and counted here by the same commands of "
        "yosys. No circuit here went through a vendor's tool or ran on a board.",
        why_not_run=DATA,
        setting="Accuracy on the 10,000 test images.",
    ),
    Section(
        "torchlogix on MNIST",
        "mnist_torchlogix",
        [table("networks", "network", column("accuracy", digits=4), "LUT6", "simulated, equal")],
        "Trained here on the same images and counted by the same commands, with comparisons and argmax; tuned by us, not by its "
        "authors.",
        why_not_run=DATA,
    ),
]

SECTIONS = [*LUT_SECTIONS, *ATTENTION_SECTIONS, *MODEL_SECTIONS, *RELEVANCE_SECTIONS, *CIRCUIT_SECTIONS]

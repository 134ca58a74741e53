"""What docs/results.md and docs/notes/results.md show of the results: which columns, under which heading, with which words."""

from __future__ import annotations

from results_learning import FAITHFUL_NOTES, LEARNING_NOTES, LEARNING_SECTIONS
from results_sentences import (
    clock_sentence,
    cpu_attention_sentence,
    cpu_sentence,
    decode_sentence,
    emission_sentence,
    enwik8_sentence,
    floors_sentence,
    gates_sentence,
    gradient_sentence,
    growth_sentence,
    integer_sentence,
    layer_sentence,
    models_sentence,
    rates_sentence,
    reads_sentence,
    relevance_sentence,
    sums_sentence,
    tables_sentence,
    torchlogix_sentence,
    train_cpu_sentence,
    vision_sentence,
)
from results_tables import Section, Spread, Table, column, table
from results_tabular import TABLE_SECTIONS, TREES

MILLION = 1e6

INTRODUCTION = """# Results

<!-- written by tools/make_results.py from benchmarks/results: change those files, then run `make results` -->

Every table comes from a saved run in `benchmarks/results`. Dates, versions, commits, settings and absolute times are there.

- **Machines**: H200 is one NVIDIA H200 with torch 2.11. CPU is one thread of an AMD EPYC with torch 2.13.
- **Ratios**: above 1x, Lutetia is faster.
- **Cells**: two numbers are eval/training step. A dash is a range over runs.
- ***Original*** is Spiky, the CUDA library behind the LUT runtime.

[How this was measured](notes/measuring.md) · [peers](comparison.md) · [more measurements](notes/results.md)
"""

NOTES = """# Notes: more measurements

<!-- written by tools/make_results.py from benchmarks/results: change those files, then run `make results` -->

The rest, and the machines: [Results](../results.md).
"""


STEP_COLUMNS = [
    column("shape"),
    column("graph, ms", "eval, graph", "train, graph"),
    column("eager, ratio", "eval, eager/eager", "train, eager/eager", digits=2),
    column("graph, ratio", "eval, graph/graph", "train, graph/graph", digits=2),
]
COMPILING = table(
    "compiling",
    column("32 → 32, ms", "module"),
    *(column(mode, f"eval, {mode}", f"train, {mode}", digits=2) for mode in ("eager", "compiled", "reduce-overhead")),
    column("one thread: train eager, compiled", *(f"train, {mode}, one thread" for mode in ("eager", "compiled")), digits=2),
)
STEP_SETTING = "float32. The original cannot be captured as shipped: its graph ratio is to a patched build."
SHAPES = "B batch, I inputs, O outputs, N_t tables, N_c comparisons each."


CIRCUITS = table("circuits", "network", column("accuracy", digits=4), "LUTs", column("encoder counted", "encoder"), "tool")


def kernel_table(name: str, kernel: str, **peers: str) -> Table:
    """The rows of one kernel on the CPU; where a whole batch hits one row is not shown."""
    columns = [column("shape"), *(column(heading, key) for key, heading in peers.items())]
    return Table(name, columns, lambda row: row["kernel"] == kernel and "one row" not in row["shape"])


LUT_SECTIONS = [
    Section(
        "One LUT layer on a GPU",
        "lut_step",
        [table("layers", *STEP_COLUMNS), COMPILING],
        layer_sentence,
        setting=f"{STEP_SETTING} {SHAPES}",
    ),
    Section(
        "LUT attention on a GPU",
        "lut_attention",
        [table("layers", STEP_COLUMNS[0], "algorithm", *STEP_COLUMNS[1:])],
        "[Longer sequences](notes/results.md#lut-attention-by-length).",
        setting="S length, E inputs and outputs, N_pe position bits.",
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
                    "eager torch": "eager torch",
                },
            )
        ],
        cpu_sentence,
        setting="Eval forward; ratios move by 10 to 20%.",
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
        "Writing on one CPU core",
        "integer_generate",
        [table("engines", "engine", "model", column("bits per byte", digits=4), column("bytes per second", "written"))],
        integer_sentence,
        setting="`examples/gates.toml`, 2,000 steps; batch 1, one thread, processor time, 200 bytes, of C 20,000.",
    ),
    Section(
        "Half an hour of two CPU cores",
        "language_cpu",
        [
            table(
                "models",
                "model",
                "blocks",
                column("weights, millions", "weights", scale=MILLION),
                "steps",
                column("bits per byte", digits=4),
                column("bytes written per second", "written"),
            )
        ],
        "As many steps as two cores make in that time, computed on a GPU.",
        setting="Width 384, context 256, enwik8; written by one thread.",
    ),
    Section(
        "Training on two CPU cores",
        "train_cpu",
        [],
        train_cpu_sentence,
        setting="8,192 samples of 32 bytes; six layers of tables, 3.2 GB, updated in place.",
    ),
    Section(
        "MNIST",
        "train_mnist",
        [table("accuracy", "network", "seed", "weights", column("test accuracy", digits=4))],
        "Ten epochs, one to two minutes; the best checkpoint on 5,000 held-out images.",
    ),
    *LEARNING_SECTIONS,
    Section(
        "Tiny Shakespeare",
        "train_shakespeare",
        [
            table(
                "loss",
                "feed-forward",
                "dropout",
                column("weights, millions", "weights", scale=MILLION),
                column("seed 0", digits=4),
                column("seed 1", digits=4),
            )
        ],
        "Lowest validation loss, nats per byte, after the same bytes.",
    ),
    Section(
        "enwik8",
        "train_enwik8",
        [
            table(
                "bits",
                "model",
                "time",
                "seed",
                column("weights, millions", "weights", scale=MILLION),
                column("GiB of GPU", "memory", digits=2),
                "steps",
                column("MB/s", "bytes per second", scale=MILLION),
                column("passes"),
                column("test", digits=5),
            ),
        ],
        enwik8_sentence,
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
                column("cuDNN / Lutetia"),
                column("FlashInfer", digits=4),
                column("FlashInfer / Lutetia"),
                column("of the read rate"),
            ),
            table(
                "ragged",
                column("ragged, longest", "shape"),
                "Lutetia",
                column("SDPA cuDNN, masked"),
                column("masked / Lutetia"),
                column("cuDNN, true lengths (at most)", "cuDNN, true lengths"),
                column("true lengths / Lutetia"),
                "FlashInfer",
                column("FlashInfer / Lutetia"),
                column("`varlen_attn`", "varlen_attn"),
                column("`flex_attention`", "flex_attention"),
            ),
        ],
        decode_sentence,
        setting="bf16, 32 query heads on 8 key heads of 128, one new token; microseconds, graph replays. Ragged lengths are "
        "spread evenly over 10 to 100% of the longest.",
    ),
    Section(
        "Decode attention on two CPU cores",
        "decode_attention_cpu",
        [Spread("decode", ("SDPA / Lutetia",), "shape", ("kind", "dtype"))],
        "SDPA gets a mask on ragged batches.",
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
        "At batch 1 most of the time goes to the weights. SDPA reads the padding of a ragged batch; its DynamicCache copies "
        "all keys for every token.",
        setting="Tokens per second. SmolLM2's sizes, float32, context 1,024 (10 to 100% of it in a ragged batch).",
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
                column("`attribute`", "attribute"),
                "planned",
                "peak memory",
                column("zennit 0.5.1", "zennit"),
                column("captum 0.9.0", "captum"),
            )
        ],
        relevance_sentence,
        setting="Multiples of one forward and full backward pass, processor time: less is better.",
    ),
]

CIRCUIT_SECTIONS = [
    Section(
        "MNIST in gates",
        "mnist_circuits",
        [CIRCUITS],
        gates_sentence,
    ),
    Section("The clock of a circuit", "clock", [], clock_sentence, setting="Placed and routed on an ECP5-85F."),
    Section(
        "Gates, boosted trees and torchlogix",
        "circuits",
        [table("circuits", "set", "method", "size", column("accuracy", digits=4), column("LUT6", digits=4), "accuracies")],
        "MNIST rows without a size are those of the section above. On the other sets a quarter of the rows is tested, and "
        "`LUTClassifier` teaches our networks, not the others. Only ours and the trees have a large size. "
        "[Picture](hardware.md#mnist-in-gates).",
        setting="Means of three seeds and their range.",
    ),
]

SECTIONS = [
    *TABLE_SECTIONS,
    TREES,
    *CIRCUIT_SECTIONS,
    *LUT_SECTIONS,
    *ATTENTION_SECTIONS,
    *MODEL_SECTIONS,
    *RELEVANCE_SECTIONS,
]

# For those who work on the kernels: on a page of the notes.
NOTE_SECTIONS = [
    *LEARNING_NOTES,
    Section(
        "The four reads on a GPU",
        "lut_reads",
        [],
        reads_sentence,
        setting="24,576 rows, 8 heads of 64 tables, N_c 8, 48 → 48, float32.",
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
        "The area between removing the least and the most relevant parts first: more is better, random gives 0. On these few "
        "inputs integrated gradients with a fitting baseline are as good.",
    ),
    Section(
        "Which tokens decide",
        "relevance_prompts",
        [
            table(
                "methods",
                "method",
                column("probability that remains", "probability"),
                column("seconds per token", "time"),
                column("peak memory, MiB", "memory"),
                column("difference from ours", "distance"),
            ),
            table(
                "lengths",
                "tokens",
                column("seconds, ours", "ours"),
                column("seconds, planned", "planned"),
                column("seconds, LXT", "lxt"),
                column("ours / LXT", "ratio"),
                column("planned / LXT", "ratio planned"),
            ),
        ],
        "Mean probability of the predicted token while tokens are blanked, most relevant first: less is better. Time is of the "
        "processor, per explained token. Memory is that of one text, all prompts in a row. Integrated gradients take 50 steps. "
        "Ours reads the graph in Python, which short texts pay for, and records what each step absorbed. It leaves out words and "
        "rows without relevance, and takes attention apart in blocks, which long texts gain by.",
        setting="SmolLM2-135M, 20 prompts, one thread.",
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
    *FAITHFUL_NOTES,
    Section(
        "Relevance of long texts",
        "relevance_long",
        [
            table(
                "lengths",
                "device",
                "tokens",
                "relevance",
                "ratio",
                "ratio, kept",
                "memory",
                "memory of backward",
                "not conserved",
            )
        ],
        "Seconds and GiB beyond the model, blocks recomputed; ratios to a forward and backward pass, also with all activations "
        "kept. Not conserved: the share of the score that stabilisers and the softmax of attention keep.",
        setting="A decoder of SmolLM2's sizes, random weights, one text, float32.",
    ),
    Section("How exactly relevance adds up", "relevance_sums", [], sums_sentence, setting="LRP-0, float32 models."),
    Section(
        "Which models relevance runs on",
        "relevance_models",
        [],
        models_sentence,
        setting="The models of transformers' own tests, from a checkout: `-- --suite FOLDER`. Tiny, random weights.",
    ),
    Section(
        "Which image classifiers relevance runs on",
        "relevance_vision",
        [],
        vision_sentence,
        setting="Random weights, the smallest image that a net accepts.",
    ),
    Section(
        "How close a LUT layer comes to the memory's speed",
        "lut_step",
        [table("rates", "shape", "eval forward", "x gradient", "weight gradient", "plain read")],
        rates_sentence,
        setting="TB/s of rows gathered, beside plain reads of a buffer as large as the tables.",
    ),
    Section("How close walking pairs comes to its floor", "lut_attention", [], floors_sentence),
    Section(
        "LUT attention by length",
        "lut_attention",
        [],
        growth_sentence,
        setting="B4 E256 N_t32 N_c3 N_pe3, graph replay.",
    ),
    Section("The weight gradient on two CPU cores", "lut_cpu", [], gradient_sentence),
    Section("LUT attention on two CPU cores", "lut_attention_cpu", [], cpu_attention_sentence),
    Section("Layers into tables", "precompute", [], tables_sentence),
    Section("Neurons into Verilog", "hardware", [], emission_sentence),
    Section(
        "Smaller tables",
        "hardware",
        [table("forms", "table", column("yosys 0.70", "yosys"), "Shannon tree", "partial sums", "kept")],
        "LUT6 of single tables; `minimise` keeps the smallest form.",
    ),
    Section(
        "Products with constants",
        "constant_sums",
        [table("sums", "matrix", "weight bits", "Lutetia", "da4ml", "ratio")],
        "LUT6 of a vector of 8-bit numbers times a random matrix of whole numbers, by one yosys; the goal is 1.1 times da4ml.",
    ),
    Section("torchlogix on MNIST", "mnist_torchlogix", [], torchlogix_sentence),
    Section(
        "What checks cost",
        "checks_cost",
        [
            table(
                "cost",
                "shape",
                "device",
                "batch",
                column("call", digits=3),
                column("checks", digits=2),
                column("identities", digits=2),
            )
        ],
        "Microseconds of processor time of an eager `nn.LUT` in eval mode. Checks guard against changed anchors and synapses; "
        "identities find the prepared call.",
    ),
]

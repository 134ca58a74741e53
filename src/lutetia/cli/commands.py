"""The sub-commands of `lutetia`: each reads its arguments, calls one part, and shows the result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lutetia.cli import answers, explanations, values
from lutetia.cli.guard import UsageError
from lutetia.cli.root import Checkpoint, Debug, Json, Output, Row, Unknown, app
from lutetia.cli.show import as_typed, console, name_evaluation, name_next, print_json
from lutetia.errors import JobError

__all__ = ["answers", "app", "explanations"]


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The output folder.")] = Path("out/demo"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """See what Lutetia does, in minutes on a CPU: train, generate, explain, build.

    For example:

    lutetia demo --out out/demo
    """
    from lutetia import demo as story

    result = story.run(out, console(), as_json)
    if as_json:
        print_json(result)
    else:
        name_next("lutetia", "page", out / "wine")


@app.command()
def train(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG.toml|DATA",
            help="Your data: a .csv, .parquet, .npz or .txt file, or a folder with one folder of images per class. Or a config "
            "of the model, the data and the schedule.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The run folder; runs/NAME by default, for NAME.csv or NAME.toml.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="The column to predict; the last by default. Several: a,b, or --target again."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help=f"{', '.join(values.TASKS)}; guessed from the target by default. Ranking needs --set data.query=COLUMN.",
            autocompletion=values.complete_task,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in the folder.")] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", help="cpu or cuda; a GPU by default, if there is one.", autocompletion=values.complete_device),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The folder of the data; that of CONFIG by default.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Replace a setting: --set train.steps=100. May be repeated.",
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model on a table, images or a text.

    For example:

    lutetia train flowers.csv --target species

    lutetia train examples/stdlib.toml --out runs/stdlib --set train.steps=100
    """
    from lutetia.cli.train import is_table_run, run_training, show_summary

    if is_table_run(config):
        from lutetia.cli.train_table import TableRequest, run_table, show_table

        told = run_table(TableRequest(config, out, target or [], task, settings or [], resume, device, data), show=not as_json)
        if as_json:
            print_json(told)
        else:
            show_table(told)
            name_evaluation(told["out"], told["rows"])
        return
    if target or task is not None:
        raise UsageError("--target and --task are for tables of data, such as a .csv file: a config names its own in [data]")
    summary = run_training(config, out, resume, device, data, settings or [])
    if summary is not None and as_json:
        print_json(summary)
    elif summary is not None:
        show_summary(summary)
        if summary["task"] == "language":
            name_next("lutetia", "generate", summary["out"])
        else:
            name_evaluation(summary["out"], summary)


@app.command()
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Option("--prompt", help="The text to continue.", show_default="a line break")] = "\n",
    max_new: Annotated[int, typer.Option("--max-new", help="The maximum number of bytes to write; of tokens with --hf.")] = 256,
    temperature: Annotated[float, typer.Option("--temperature", help="0 always takes the best byte.")] = 1.0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Draw from the K best bytes only.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the fewest bytes whose probabilities add up to this.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Stop before this text; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Make the draws repeatable.")] = None,
    hf: Annotated[
        bool, typer.Option("--hf", help="CKPT is a decoder of transformers: its folder, or its name if it was downloaded before.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="With --hf: put the prompt into the model's chat template.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write text with a language model.

    For example:

    lutetia generate runs/stdlib --prompt "def " --max-new 200 --seed 0
    """
    from lutetia.cli.generate import GenerateRequest, write

    request = GenerateRequest(prompt, max_new, temperature, top_k, top_p, stop, seed)
    if hf:
        from lutetia.cli.generate_hf import write_hf

        told = write_hf(checkpoint, request, chat, show=not as_json)
    elif chat:
        raise UsageError("--chat is for models of transformers: --hf")
    else:
        told = write(checkpoint, request, show=not as_json)
    if as_json:
        print_json(told)
    elif hf:
        name_next("lutetia", "explain", "--hf", checkpoint, *(["--chat"] if chat else []), *as_typed(prompt.strip() or "text"))
    else:
        name_next("lutetia", "explain", checkpoint, *as_typed(prompt.strip() or told["text"][:32].strip() or "text"))


@app.command()
def build(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option("--out", help="The folder for tables, Verilog, VHDL and the summary.")] = Path("out/build"),
    input_bits: Annotated[
        int | None,
        typer.Option(
            "--input-bits",
            help="Bits per input; by default the fewest that cost at most 0.2 points. For tables of data: the circuit, "
            "or the program in C, takes readings of N bits per column.",
        ),
    ] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option(
            "--reading",
            metavar="[COLUMN=]ZERO+STEP*uBITS",
            help="For tables of data: the circuit, or the program in C, takes the numbers of columns as whole numbers of so many "
            "bits, u unsigned or s signed. temp=-40+0.0625*u12 is a converter of 12 bits; auto is what the data needs. May be "
            "repeated.",
        ),
    ] = None,
    weight_bits: Annotated[
        int | None, typer.Option("--weight-bits", help="Bits per weight; 8 by default, 6 in a circuit for classes of a table.")
    ] = None,
    n_tables: Annotated[
        int | None,
        typer.Option("--tables", help="For tables of data: build the first N; by default as many as fit 16,000 LUTs."),
    ] = None,
    refit: Annotated[
        bool | None,
        typer.Option(
            "--refit/--no-refit", help="Fit the rows of the kept tables again; by default if a trial says that it helps."
        ),
    ] = None,
    drop_unseen: Annotated[bool, typer.Option("--drop-unseen", help="Drop table rows that training never read.")] = False,
    value_range: Annotated[
        tuple[float, float] | None,
        typer.Option("--range", metavar="LO HI", help="The range of the inputs; that of the training data by default."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="The folder of the run's data, to measure accuracy on; a file, of imported trees."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="lut6, lut4, ice40 or ecp5: a circuit, and what yosys maps it to. c: a program in C99. arduino: a library "
            "with a sketch. verilog: a core that runs a model.",
            autocompletion=values.complete_hardware,
        ),
    ] = "lut6",
    prove: Annotated[bool, typer.Option("--prove/--no-prove", help="Prove the whole circuit equal to the graph.")] = True,
    fmax: Annotated[
        float | None,
        typer.Option("--fmax", metavar="MHZ", help="Move registers until nextpnr reaches this clock (ice40, ecp5, verilog)."),
    ] = None,
    pins: Annotated[
        Path | None, typer.Option("--pins", metavar="FILE", help="Pin constraints of your board: .pcf for ice40, .lpf for ecp5.")
    ] = None,
    speed_grade: Annotated[int | None, typer.Option("--speed-grade", help="Of an ecp5: 6 (the default), 7 or 8.")] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="The limit for each check (simulation, proof, synthesis); a check that exceeds it is skipped.",
        ),
    ] = 600.0,
    detectors_per_cycle: Annotated[
        int, typer.Option("--detectors-per-cycle", help="For a language model in Verilog: more is faster and larger.")
    ] = 4,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="For a language model in Verilog: a core that can also draw bytes, from a seed."),
    ] = None,
    reuse: Annotated[
        int | None,
        typer.Option("--reuse", help="For a classifier in Verilog: how many times a sample uses its comparators and memories."),
    ] = None,
    output: Output = None,
    axi: Annotated[bool, typer.Option("--axi", help="Also write an AXI4-Stream wrapper of the circuit.")] = False,
    board: Annotated[
        str | None,
        typer.Option(
            "--board",
            metavar="NAME|FILE.toml",
            help=f"Put the circuit on a board, with a serial line: {', '.join(values.BOARDS)}; or a file that describes yours.",
            autocompletion=values.complete_board,
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn a model of lookup tables into a circuit, or into a program in C.

    For example:

    lutetia build runs/digits --out out/build

    lutetia build runs/digits --target c --out out/c
    """
    from lutetia.cli.build import BuildRequest, run_build
    from lutetia.cli.build_screen import show_report

    given = (checkpoint, out, input_bits, weight_bits, target, prove, data, value_range, time_limit, detectors_per_cycle)
    request = BuildRequest(
        *given,
        fmax,
        pins,
        speed_grade,
        n_tables,
        temperature,
        reuse,
        refit,
        axi,
        drop_unseen,
        tuple(reading or ()),
        output,
        board,
    )
    report = run_build(request, show=not as_json)
    if as_json:
        print_json(report)
    else:
        show_report(report, out)
        measured = report.get("loss") or report.get("accuracy") or {}
        if data is not None and data.is_file():  # of imported trees
            name_next("lutetia", "evaluate", checkpoint, data)
        elif measured.get("left_out"):
            name_next("lutetia", "info", checkpoint)  # there is no data to evaluate it on
        else:
            name_evaluation(checkpoint, [measured.get("split", "test")])


@app.command()
def page(
    checkpoint: Checkpoint,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="The page; model.html by default.")] = None,
    title: Annotated[str | None, typer.Option("--title", help="The heading of the page; the model's name by default.")] = None,
    output: Output = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a web page that runs a model: draw, move sliders, type or open a recording, and see its answers and reasons.

    For example:

    lutetia page runs/digits --out digits.html
    """
    from lutetia.cli.page import show_page, write_page

    told = write_page(checkpoint, out, title, output)
    if as_json:
        print_json(told)
    else:
        show_page(told)
        name_next("lutetia", "build", checkpoint, "--target", "c", *(() if output is None else ("--output", output)))


@app.command()
def quantize(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option("--out", help="The folder for the int8 model.")] = Path("out/int8"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the tables of a model int8: a quarter of the size, faster on a CPU.

    For example:

    lutetia quantize runs/stdlib --out out/int8
    """
    from lutetia.cli.quantize import quantize as run_quantize

    told = run_quantize(checkpoint, out, show=not as_json)
    if as_json:
        print_json(told)
    else:
        name_next("lutetia", "evaluate", out)


@app.command()
def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The benchmark; without it, list all.", autocompletion=values.complete_benchmark),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Arguments for the benchmark itself.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use tiny sizes: check in seconds that it runs.")] = False,
    save: Annotated[bool, typer.Option("--save", help="Keep the result in benchmarks/results of the checkout.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the result as JSON into FILE.")] = None,
    checkout: Annotated[
        Path | None, typer.Option("--checkout", metavar="FOLDER", help="Run the benchmarks of this checkout.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the benchmarks of the checkout, or run one.

    The list says what each claims and whether it can run here.

    For example:

    lutetia bench

    lutetia bench lut_cpu --quick
    """
    from lutetia.cli.bench import BenchRequest
    from lutetia.cli.bench import bench as run_bench

    code = run_bench(name, BenchRequest(arguments or [], quick, save, out), checkout, as_json)
    if not code and not as_json:
        name_next("lutetia", "bench", *(["lut_cpu", "--quick"] if name is None else []))
    raise typer.Exit(code)


@app.command()
def flow(
    checkpoint: Checkpoint,
    given: Annotated[str, typer.Argument(metavar="INPUT", help="The input: text, or a file.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The drawing: .html, .json or .mmd; run.html by default, none with --json.")
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", help="Also record the backward pass.")] = False,
    row: Row = None,
    unknown: Unknown = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw the data flow of one run of a model.

    For example:

    lutetia flow runs/digits digit.png --out run.html
    """
    from lutetia.cli.flow import default_drawing, record_run, show_flow

    drawn = out if out is not None or as_json else default_drawing()
    recorded = record_run(checkpoint, given, drawn, backward, row, unknown)
    if as_json:
        print(recorded.to_json())
    elif drawn is not None:
        show_flow(recorded, drawn)
        name_next("lutetia", "explain", checkpoint, *as_typed(given, row, unknown))


@app.command()
def doctor(
    attempt: Annotated[
        bool, typer.Option("--try", help="Also try it: import torch, run a Triton kernel, fit small tables. Takes seconds.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is installed, what it enables, and how to get what is missing.

    For example:

    lutetia doctor

    lutetia doctor --try --json
    """
    from lutetia import doctor as examination

    examined = examination.examine(attempt)
    missing = examination.missing_requirements(examined)
    if as_json:
        print_json(examination.as_json(examined))
        raise typer.Exit(1 if missing else 0)
    console().print(examination.as_table(examined))
    if missing:
        raise JobError(f"Lutetia does not work without {', '.join(missing)}: the last column says how to get it")
    name_next("lutetia", "demo")

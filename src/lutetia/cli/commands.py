"""The sub-commands of `lutetia`: each reads its arguments, calls one part, and shows what came back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lutetia._version import __version__
from lutetia.cli.guard import Group
from lutetia.cli.show import console, print_json
from lutetia.errors import JobError

app = typer.Typer(
    cls=Group,
    help="Networks made of lookup tables: train, generate, explain, build.",
    epilog="Exit codes: 0 done, 1 the job failed, 2 bad usage, 130 interrupted.",
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, errors included.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Checkpoint = Annotated[Path, typer.Argument(metavar="CKPT", help="A trained model.")]
Input = Annotated[str, typer.Argument(metavar="INPUT", help="What the model is given: text, or a file.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    if version:
        print_json({"version": __version__}) if as_json else print(f"lutetia {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        show_commands(context, as_json)


def show_commands(context: typer.Context, as_json: bool) -> None:
    """What `lutetia` alone shows: the help."""
    if as_json:
        commands: dict[str, Any] = context.command.commands  # type: ignore[attr-defined]  # a group's, which it is
        listed = [{"name": name, "about": command.get_short_help_str(200)} for name, command in commands.items()]
        print_json({"version": __version__, "commands": listed})
        return
    text = context.get_help()  # with rich, typer has printed it by now
    if text:
        print(text)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder for what the demo makes.")] = Path("out/demo"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """See what Lutetia does, in minutes on a CPU: train, generate, explain, build.

    For example: lutetia demo --out out/demo
    """
    from lutetia import demo as story

    result = story.run(out, console(), as_json)
    if as_json:
        print_json(result)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The model, the data and the schedule.")],
    out: Annotated[Path | None, typer.Option("--out", help="The folder of the run; runs/CONFIG by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; a GPU by default where there is one.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The folder of the data; that of CONFIG by default.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting: --set train.steps=100.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model.

    For example: lutetia train examples/stdlib.toml --out runs/stdlib --set train.steps=100
    """
    from lutetia.cli.train import run_training, show_summary

    summary = run_training(config, out, resume, device, data, settings or [])
    if summary is not None:
        print_json(summary) if as_json else show_summary(summary)


@app.command()
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Option("--prompt", help="What to go on from; a new line by default.")] = "\n",
    max_new: Annotated[int, typer.Option("--max-new", help="The most bytes to write.")] = 256,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the best byte each time.")] = 1.0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Draw from the K best bytes only.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Draw from the fewest bytes of this probability.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Stop before this text; may be given again.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Draw the same bytes every time.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Let a language model write.

    For example: lutetia generate runs/stdlib --prompt "def " --max-new 200 --seed 0
    """
    from lutetia.cli.generate import Request, write

    request = Request(prompt, max_new, temperature, top_k, top_p, stop, seed)
    told = write(checkpoint, request, show=not as_json)
    if as_json:
        print_json(told)


@app.command()
def explain(
    checkpoint: Checkpoint,
    given: Annotated[str, typer.Argument(metavar="INPUT", help="An image, a .npy or .csv file, numbers with commas, or text.")],
    rule: Annotated[
        str,
        typer.Option("--rule", help="decisive, epsilon, gamma, zplus, alphabeta, attnlrp, dynamic, gradient or occlusion."),
    ] = "decisive",
    target: Annotated[str | None, typer.Option("--target", help="The class, or byte, to explain; the best by default.")] = None,
    row: Annotated[int | None, typer.Option("--row", help="The row of a .csv file, from 0.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page that shows it.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Write a picture.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show which inputs made an output.

    For example: lutetia explain runs/digits digit.png --html why.html
    """
    from lutetia.cli.explain import Request
    from lutetia.cli.explain import explain as run_explain

    told = run_explain(checkpoint, given, Request(rule, target, row, html, png), show=not as_json)
    if as_json:
        print_json(told)


@app.command()
def build(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option("--out", help="The folder for tables, Verilog, VHDL and the summary.")] = Path("out/build"),
    input_bits: Annotated[
        int | None, typer.Option("--input-bits", help="Bits of each input; by default the fewest that cost at most 0.2 points.")
    ] = None,
    weight_bits: Annotated[int, typer.Option("--weight-bits", help="Bits of each weight.")] = 8,
    value_range: Annotated[
        tuple[float, float] | None,
        typer.Option("--range", metavar="LO HI", help="The range of the inputs; that of the training data by default."),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The folder of the run's data, to measure accuracy on.")] = None,
    target: Annotated[str, typer.Option("--target", help="What yosys maps to: lut6, lut4, ice40 or ecp5.")] = "lut6",
    prove: Annotated[bool, typer.Option("--prove/--no-prove", help="Prove the tables by SAT.")] = True,
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", metavar="SECONDS", help="Of simulation, proof and synthesis each; then it is left out."),
    ] = 600.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn a network of lookup tables into hardware.

    For example: lutetia build runs/digits --out out/build
    """
    from lutetia.cli.build import BuildRequest, run_build, show_report

    request = BuildRequest(checkpoint, out, input_bits, weight_bits, target, prove, data, value_range, time_limit)
    report = run_build(request, show=not as_json)
    print_json(report) if as_json else show_report(report, out)


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The benchmark; without it they are listed.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="What the benchmark itself is given.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, in seconds: shows that it runs.")] = False,
    save: Annotated[bool, typer.Option("--save", help="Keep the result in benchmarks/results of the checkout.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the result as JSON into FILE.")] = None,
    checkout: Annotated[
        Path | None, typer.Option("--checkout", metavar="FOLDER", help="Run the benchmarks of this checkout.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the benchmarks of the checkout, what each claims and whether it can run here; or run one.

    For example: lutetia bench lut_cpu --quick
    """
    from lutetia.cli.bench import Request
    from lutetia.cli.bench import bench as run_bench

    code = run_bench(name, Request(arguments or [], quick, save, out), checkout, as_json)
    raise typer.Exit(code)


@app.command()
def flow(
    checkpoint: Checkpoint,
    given: Input,
    out: Annotated[
        Path | None, typer.Option("--out", help="The drawing: .html, .json or .mmd; run.html by default, none with --json.")
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", help="Record the way back to the input, too.")] = False,
    row: Annotated[int | None, typer.Option("--row", help="The row of a .csv file, from 0.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw the data flow of one run of a model.

    For example: lutetia flow runs/digits digit.png --out run.html
    """
    from lutetia.cli.flow import DEFAULT, record_run, show_flow

    drawn = out if out is not None or as_json else DEFAULT
    recorded = record_run(checkpoint, given, drawn, backward, row)
    if as_json:
        print(recorded.to_json())
    elif drawn is not None:
        show_flow(recorded, drawn)


@app.command()
def doctor(as_json: Json = False, debug: Debug = False) -> None:
    """Show what is installed, what it enables and how to get what is missing.

    For example: lutetia doctor --json
    """
    from lutetia import doctor as examination

    examined = examination.examine()
    missing = examination.missing_requirements(examined)
    if as_json:
        print_json(examination.as_json(examined))
        raise typer.Exit(1 if missing else 0)
    console().print(examination.as_table(examined))
    if missing:
        raise JobError(f"Lutetia cannot work without {', '.join(missing)}: the last column says how to get it")

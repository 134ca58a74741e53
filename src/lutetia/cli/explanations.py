"""The sub-commands that explain: explain, evaluate-explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lutetia.cli import values
from lutetia.cli.guard import UsageError
from lutetia.cli.root import Checkpoint, Debug, Json, Output, Row, Unknown, app
from lutetia.cli.show import as_typed, name_next, print_json


@app.command()
def explain(
    checkpoint: Checkpoint,
    given: Annotated[
        str | None, typer.Argument(metavar="[INPUT]", help="An image, a .npy or .csv file, a row of values with commas, or text.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            help=f"{', '.join(values.RULES)}; decisive by default. With --hf also integrated; attnlrp by default.",
            autocompletion=values.complete_rule,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="What to explain: a class by name or number, a byte, or with --hf a token; the best by default.",
            autocompletion=values.complete_class,
        ),
    ] = None,
    row: Row = None,
    output: Output = None,
    unknown: Unknown = None,
    hf: Annotated[
        bool,
        typer.Option(
            "--hf",
            help="CKPT is a language model or a classifier of transformers: its folder, or its name if it was downloaded before.",
        ),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", help="With --hf, the token or class to compare with; the strongest rival by default."),
    ] = None,
    answer: Annotated[
        int | None, typer.Option("--answer", help="With --hf, write up to this many tokens, and explain each.")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option("--texts", help="With --hf, a table or a file of lines: explain each text, and the words of each class."),
    ] = None,
    column: Annotated[
        str | None, typer.Option("--column", help="The column of --texts; by default the only one, or text.")
    ] = None,
    other: Annotated[
        str | None,
        typer.Option("--with", help="With --hf and an encoder, another text: explain what makes INPUT and it alike."),
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="With --with, also which token of one text goes with which of the other.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="With --hf, INPUT is a message for the model's chat template.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="With --hf, leave out the most relevant tokens, and measure the fall in probability."),
    ] = False,
    steps: Annotated[
        int | None, typer.Option("--steps", help="With --rule integrated, the number of steps; 50 by default.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="What replaces tokens: pad, mask, unk, or # and a number. With --rule integrated also mean (the default), zero; "
            "with --rule shapley also none, which leaves words out.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", help="With --hf and --rule shapley, the number of orders of words that are drawn; 25 by default."
        ),
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Show what each column of a table does in all rows, without an INPUT.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="With --rule shapley or --curves, the folder of the run's data, if it has moved; a file, of imported trees.",
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with the explanation.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Write a picture.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show which inputs decided an output.

    For example:

    lutetia explain runs/flowers flowers.csv --row 1 --html why.html

    lutetia explain runs/flowers --curves --html curves.html
    """
    if curves:
        given_with = {"INPUT": given, "--rule": rule, "--target": target, "--row": row, "--unknown": unknown, "--hf": hf or None}
        _all_curves(checkpoint, given_with, (html, png, data, output), as_json)
        return
    from lutetia.cli.explain import ExplainRequest
    from lutetia.cli.explain import explain as run_explain
    from lutetia.report import DEFAULT_RULE

    if hf:
        from lutetia.cli.explain_hf import DEFAULT_RULE_OF_HF, explain_hf
        from lutetia.cli.hf_shared import HfRequest

        chosen = (rule or DEFAULT_RULE_OF_HF, target, against, answer, chat, check)
        request = HfRequest(*chosen, html, png, steps, baseline, texts, column, other, pairs, samples)
        for option, value in (("--row", row), ("--output", output), ("--unknown", unknown), ("--data", data)):
            if value is not None:
                raise UsageError(f"{option} is not for models of transformers")
        told = explain_hf(checkpoint, given, request, show=not as_json)
    else:
        for option, asked_for in (
            ("--against", against),
            ("--answer", answer),
            ("--chat", chat),
            ("--check", check),
            ("--steps", steps),
            ("--baseline", baseline),
            ("--samples", samples),
            ("--texts", texts),
            ("--column", column),
            ("--with", other),
            ("--pairs", pairs),
        ):
            if asked_for not in (None, False):
                raise UsageError(f"{option} is for models of transformers: --hf")
        if given is None:
            raise UsageError("missing argument 'INPUT': an image, a .npy or .csv file, values with commas, or text")
        wanted = ExplainRequest(rule or DEFAULT_RULE, target, row, html, png, unknown, data, output=output)
        told = run_explain(checkpoint, given, wanted, show=not as_json)
    if as_json:
        print_json(told)
    elif hf:
        more = ("--html", "why.html") if html is None else ("--rule", "epsilon" if rule is None else "attnlrp")
        asked: tuple[object, ...] = (*(() if answer is None else ("--answer", answer)), *(("--chat",) if chat else ()))
        asked += () if other is None else ("--pairs", "--with", other)
        named = ("--texts", texts, *(() if column is None else ("--column", column))) if given is None else as_typed(given)
        name_next("lutetia", "explain", "--hf", checkpoint, *more, *asked, *named)
    else:
        assert given is not None
        if "forecast" in told:
            name_next("lutetia", "evaluate", checkpoint)
        elif "window" in told:
            name_next("lutetia", "build", checkpoint, "--target", "c")
        elif told["kind"] == "tabular":
            name_next("lutetia", "page", checkpoint, *(() if output is None else ("--output", output)))
        else:
            name_next("lutetia", "flow", checkpoint, *as_typed(given, row, unknown))


def _all_curves(
    checkpoint: Path, others: dict[str, Any], asked: tuple[Path | None, Path | None, Path | None, str | None], as_json: bool
) -> None:
    """The curves of a model, which go with none of the other options."""
    from lutetia.cli.explain_curves import CurvesRequest, explain_curves

    for name, value in others.items():
        if value is not None:
            raise UsageError(f"{name} is not for --curves, which shows what columns do in all rows")
    told = explain_curves(checkpoint, CurvesRequest(*asked), show=not as_json)
    if as_json:
        print_json(told)
    elif asked[0] is None:
        name_next("lutetia", "explain", checkpoint, "--curves", "--html", "curves.html")
    else:
        name_next("lutetia", "page", checkpoint)


@app.command("evaluate-explanations")
def evaluate_explanations(
    checkpoint: Checkpoint,
    given: Annotated[list[str] | None, typer.Argument(metavar="INPUT...", help="Images, .npy or .csv files, or text.")] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", help="A rule to measure; may be repeated.", autocompletion=values.complete_rule),
    ] = None,
    most: Annotated[int, typer.Option("--most", help="The maximum number of inputs.")] = 100,
    steps: Annotated[int, typer.Option("--steps", help="The number of steps per curve.")] = 10,
    png: Annotated[Path | None, typer.Option("--png", help="Draw the curves as a PNG.")] = None,
    unknown: Unknown = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare rules of explanation by deletion and insertion: which is the most faithful to a model?

    For example:

    lutetia evaluate-explanations runs/flowers flowers.csv --rule decisive --rule epsilon --png curves.png
    """
    from lutetia.cli.evaluate_explanations import FaithfulnessRequest
    from lutetia.cli.evaluate_explanations import evaluate_explanations as run_evaluation

    request = FaithfulnessRequest(tuple(rule or ()), most, steps, png, unknown)
    told = run_evaluation(checkpoint, given or [], request, show=not as_json)
    if as_json:
        print_json(told)
    else:
        name_next("lutetia", "explain", checkpoint, *as_typed((given or [""])[0], None, unknown))

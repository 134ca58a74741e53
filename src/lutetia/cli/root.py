"""The app of all sub-commands, the options they share, and the output of `lutetia` without arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lutetia._version import __version__
from lutetia.cli import values
from lutetia.cli.guard import Group
from lutetia.cli.show import print_json

app = typer.Typer(
    cls=Group,
    help="Networks made of lookup tables: train, predict, explain, build.",
    epilog="Exit codes: 0 done, 1 the job failed, 2 bad usage, 130 interrupted.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, errors included.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Checkpoint = Annotated[Path, typer.Argument(metavar="CKPT", help="A trained model: the folder of a run, or of a checkpoint.")]
Row = Annotated[int | None, typer.Option("--row", help="The row of a .csv file, or of an array of samples, from 0.")]
Output = Annotated[
    str | None, typer.Option("--output", metavar="TARGET", help="Of a model of several targets, the one to take: its name.")
]
Unknown = Annotated[
    str | None,
    typer.Option(
        "--unknown",
        help="How to treat a category that the model has not seen: error or missing.",
        autocompletion=values.complete_unknown,
    ),
]


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
    """The output of `lutetia` without arguments: the help."""
    if as_json:
        commands: dict[str, Any] = context.command.commands  # type: ignore[attr-defined]  # a group's, which it is
        names = context.command.list_commands(context)  # type: ignore[attr-defined]
        listed = [{"name": name, "about": commands[name].get_short_help_str(200)} for name in names]
        print_json({"version": __version__, "commands": listed})
        return
    text = context.get_help()  # with rich, typer has printed it by now
    if text:
        print(text)

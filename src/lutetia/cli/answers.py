"""The sub-commands that use a trained model, on a board too, `compare`, which fits many, and `import`, which brings one along."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lutetia.cli import values
from lutetia.cli.root import Checkpoint, Debug, Json, Unknown, app
from lutetia.cli.show import as_typed, console, name_next, print_json


@app.command()
def predict(
    checkpoint: Checkpoint,
    given: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Rows of values, .csv, .npy or .npz files, images, folders of images, or text."),
    ],
    out: Annotated[Path | None, typer.Option("--csv", help="Write all predictions to a CSV file; - is stdout.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the columns of the input in the CSV file.")] = False,
    unknown: Unknown = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict classes, numbers, ranks within queries, or the next byte of a text.

    Classes come with probabilities, numbers with intervals. Damaged images are named and left out; the exit code is then 1.

    For example:

    lutetia predict runs/digits digit.png

    lutetia predict runs/flowers 5.1,3.5,1.4,0.2 flowers.csv --csv predictions.csv
    """
    from lutetia.cli.inputs import exists
    from lutetia.cli.predict import PredictRequest
    from lutetia.cli.predict import predict as run_predict

    result = run_predict(checkpoint, PredictRequest(given, out, keep, unknown), show=not as_json)
    if as_json:
        print_json(result)
    else:
        first = result["predictions"][0]["input"] if exists(Path(given[0])) and Path(given[0]).is_dir() else given[0]
        output = ("--output", result["targets"][0]["target"]) if "targets" in result else ()
        name_next("lutetia", "explain", checkpoint, *output, *as_typed(first, None, unknown))
    if result["skipped"]:
        raise typer.Exit(1)


@app.command()
def board(
    build: Annotated[Path, typer.Argument(metavar="BUILD", help="The folder that lutetia build --board wrote.")],
    given: Annotated[
        list[str] | None, typer.Argument(metavar="INPUT...", help="Rows, files, images or recordings, as predict takes them.")
    ] = None,
    port: Annotated[str | None, typer.Option("--port", help="The serial port of the board, such as /dev/ttyUSB1.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Ask a board that holds a circuit, and compare its answers with the model.

    For example:

    lutetia board out/build flowers.csv --port /dev/ttyUSB1
    """
    from lutetia.cli.board import BoardRequest, ask, show_answers

    told = ask(BoardRequest(build, given or [], port), show=not as_json)
    if as_json:
        print_json(told)
    else:
        show_answers(told)
        name_next("lutetia", "explain", told["model"], *as_typed((given or [""])[0]))
    if told["equal"] < told["questions"]:
        raise typer.Exit(1)


@app.command()
def evaluate(
    checkpoint: Checkpoint,
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA]",
            help="A .csv, .parquet or .npz file with answers, a folder of images by class, or text; the run's own by default.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="train, valid or test; test by default.", autocompletion=values.complete_split),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--target", "--label", help="The column of answers: its name, or its number from 0; by default as in training."
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--data", help="The folder of the run's data, if it has moved.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with the confusion matrix.")] = None,
    unknown: Unknown = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure a model: accuracy and recall of classes, errors of numbers, NDCG of rankings, or bits per byte.

    For example:

    lutetia evaluate runs/digits

    lutetia evaluate runs/flowers flowers.csv --target species
    """
    from lutetia.cli.evaluate import EvaluateRequest
    from lutetia.cli.evaluate import evaluate as run_evaluate

    result = run_evaluate(checkpoint, EvaluateRequest(data, split, label, folder, html, unknown), show=not as_json)
    if as_json:
        print_json(result)
        return
    if html is not None:
        console().print(f"page {html}", soft_wrap=True, markup=False)
    name_next("lutetia", "info", checkpoint)


@app.command()
def info(checkpoint: Checkpoint, as_json: Json = False, debug: Debug = False) -> None:
    """Describe a model: its size, names, ranges, files and checksums.

    For example:

    lutetia info runs/digits
    """
    from lutetia.cli.info import info as run_info

    result = run_info(checkpoint, show=not as_json)
    if as_json:
        print_json(result)
    elif result["can_be_built"]:
        output = ("--output", result["targets"][0]) if result["targets"] else ()
        name_next("lutetia", "build", checkpoint, *output, *(("--target", "c") if result["build_targets"][0] == "c" else ()))
    else:
        name_next("lutetia", "generate" if result["metadata"].get("task") == "language" else "evaluate", checkpoint)


@app.command()
def compare(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA|CONFIG.toml",
            help="A .csv, .parquet or .npz file, a folder of images by class, or the config of a run on one.",
        ),
    ],
    target: Annotated[str | None, typer.Option("--target", help="The column to predict; the last by default.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help=f"{', '.join(values.TASKS)}; guessed by default, as in train.", autocompletion=values.complete_task
        ),
    ] = None,
    folds: Annotated[int, typer.Option("--folds", help="How many times each method is fitted, and tested on other rows.")] = 5,
    minutes: Annotated[
        float, typer.Option("--minutes", help="The time limit of each method; one that exceeds it is left out.")
    ] = 10,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with a picture of the differences.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting, as in train. May be repeated.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Ask whether Lutetia is better on your table than other methods.

    Each method gets the same rows: boosting, a random forest, a linear model, one answer for all rows. LightGBM, XGBoost and
    CatBoost are compared if they are installed.

    For example:

    lutetia compare flowers.csv --target species
    """
    from lutetia.cli import compare as comparing

    request = comparing.CompareRequest(data, target, task, settings or [], folds, minutes, html)
    told = comparing.compare(request, show=not as_json)
    if html is not None:
        comparing.write_page(html, told)
    if as_json:
        print_json(told)
        return
    comparing.show_comparison(told)
    if html is not None:
        console().print(f"page {html}", soft_wrap=True, markup=False)
    options = [("--target", target), ("--task", task), *(("--set", each) for each in settings or [])]
    name_next("lutetia", "train", data, *(word for option, value in options if value is not None for word in (option, value)))


@app.command(name="import")
def import_trees(
    given: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="Boosted trees: LightGBM's text model, XGBoost's JSON or UBJSON, or CatBoost's JSON export."
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write; runs/NAME by default, for NAME.json.")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Rows it was trained on, .csv or .parquet: names, ranges, and which columns miss values."),
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="The name of what it predicts.")] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", help="The names of its classes in their order, with commas between them.")
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            help="Missing values go where the library sends them: exact, in all columns; seen, in those that had some in "
            "training; none, in no column, for the smallest model.",
            autocompletion=values.complete_no_value,
        ),
    ] = "seen",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Bring a fitted model of trees along: as lookup tables that predict the same.

    For example:

    lutetia import trees.json --data flowers.csv --target species
    """
    from lutetia.cli.import_trees import ImportRequest, run_import, show_import

    told = run_import(ImportRequest(given, out, data, target, classes, missing))
    if as_json:
        print_json(told)
    else:
        show_import(told)
        name_next("lutetia", "predict", told["out"], data or "DATA.csv")

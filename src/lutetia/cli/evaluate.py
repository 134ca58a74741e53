"""`lutetia evaluate`: how good a model is, on a split of the data it was trained on or on another file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.losses import ERRORS, NOUNS
from lutetia._shared.numbers import short_number
from lutetia.cli.build_data import as_fitted, open_rows
from lutetia.cli.class_lines import class_lines, write_class_page
from lutetia.cli.forecasts import labelled_forecasts, naive_text
from lutetia.cli.given_rows import given_rows, name_or_number
from lutetia.cli.guard import UsageError, did_you_mean, stop_if_interrupted
from lutetia.cli.inputs import (
    column_titles,
    feature_columns,
    load_for_inputs,
    unknown_warnings,
)
from lutetia.cli.naming import class_names, feature_names, range_warnings
from lutetia.cli.outputs import check_output
from lutetia.cli.show import Progress, console, one_line, print_warning
from lutetia.cli.train_table import held_out_text, told_measure
from lutetia.cli.values import SPLITS
from lutetia.cli.windows import labelled_windows
from lutetia.errors import ArgumentError, DataError
from lutetia.models import (
    Classifier,
    LUTTransformer,
    Model,
    Tabular,
    Targets,
    finds_unusual,
    forecast_of,
    in_run,
    read_config,
    text_columns,
)
from lutetia.training import (
    Config,
    Data,
    DataConfig,
    Names,
    Samples,
    Text,
    batches_in_order,
    class_report,
    column_importance,
    context_of,
    evaluation_sums,
    held_out,
    is_table_config,
    label_column,
    labels_of,
    make_config,
    make_table_config,
    measure_tabular,
    metrics_of,
    metrics_text,
    model_rows,
    naive_errors,
    numeric_columns,
    open_data,
    query_numbers,
    read_cells,
    read_state,
    read_weights,
    word_importance,
)

Array = np.ndarray[Any, Any]
BATCH = 256
MOST_SHUFFLED = 200  # columns
SHOWN_WORDS = 10
MOST_NAMED = 5  # images that were skipped
SHOWN_COLUMNS = 10


class EvaluateRequest(NamedTuple):
    """What was asked for: the options of the command."""

    data: Path | None
    split: str | None
    label: str | None
    folder: Path | None
    html: Path | None = None
    unknown: str | None = None


def evaluate(checkpoint: Path, request: EvaluateRequest, show: bool) -> dict[str, Any]:
    """Evaluate; with `show`, print the result. Returns what `--json` prints."""
    if request.split is not None and request.split not in SPLITS:
        raise UsageError(f"there is no split {request.split!r}: {did_you_mean(request.split, SPLITS)}")
    check_output("--html", request.html, (".html", ".htm"), [] if request.data is None else [str(request.data)])
    model = load_for_inputs(checkpoint, request.unknown)
    if isinstance(model, Targets):
        return _evaluate_targets(model, checkpoint, request, show)
    if request.html is not None and (isinstance(model, LUTTransformer) or _has_no_classes(model)):
        raise UsageError("--html shows which classes are confused, and this model has no classes")
    is_tabular = isinstance(model, Tabular)
    result = _evaluate_table(model, checkpoint, request) if is_tabular else _measure(model, checkpoint, request, show)
    of = _of(result, request)
    if show:
        _show(result, of)
    if request.html is not None:
        write_class_page(request.html, f"Accuracy {result['accuracy']:.2%}", f"{result['samples']:,} samples {of}.", result)
    return result


def _evaluate_targets(model: Targets, checkpoint: Path, request: EvaluateRequest, show: bool) -> dict[str, Any]:
    """How good a model is on each of several targets."""
    for option, value in (("--html", request.html), ("--target", request.label)):
        if value is not None:
            raise UsageError(f"{option} is {value}, expected none: the model has several targets")
    results = [_evaluate_table(part, checkpoint, request) for part in model.all_parts]
    common = {key: results[0][key] for key in ("split", "samples")}
    told = [
        {"target": name, **{key: value for key, value in own.items() if key not in ("kind", *common)}}
        for name, own in zip(model.names, results, strict=True)
    ]
    if show:
        for name, own in zip(model.names, results, strict=True):
            console().print(one_line(name), soft_wrap=True, markup=False)
            _show(own, _of(own, request))
    return {"kind": model.kind, **common, "targets": told}


def _has_no_classes(model: Model[Any]) -> bool:
    """Whether a model of columns predicts no class of its data."""
    return isinstance(model, Tabular) and (model.is_regression or finds_unusual(model.metadata))


def _measure(model: Any, checkpoint: Path, request: EvaluateRequest, show: bool) -> dict[str, Any]:
    """How good a classifier or a language model is."""
    config = _config(checkpoint)
    opened = _own_data(model, checkpoint, config, request.folder) if request.data is None else _open(model, config, request)
    split = _split(opened, request)
    samples = opened.splits[split]
    size, precision = (config.train.batch_size, config.train.precision) if config else (BATCH, "float32")
    device = next(model.parameters()).device
    seen = _Seen(model, isinstance(samples, Samples), len(samples), show)
    with seen.progress:
        batches = batches_in_order(samples, size, context=context_of(model), device=device)
        # The very sums that training reports at its end.
        sums = evaluation_sums(seen, seen.watched(batches), device, precision)
    metrics = metrics_of(sums, isinstance(samples, Text))
    unit = "bytes" if isinstance(samples, Text) else "samples"
    result: dict[str, Any] = {"kind": model.kind, "split": split, unit: int(sums[2]), **metrics}
    if isinstance(samples, Samples):
        result |= {**seen.report(), "warnings": _range(model, samples)}
    return result


def _evaluate_table(model: Tabular, checkpoint: Path, request: EvaluateRequest) -> dict[str, Any]:
    """How good a model of columns is: on a file, or on the rows that its run held out."""
    split, weight = "test", None
    columns: Mapping[str, Sequence[Any]] = {}
    query: Array | None = None
    about: dict[str, Any] = {}
    skipped: Sequence[str] = ()
    changing = 0
    if request.data is not None and "windows" in model.metadata:
        x, y, changing = labelled_windows(model, request.data, name_or_number(request.label))
    elif request.data is not None and "forecast" in model.metadata:
        x, y = labelled_forecasts(model, request.data)
    elif request.data is not None:
        x, y, columns, skipped = given_rows(model, request.data, request.label, _skips(checkpoint))
    else:
        tables = read_config(in_run(checkpoint))
        if not is_table_config(tables):
            raise ArgumentError(f"{checkpoint} does not say what it was trained on: lutetia evaluate {checkpoint} DATA.csv")
        place = request.folder or Path(str(read_state(in_run(checkpoint)).get("data_folder", ".")))
        config = as_fitted(make_table_config(tables, str(checkpoint)), model.metadata)
        table, opened = open_rows(config, place, model.metadata)
        split = _split(opened, request)
        part = opened.splits[split]
        assert isinstance(part, Samples)
        x, y, weight, query = model_rows(part, text_columns(model.metadata)), part.y, part.weight, part.query
        about = held_out(config, table)
    if request.data is not None:
        weight = _weights(model, columns, request.data)
    if weight is not None:
        about["weighted_by"] = model.metadata["weight"]
    lacking = np.flatnonzero(np.isnan(y))
    if len(lacking):
        raise DataError(f"{request.data} has no value of the target in row {lacking[0] + 1}, expected one in each row")
    y = y if model.is_regression else y.astype(np.int64)
    model.loss.check_sign(y, "the target")
    if model.loss.is_ranking and query is None:
        query = _query(model, columns, request.data)
    result = {"kind": model.kind, "split": split, "samples": len(y), **about, **measure_tabular(model, x, y, weight, query)}
    if (forecast := forecast_of(model.metadata)) is not None and model.is_regression:
        result["naive"] = naive_errors(forecast, x, y)
    names = column_titles(model)
    if names and len(names) <= MOST_SHUFFLED and not finds_unusual(model.metadata):
        result["columns"] = _columns(names, column_importance(model, x, y, weight, query=query))
    if "texts" in model.metadata:
        found = word_importance(model, x, y, weight, query)[:SHOWN_WORDS]
        result["words"] = [{"column": column, "word": word, "rise": rise} for column, word, rise in found]
    warnings = unknown_warnings(model, columns)
    if weight is None and "weight" in model.metadata:
        warnings = [*warnings, f"rows count alike: {request.data} has no column {model.metadata['weight']!r}"]
    if changing:
        count = "1 window is" if changing == 1 else f"{changing:,} windows are"
        warnings = [*warnings, f"{count} left out, in which {model.metadata.get('target')} changes or has no value"]
    if skipped:
        count = f"{len(skipped):,} damaged image{'' if len(skipped) == 1 else 's'}"
        warnings = [*warnings, f"skipped {count}, as in the fit: {', '.join(skipped[:MOST_NAMED])}"]
    if warnings:
        result["warnings"] = warnings
    return result


def _skips(checkpoint: Path) -> bool | None:
    """Whether the fit of a model skipped damaged images; None where it did not, or nothing is known of it."""
    tables = read_config(in_run(checkpoint))
    is_known = is_table_config(tables)
    return (is_known and make_table_config(tables, str(checkpoint)).data.skip_unusable) or None


def _query(model: Tabular, columns: Mapping[str, Sequence[Any]], path: Path | None) -> Array:
    """The query of each row of a file, by the column that had them in the training data; one query where that is not known."""
    name = model.metadata.get("query")
    if name is not None and name not in columns:
        raise DataError(f"{path} has no column {name!r}, expected the query of each row there")
    if name is None:
        return np.zeros(len(next(iter(columns.values()))), np.int64)
    return query_numbers(columns[name], f"{path}, column {name!r}")


def _weights(model: Tabular, columns: Mapping[str, Sequence[Any]], path: Path) -> Array | None:
    """How much the rows of a file count, by the column that said so in the fit; None without it."""
    name = model.metadata.get("weight")
    return None if name is None or name not in columns else read_weights(columns[name], name, path)


def _columns(names: list[str], rises: list[float]) -> list[dict[str, Any]]:
    """The columns that a model depends on, the most important first."""
    order = sorted(range(len(names)), key=lambda column: -rises[column])
    return [{"column": names[column], "rise": rises[column]} for column in order]


class _Seen(torch.nn.Module):
    """The model, wrapped to count its answers by class."""

    def __init__(self, model: Model[Any], has_classes: bool, total: int, show: bool) -> None:
        super().__init__()
        self.model, self.has_classes = model, has_classes
        self.progress = Progress("evaluating", total, show)
        self.pairs: list[Tensor] = []  # of true and predicted classes, [2, B] each
        self.target = torch.empty(0)

    def watched(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches, as they are taken."""
        for x, target in batches:
            stop_if_interrupted()
            self.target = target
            yield x, target
            self.progress.advance(target.numel())

    def forward(self, x: Tensor) -> Tensor:
        """Scores of a batch, as the model gives them."""
        scores = self.model(x)
        if self.has_classes:
            self.pairs.append(torch.stack([self.target, scores.argmax(-1)]).cpu())
        return scores

    def report(self) -> dict[str, Any]:
        """How many samples of each class were classified correctly, and what the others were taken for."""
        truth, predicted = torch.cat(self.pairs, 1).numpy()
        return class_report(truth, predicted, class_names(self.model))  # type: ignore[arg-type]


# ---- data ------------------------------------------------------------------------------------------------------------


def _config(checkpoint: Path) -> Config | None:
    """The config of the run that a checkpoint comes from; None for a model that was saved on its own."""
    tables = read_config(in_run(checkpoint))
    return make_config(tables, str(checkpoint)) if {"data", "train"} <= set(tables) else None


def _own_data(model: Model[Any], checkpoint: Path, config: Config | None, folder: Path | None) -> Data:
    if config is None:
        raise ArgumentError(
            f"{checkpoint} does not say what it was trained on: name the data, lutetia evaluate {checkpoint} DATA"
        )
    place = folder or Path(str(read_state(in_run(checkpoint)).get("data_folder", ".")))
    try:
        return open_data(config.data, place, model.metadata.get("classes", ()))
    except DataError as error:
        raise DataError(f"{error}; --data names another folder for the data of the run") from error


def _open(model: Model[Any], config: Config | None, request: EvaluateRequest) -> Data:
    """A named file as one split, or as the splits it contains."""
    path = request.data
    assert path is not None
    if isinstance(model, LUTTransformer):
        return open_data(DataConfig("bytes", path=str(path)), Path())
    if not isinstance(model, Classifier):
        raise ArgumentError(f"the checkpoint holds a {type(model).__name__}, expected a classifier or a language model")
    names = path.name.lower()
    if names.endswith((".csv", ".csv.gz")):
        return _csv(model, path, request.label if request.label is not None else config.data.label if config else None)
    if names.endswith(".npz"):
        return open_data(DataConfig("npz", path=str(path)), Path(), model.metadata.get("classes", ()))
    raise DataError(f"{path} ends in {path.suffix or 'no suffix'}, expected a .csv or .npz file with classes")


def _csv(model: Classifier, path: Path, label: str | int | None) -> Data:
    """Rows whose classes are numbered as the model numbers them."""
    label = name_or_number(label)
    cells = read_cells(path, label)
    if label is None and cells.header is not None and set(feature_names(model)) <= set(cells.header):
        rest = [name for name in cells.header if name not in feature_names(model)]
        label = rest[0] if len(rest) == 1 and feature_names(model) else None
    column = label_column(cells, label)
    known = model.metadata.get("classes") or [str(number) for number in range(model.config.n_classes)]
    order = {name: number for number, name in enumerate(known)}
    words = labels_of(cells, column)
    for number, word in enumerate(words):
        if word not in order:
            raise DataError(f"{cells.place(number, column)}: the class is {word!r}, expected one of {', '.join(known)}")
    columns = feature_columns(model, cells)
    if column in columns:  # no names to go by: all columns but that of the class
        columns = [at for at in range(cells.width) if at != column]
    wanted = math.prod(model.config.input_shape)
    if len(columns) != wanted:
        raise DataError(f"{path} has {len(columns)} columns of values besides the class, expected {wanted} for this model")
    x = numeric_columns(cells, columns).reshape(-1, *model.config.input_shape)
    return Data({"test": Samples(x, np.array([order[word] for word in words], np.int64))}, "", Names(known))


def _split(opened: Data, request: EvaluateRequest) -> str:
    """The split that was asked for; by default test, or validation without a test split; all of a named file."""
    order = ("test", "valid", "train") if request.data is not None else ("test", "valid")
    split = request.split or next((name for name in order if name in opened.splits), None)
    if split is None:
        raise UsageError("the data has no test and no validation split: --split train evaluates on the training data")
    if split not in opened.splits:
        raise UsageError(f"the data has no {split} split, expected --split to be one of {', '.join(opened.splits)}")
    return split


def _range(model: Model[Any], samples: Samples) -> list[str]:
    x = torch.from_numpy(np.ascontiguousarray(samples.x))
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    return range_warnings(model, x, [f"sample {number}" for number in range(len(x))])


def _of(result: dict[str, Any], request: EvaluateRequest) -> str:
    """Which samples were measured: the split of the run, or the file that was named."""
    if request.data is not None:
        return f"of {one_line(str(request.data))}"
    known = result["split"] == "test" and result.get("held_out", "random") != "random"
    return f"of the {result['split']} split" + (f", {held_out_text(result['held_out'], result['held_out_by'])}" if known else "")


def _show(result: dict[str, Any], of: str) -> None:
    screen = console()
    unit = "bytes" if "bytes" in result else "samples"
    told = told_measure(result) if result["kind"] == Tabular.kind else f"{metrics_text(result)}, loss {result['loss']:.4f}"
    screen.print(f"{told}, {result[unit]:,} {unit} {of}{naive_text(result)}", soft_wrap=True)
    for line in class_lines(result) if "classes" in result else ():
        screen.print(line, soft_wrap=True, markup=False)
    if "columns" in result:
        key = result.get("measure", "rmse")
        change = f"{NOUNS[key] if key in result else 'loss'} {'rises' if key in ERRORS else 'falls'}"
        screen.print(f"columns that matter: how far the {change} when one is shuffled", soft_wrap=True)
        shown = result["columns"][:SHOWN_COLUMNS]
        width = max(len(one_line(each["column"])) for each in shown)
        for each in shown:
            rise = short_number(each["rise"], sign=True)
            screen.print(f"  {one_line(each['column']):<{width}}  {rise}", soft_wrap=True)
    if result.get("words"):
        screen.print("words that matter: how far it changes when one does not occur, its pairs staying", soft_wrap=True)
        words = [f"{one_line(each['word'])} {short_number(each['rise'], 3, sign=True)}" for each in result["words"]]
        screen.print(f"  {', '.join(words)}", soft_wrap=True, markup=False)
    for warning in result.get("warnings", []):
        print_warning(warning)

"""`lutetia info`: the model of a checkpoint, its sizes, names, ranges and checksums, and whether it can be built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lutetia._shared.folders import MANIFEST, read_manifest
from lutetia._shared.losses import OWN, RANKING
from lutetia._shared.numbers import short_number
from lutetia.cli.build_data import has_core
from lutetia.cli.show import console, one_line
from lutetia.cli.train_table import interactions_text, monotone_text
from lutetia.cli.values import PROGRAMS, TARGETS
from lutetia.errors import LutetiaError
from lutetia.models import (
    MANIFEST_FORMAT,
    LUTClassifier,
    LUTTransformer,
    Model,
    Tabular,
    TabularConfig,
    Targets,
    VotesClassifier,
    data_columns,
    finds_unusual,
    in_run,
    load,
)
from lutetia.training import read_state

SHOWN = 12  # names on a screen


def info(checkpoint: Path, show: bool) -> dict[str, Any]:
    """Describe a checkpoint once its checksums are verified; with `show`, print it. Returns what `--json` prints."""
    model: Any = load(checkpoint)
    folder = in_run(checkpoint)
    state = read_state(folder)
    obstacle = build_obstacle(model)
    result = {
        "path": str(folder),
        "kind": model.kind,
        "class": type(model).__name__,
        "weights": model.n_parameters,
        "types": sorted({str(each.dtype).removeprefix("torch.") for each in model.parameters()}),
        "reads": sorted({module.read for module in model.modules() if isinstance(getattr(module, "read", None), str)}),
        "config": model.config.to_dict(),
        "metadata": model.metadata,
        "targets": model.names if isinstance(model, Targets) else [],
        "step": state.get("step"),
        "best": state.get("best"),
        "files": read_manifest(folder, MANIFEST_FORMAT)["files"],
        "can_be_built": not obstacle,
        "build_targets": [] if obstacle else _targets(model),
        "why_not": obstacle,
    }
    if show:
        _show(result)
    return result


def _targets(model: Model[Any]) -> list[str]:
    """What `lutetia build` can make of a model that it can build."""
    if isinstance(model, Targets):
        return [*TARGETS, *PROGRAMS]  # of the target that --output names
    if has_core(model):
        return [*PROGRAMS, "ecp5", "ice40"]
    return ["c", "verilog"] if isinstance(model, LUTTransformer) else [*TARGETS, *PROGRAMS]


def build_obstacle(model: Model[Any]) -> str:
    """Why `lutetia build` cannot build a model; empty where it can."""
    from lutetia.precompute import integer_model, lut_network

    if isinstance(model, Tabular | Targets | VotesClassifier):
        return ""
    if not isinstance(model, LUTClassifier | LUTTransformer):
        return f"a {type(model).__name__} is not made of lookup tables"
    try:
        lut_network(model) if isinstance(model, LUTClassifier) else integer_model(model)
    except LutetiaError as error:
        return str(error)
    return ""


def _show(result: dict[str, Any]) -> None:
    screen, metadata, config = console(), result["metadata"], result["config"]
    lines = {
        "checkpoint": result["path"],
        "model": f"{result['class']}, {result['weights']:,} weights ({', '.join(result['types'])})",
    }
    if result["step"] is not None:
        lines["trained"] = f"{result['step']:,} {'tables' if result['class'] in ('Tabular', 'Targets') else 'steps'}"
    if "input_shape" in config:
        sizes = config["input_shape"]
        lines["input"] = " × ".join(map(str, sizes)) + _range(metadata) if len(sizes) > 1 else _columns(sizes[0], metadata)
        if "outputs" in config:
            lines["predicts"] = f"{_few(_target_texts(metadata, config))} (--output takes one)"
        elif finds_unusual(metadata):
            told = metadata["unusual"]
            lines["predicts"] = f"which rows are unusual: {told['share']:.2%} of rows like the {told['rows']:,} it was tried on"
        elif metadata.get("task") in ("regression", "ranking"):
            within = f", 9 of 10 test rows within ±{short_number(metadata['error_90'])}" if "error_90" in metadata else ""
            lines["predicts"] = f"{predicted_text(metadata, config)}{within}"
        else:
            lines["classes"] = _few(metadata.get("classes", [])) or f"{config['n_classes']}, without names"
            lines["classes"] += ", whose probabilities the tables add up" if config.get("sums") == "probabilities" else ""
        lines["features"] = _few(metadata.get("features", []))
        names = metadata.get("features") or [f"x{number}" for number in range(len(config.get("monotone", ())))]
        classes = metadata.get("classes") or [str(each) for each in range(config.get("n_classes", 0))]
        signs = dict(zip(names, config.get("monotone", ()), strict=False))
        lines["monotone"] = monotone_text(signs, classes)
        limits = config.get("most_columns") or _named_groups(config.get("column_groups", ()), metadata, sizes[0])
        lines["meet"] = interactions_text(limits) if limits else ""
    lines["layers"] = ", ".join(_layer(each) for each in config.get("layers", []))
    lines["reads"] = ", ".join(result["reads"])
    lines["config"] = ", ".join(f"{key} {value}" for key, value in config.items() if _is_shown(key, value, result["class"]))
    targets = ", ".join(result["build_targets"])
    lines["build"] = f"can be built for --target {targets}" if targets else f"cannot be built: {result['why_not']}"
    for name, text in lines.items():
        if text:
            screen.print(f"{name:<11}{one_line(text)}", soft_wrap=True)
    for name, facts in result["files"].items():
        screen.print(f"{'file':<11}{name}, {facts['bytes']:,} bytes, sha256 {facts['sha256'][:16]}", soft_wrap=True)
    screen.print(f"{'':<11}all checksums agree with {MANIFEST}", soft_wrap=True)


def _named_groups(groups: Sequence[Sequence[int]], metadata: Mapping[str, Any], n_inputs: int) -> list[list[str]]:
    """Groups of columns by their names."""
    columns = data_columns(metadata, n_inputs) if groups else []
    return [[columns[number].name for number in group if number < len(columns)] for group in groups]


def _target_texts(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """What each of several targets is: "price", "colour, 3 classes"."""
    told = metadata.get("targets") or [{"target": f"y{number}"} for number in range(len(config["outputs"]))]
    if config["outputs"][0] == 1:
        return [predicted_text(own, config) for own in told]
    return [f"{own.get('target')}: {count} classes" for own, count in zip(told, config["outputs"], strict=True)]


def _is_shown(key: str, value: Any, model: str) -> bool:
    """Whether the line of settings has this one: those of other lines it leaves out, and of a model of columns also the sizes of
    its encoding, and what is as always."""
    told = ("input_shape", "outputs", "n_classes", "layers", "loss", "quantile", "sums")  # on lines of their own
    if key in (*told, "monotone", "most_columns", "column_groups"):
        return False
    if model not in ("Tabular", "Targets") or key in ("n_tables", "n_anchors"):
        return True
    return key not in ("n_encoded", "n_edges", "n_categories", "parts") and value != TabularConfig().to_dict().get(key)


def predicted_text(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """What a regression predicts, by its loss: "price", "the median of price", "the 90% quantile of price"."""
    what = {"absolute_error": "the median of ", "poisson": "the mean of ", "quantile": "the {:g}% quantile of "}
    loss, target = config.get("loss", "squared_error"), metadata.get("target")
    if loss == RANKING:
        return f"scores that order rows by {target}" if target else "scores that order rows"
    log = ", as a logarithm in its tables" if loss == "poisson" else ""
    log = f", by a loss of its own, {metadata.get('loss_name', 'without a name')}" if loss == OWN else log
    return f"{what.get(loss, '').format(100 * (config.get('quantile') or 0))}{target or 'a number'}{log}"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f'"{name}"' if "," in name else name for name in names[:SHOWN]) + more


def _columns(count: int, metadata: dict[str, Any]) -> str:
    """Inputs in a row: "5 numbers, trained on values from 0 to 9", or "5 columns, 2 of categories, 1 of dates".
    A text column is one, whatever is made of it."""
    kinds = [(len(metadata.get(kind, ())), kind) for kind in ("categories", "dates")]  # whose numbers say little
    if "texts" in metadata:
        kinds.append((len(metadata["texts"]), "text"))
        count = len(data_columns(metadata, count))
    told = "".join(f", {number:,} of {kind}" for number, kind in kinds if number)
    return f"{count:,} columns{told}" if told else f"{count:,} numbers{_range(metadata)}"


def _range(metadata: dict[str, Any]) -> str:
    if "input_low" not in metadata:
        return ""
    low, high = metadata["input_low"], metadata["input_high"]
    low, high = (min(low) if isinstance(low, list) else low), (max(high) if isinstance(high, list) else high)
    return f", trained on values from {low:.6g} to {high:.6g}"


def _layer(layer: dict[str, Any]) -> str:
    sizes = ", ".join(f"{value} {key.removeprefix('n_')}" for key, value in layer.items() if key.startswith("n_"))
    return f"{layer['kind']} ({sizes})"

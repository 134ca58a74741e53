"""The config file of a training run: TOML in, frozen dataclasses out.

[model]             what to train: handed to lutetia.models as it is; `dense = true` trains the dense twin instead
[data]              what to learn from
[optimizer.tables]  how the tables learn, [optimizer.ngrams] the rows of n-gram tables, [optimizer.rest] everything else
[schedule]          warm-up and decay of all rates
[train]             batch, length, precision, evaluation
[regularize]        what is added to the loss
[parallel]          how processes share the work
[checkpoint]        how often to save, and how many to keep
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lutetia import toml
from lutetia._shared.numbers import whole_number
from lutetia._version import __version__
from lutetia.errors import ArgumentError, DataError
from lutetia.models import MODEL_FORMAT
from lutetia.training.schema import Origin, build, option

DATA_KINDS = ("bytes", "stdlib", "digits", "idx", "npz", "csv")
OPTIMIZERS = ("adamw", "sgd", "sparse_adam", "lion", "row_adam")
PATHS = ("path", "images", "labels", "test_images", "test_labels")  # keys of [data]
PRECISIONS = ("float32", "bf16", "fp16")


@dataclass(frozen=True)
class DataConfig:
    """[data]. Paths are relative to the config file, or to the folder of --data; those of --set to the current folder.

    `valid` and `test` are taken from the end of the data, in this order: a fraction below 1, or a number of samples or bytes.
    """

    kind: str = option(choices=DATA_KINDS)
    path: str | None = None  # of bytes, npz and csv
    images: str | None = None  # of idx, as the three that follow
    labels: str | None = None
    test_images: str | None = None
    test_labels: str | None = None
    label: str | int | None = None  # of csv: the column of the class, by name or by number from 0; the last one by default
    valid: float = option(0.0, low=0)
    test: float = option(0.0, low=0)
    shuffle: bool = False  # mix the samples, always in the same way, before they are split: for files sorted by class
    shift: int = option(0, low=0, high=64)  # shift each training image by up to this many pixels
    warp: float = option(0.0, low=0, high=0.5)  # turn, stretch and slant each training image by up to about this much


@dataclass(frozen=True)
class Optimizer:
    """One table of [optimizer]. The default of a None depends on the kind of optimiser and on what it steps."""

    kind: str = option("adamw", choices=OPTIMIZERS)
    lr: float = option(1e-3, low=0)
    betas: tuple[float, float] | None = option(None, low=0, high=1)
    eps: float = option(1e-8, low=0)
    momentum: float = option(0.0, low=0, high=1)  # of sgd
    weight_decay: float = option(0.0, low=0)


@dataclass(frozen=True)
class NgramOptimizer(Optimizer):
    """[optimizer.ngrams]: by default only the rows that were read are stepped."""

    kind: str = option("row_adam", choices=OPTIMIZERS)
    lr: float = option(1e-2, low=0)


@dataclass(frozen=True)
class OptimizersConfig:
    tables: Optimizer = field(default_factory=Optimizer)
    rest: Optimizer = field(default_factory=Optimizer)
    ngrams: NgramOptimizer = field(default_factory=lambda: NgramOptimizer())


@dataclass(frozen=True)
class Schedule:
    """[schedule]: the rate rises from 0 over the fraction `warmup` of the run, then falls to the fraction `floor` of its peak."""

    kind: str = option("cosine", choices=("cosine", "linear", "constant"))
    warmup: float = option(0.0, low=0, high=1)
    floor: float = option(0.1, low=0, high=1)


@dataclass(frozen=True)
class Train:
    """[train]. The run ends after `steps` or `epochs`, after `minutes` of training, or when `patience` evaluations in a row
    were no better than the best."""

    batch_size: int = option(64, low=1)  # samples of one step, over all processes and all parts of an accumulated batch
    steps: int | None = option(None, low=1)
    epochs: int | None = option(None, low=1)
    minutes: float | None = option(None, low=0)
    accumulate: int = option(1, low=1)  # parts in which a batch is computed, one after another
    clip: float | None = option(None, low=0)  # the largest norm of all gradients together
    precision: str = option("float32", choices=PRECISIONS)
    table_bits: int | None = option(None, low=2, high=16)  # to which tables are rounded in every step; None: floats
    compile: bool = False
    graph: bool = True  # on CUDA, capture a whole step as one graph where that can be done
    seed: int = option(0, low=0, high=2**63 - 1)
    eval_every: int = option(0, low=0)  # in steps; 0: only at the end
    eval_batches: int | None = option(None, low=1)  # of each evaluation on the way; None: all
    patience: int | None = option(None, low=1)
    log_every: int = option(10, low=1)
    tensorboard: bool = False


@dataclass(frozen=True)
class Regularize:
    """[regularize]: weights of the terms added to the loss; how a network of gates is pruned and frozen."""

    cell_variation: float = option(0.0, low=0)  # mean ‖W_c - W_c'‖² over rows whose indices differ in one bit
    area: float = option(0.0, low=0)  # predicted LUTs of a network of gates, in thousands
    prune: float = option(0.0, low=0, high=0.9)  # the part of each layer's gates that become constants, in steps
    freeze: float = option(1.0, low=0, high=1)  # the part of the run after which the wiring of gates stays; 1: never
    teacher: str | list | None = None  # a checkpoint whose answers are learned too, or a list
    distil: float = option(0.5, low=0, high=1)  # the weight of the teacher's answers; the labels have the rest


@dataclass(frozen=True)
class Parallel:
    """[parallel]. This many processes share the detectors of every layer; each such group has its own share of the data."""

    detectors: int = option(1, low=1)
    timeout: float = option(600.0, low=1)  # seconds that a process waits for the others in one exchange


@dataclass(frozen=True)
class CheckpointConfig:
    every: int = option(1000, low=1)  # in steps; the end of the run, and the best evaluation, are always saved
    keep: int = option(2, low=1)  # how many of the newest to keep, besides the best


@dataclass(frozen=True)
class Config:
    """A whole file."""

    model: dict[str, Any]
    data: DataConfig
    train: Train
    optimizer: OptimizersConfig = field(default_factory=OptimizersConfig)
    schedule: Schedule = field(default_factory=Schedule)
    regularize: Regularize = field(default_factory=Regularize)
    parallel: Parallel = field(default_factory=Parallel)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def to_dict(self) -> dict[str, Any]:
        """Tables as TOML stores them: no None, no tuples."""
        return _plain(dataclasses.asdict(self))

    def to_toml(self) -> str:
        """The config as a file that `read_config` reads, and `lutetia.models.load` too if a model is next to it."""
        tables = self.to_dict()
        model = tables.pop("model")
        head = {"format": MODEL_FORMAT, "lutetia": __version__, "kind": model.pop("kind", "")}
        return toml.dumps({**head, **tables, "model": model})


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config file; `overrides` are settings such as `train.steps=100` that take the place of the file's."""
    return make_config(read_toml(path), str(path), overrides)


def make_config(tables: Mapping[str, Any], name: str = "config", overrides: Sequence[str] = ()) -> Config:
    """A config from tables that were read or written by hand; `name` is the name of the file in messages."""
    tables = _without_head(_copy(tables))
    keys = [override(tables, text) for text in overrides]
    origin = Origin(name, keys)
    config = build(Config, tables, origin)
    _check(config, origin)
    return config


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    return toml.read(path, "a config file, TOML as in the folder examples")


def _copy(tables: Mapping[str, Any]) -> dict[str, Any]:
    def copied(value: object) -> Any:
        if isinstance(value, list):
            return [copied(each) for each in value]
        return _copy(value) if isinstance(value, Mapping) else value

    return {key: copied(value) for key, value in tables.items()}


def _without_head(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables of a config that a run has written: the keys at the top of the file, which describe the model, go to [model]."""
    if tables.get("format") == MODEL_FORMAT and isinstance(tables.get("model"), dict):
        tables["model"].setdefault("kind", tables.pop("kind", None))
        for name in ("format", "lutetia"):
            tables.pop(name, None)
    return tables


def override(tables: dict[str, Any], text: str) -> str:
    """Put `a.b=value` in its place; returns the key. A number picks from a list of tables, as in model.layers.0.read.

    A value that is not TOML, such as a bare word, is a string.
    """
    key, equals, value = text.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or len(names) < 2 or not all(names):
        raise ArgumentError(f"--set is given {text!r}, expected table.key=value, such as train.steps=100")
    place: Any = tables
    for name in names[:-1]:
        if isinstance(place, list):
            number = whole_number(name)
            if number is None or not 0 <= number < len(place):
                raise ArgumentError(f"--set is given {text!r}, expected a number below {len(place)} instead of {name!r}")
            place = place[number]
        else:
            place = place.setdefault(name, {})
        if not isinstance(place, dict | list):
            raise ArgumentError(f"--set is given {text!r}, but {name} is a value, not a table")
    if isinstance(place, list):
        raise ArgumentError(f"--set is given {text!r}, which names a whole table of a list, expected a key of it")
    try:
        place[names[-1]] = toml.loads(f"value = {value}")["value"]
    except DataError:
        place[names[-1]] = value.strip()
    if names[0] == "data" and names[-1] in PATHS and isinstance(place[names[-1]], str):
        place[names[-1]] = os.path.abspath(place[names[-1]])  # a path that is typed is relative to where it is typed
    return ".".join(names)


def _check(config: Config, origin: Origin) -> None:
    """Checks across several keys."""
    train, data = config.train, config.data
    if train.steps is None and train.epochs is None and train.minutes is None:
        raise ArgumentError(f"{origin.file}: [train] does not say when to stop, expected steps, epochs or minutes")
    if train.steps is not None and train.epochs is not None:
        raise ArgumentError(f"{origin.file}: train.steps and train.epochs are both set, expected one of them")
    if train.minutes is not None and train.minutes <= 0:
        origin.fail("train.minutes", train.minutes, "more than 0")
    if train.clip is not None and train.clip <= 0:
        origin.fail("train.clip", train.clip, "more than 0")
    if train.batch_size % train.accumulate:
        origin.fail("train.batch_size", train.batch_size, f"a multiple of train.accumulate, {train.accumulate}")
    if train.patience is not None and not (train.eval_every and data.valid):
        origin.fail("train.patience", train.patience, "train.eval_every and data.valid to be set, too: it counts evaluations")
    for name in ("tables", "ngrams", "rest"):
        _check_optimizer(getattr(config.optimizer, name), f"optimizer.{name}", origin)
    _check_data(data, origin)


def _check_optimizer(optimizer: Optimizer, key: str, origin: Origin) -> None:
    if optimizer.lr <= 0:
        origin.fail(f"{key}.lr", optimizer.lr, "more than 0")
    if optimizer.betas is not None and max(optimizer.betas) >= 1:
        origin.fail(f"{key}.betas", list(optimizer.betas), "numbers below 1")
    if optimizer.momentum and optimizer.kind != "sgd":
        origin.fail(f"{key}.momentum", optimizer.momentum, "0: only sgd has it")
    if optimizer.betas is not None and optimizer.kind == "sgd":
        origin.fail(f"{key}.betas", list(optimizer.betas), "none: sgd has a momentum instead")
    if optimizer.weight_decay and optimizer.kind == "sparse_adam":
        origin.fail(f"{key}.weight_decay", optimizer.weight_decay, "0: sparse_adam touches only the rows that were read")


NEEDED = {"bytes": ("path",), "npz": ("path",), "csv": ("path",), "idx": ("images", "labels"), "digits": (), "stdlib": ()}
ALLOWED = {"idx": ("test_images", "test_labels"), "csv": ("label",)}


def _check_data(data: DataConfig, origin: Origin) -> None:
    for name in (*PATHS, "label"):
        value = getattr(data, name)
        if value is None and name in NEEDED[data.kind]:
            raise ArgumentError(f"{origin.file}: data.{name} is missing, expected a file: data.kind is {data.kind!r}")
        if value is not None and name not in (*NEEDED[data.kind], *ALLOWED.get(data.kind, ())):
            origin.fail(f"data.{name}", value, f"no value: data.kind is {data.kind!r}, which has no {name}")
    if (data.test_images is None) != (data.test_labels is None):
        raise ArgumentError(f"{origin.file}: data.test_images and data.test_labels belong together, but one is missing")
    if data.test_images is not None and data.test:
        origin.fail("data.test", data.test, "0 together with data.test_images")
    for name in ("valid", "test"):
        part = getattr(data, name)
        if part >= 1 and part != int(part):
            origin.fail(f"data.{name}", part, "a fraction below 1 or a whole number of samples or bytes")
    if data.kind in ("bytes", "stdlib") and (data.shuffle or data.shift or data.warp):
        key = next(name for name in ("shuffle", "shift", "warp") if getattr(data, name))
        origin.fail(f"data.{key}", getattr(data, key), "the default: text is ordered, and has no pixels")

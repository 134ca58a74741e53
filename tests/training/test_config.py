"""Config files: what is read is what was written, and every mistake is named with its file and its key."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from lutetia import toml
from lutetia.errors import ArgumentError, DataError
from lutetia.training import make_config, read_config
from lutetia.training.task import build_model
from small import classifier_tables, transformer_tables

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def test_values_and_defaults() -> None:
    config = make_config(classifier_tables(optimizer={"tables": {"betas": [0.8, 0.9], "lr": 1}}))
    assert config.optimizer.tables.betas == (0.8, 0.9)
    assert config.optimizer.tables.lr == 1.0
    assert isinstance(config.optimizer.tables.lr, float)
    assert config.optimizer.tables.weight_decay == 0
    assert config.optimizer.rest.weight_decay == 0.01
    assert config.schedule.kind == "cosine"
    assert config.train.clip is None
    assert config.data.valid == 0.2


def test_overrides_are_toml_or_words() -> None:
    overrides = [
        "train.steps=100",
        "schedule.kind=linear",
        'data.path="b.npz"',
        "model.seed = 3",
        "optimizer.tables.betas=[0, 0.5]",
    ]
    config = make_config(classifier_tables(), "a.toml", overrides)
    assert (config.train.steps, config.schedule.kind, config.model["seed"]) == (100, "linear", 3)
    assert config.data.path == os.path.abspath("b.npz")  # of the current folder, and not of that of the config
    assert config.optimizer.tables.betas == (0.0, 0.5)


@pytest.mark.parametrize("tables", [classifier_tables(), transformer_tables(train={"clip": 1, "minutes": 0.5})])
def test_what_a_run_writes_reads_back_as_the_same(tables: dict[str, Any]) -> None:
    config = make_config(tables)
    assert make_config(tomllib.loads(toml.dumps(config.to_dict()))) == config
    assert make_config(tomllib.loads(config.to_toml())) == config


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"train": {"step": 3}}, "a.toml: [train] has no key 'step': did you mean steps?"),
    ({"trian": {}}, "a.toml: there is no table [trian]: did you mean train?"),
    ({"optimizer": {"table": {}}}, "a.toml: [optimizer] has no key 'table': did you mean tables?"),
    ({"optimizer": {"rest": {"zzz": 1}}}, "a.toml: [optimizer.rest] has no key 'zzz': expected one of kind, lr, betas"),
    ({"train": {"steps": "many"}}, "a.toml: train.steps is 'many', expected an integer of at least 1"),
    ({"train": {"steps": True}}, "a.toml: train.steps is True, expected an integer of at least 1"),
    ({"train": {"steps": 0}}, "a.toml: train.steps is 0, expected an integer of at least 1"),
    ({"train": {"steps": 2.5}}, "a.toml: train.steps is 2.5, expected an integer"),
    ({"train": {"compile": 1}}, "a.toml: train.compile is 1, expected true or false"),
    ({"schedule": {"warmup": 1.5}}, "a.toml: schedule.warmup is 1.5, expected a number from 0 to 1"),
    ({"schedule": {"warmup": float("nan")}}, "a.toml: schedule.warmup is nan, expected a number from 0 to 1"),
    ({"schedule": 3}, "a.toml: schedule is 3, expected a table"),
    ({"optimizer": {"rest": {"kind": "adam"}}}, "a.toml: optimizer.rest.kind is 'adam', expected one of 'adamw', 'sgd'"),
    ({"optimizer": {"rest": {"betas": [0.9]}}}, "a.toml: optimizer.rest.betas is [0.9], expected a list of 2, each a number"),
    ({"optimizer": {"rest": {"betas": [0.9, 1]}}}, "optimizer.rest.betas is [0.9, 1.0], expected numbers below 1"),
    ({"optimizer": {"rest": {"lr": 0}}}, "optimizer.rest.lr is 0.0, expected more than 0"),
    ({"optimizer": {"rest": {"momentum": 0.9}}}, "optimizer.rest.momentum is 0.9, expected 0: only sgd has it"),
    ({"train": {"epochs": 3}}, "a.toml: train.steps and train.epochs are both set"),
    ({"train": {"accumulate": 3}}, "train.batch_size is 8, expected a multiple of train.accumulate, 3"),
    ({"train": {"patience": 2, "eval_every": 0}}, "train.patience is 2, expected train.eval_every and data.valid to be set, too"),
    ({"data": {"kind": "idx"}}, "a.toml: data.images is missing, expected a file: data.kind is 'idx'"),
    ({"data": {"labels": "x"}}, "data.labels is 'x', expected no value: data.kind is 'npz', which has no labels"),
    ({"data": {"valid": 2.5}}, "data.valid is 2.5, expected a fraction below 1 or a whole number"),
]


@pytest.mark.parametrize(("more", "message"), MISTAKES, ids=[message[:60] for _, message in MISTAKES])
def test_mistakes_are_named(more: dict[str, Any], message: str) -> None:
    tables = classifier_tables(**{key: value for key, value in more.items() if isinstance(value, dict)})
    tables.update({key: value for key, value in more.items() if not isinstance(value, dict)})
    if more.get("data", {}).get("kind") == "idx":
        del tables["data"]["path"]
    with pytest.raises(ArgumentError) as caught:
        make_config(tables, "a.toml")
    assert message in str(caught.value)


def test_what_is_missing_is_named() -> None:
    tables = classifier_tables()
    del tables["train"]["steps"]
    with pytest.raises(ArgumentError, match=r"a\.toml: \[train\] does not say when to stop, expected steps, epochs or minutes"):
        make_config(tables, "a.toml")
    del tables["data"]["kind"]
    with pytest.raises(ArgumentError, match=r"a\.toml: data\.kind is missing, expected one of 'bytes', 'stdlib'"):
        make_config(tables, "a.toml")
    del tables["data"]
    with pytest.raises(ArgumentError, match=r"a\.toml: data is missing, expected a table"):
        make_config(tables, "a.toml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps=none", "--set: train.steps is 'none', expected an integer"),
        ("train.stpes=3", "--set: [train] has no key 'stpes': did you mean steps?"),
        ("steps=3", "--set is given 'steps=3', expected table.key=value"),
        ("train.steps", "--set is given 'train.steps', expected table.key=value"),
        ("train.steps.x=1", "but steps is a value, not a table"),
        ("model.layers.7.read=hard", "expected a number below 1 instead of '7'"),
        ("model.layers.x.read=hard", "expected a number below 1 instead of 'x'"),
        ("model.layers.0=hard", "names a whole table of a list"),
    ],
)
def test_mistakes_of_overrides_are_the_command_line_s(override: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_config(classifier_tables(), "a.toml", [override])
    assert message in str(caught.value)


def test_an_override_reaches_into_a_list_of_tables() -> None:
    tables = classifier_tables()
    before = repr(tables)
    config = make_config(tables, "a.toml", ["model.layers.0.read=blend"])
    assert config.model["layers"][0]["read"] == "blend"
    assert repr(tables) == before


def test_files_that_are_no_configs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.toml does not exist, expected a config file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(DataError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "bad.toml").write_text("[train\nsteps = 1")
    with pytest.raises(DataError, match=r"bad\.toml is not TOML: .*line 1"):
        read_config(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"bad\.toml is not UTF-8 text"):
        read_config(tmp_path / "bad.toml")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_configs_of_models(path: Path) -> None:
    config = read_config(path)
    with torch.device(
        "meta" if config.model["kind"] == "transformer" else "cpu"
    ):  # to draw 210 million numbers takes two seconds
        model = build_model(config.model, str(path))
        twin = build_model({**config.model, "dense": True}, str(path))
    assert type(twin).__name__ == type(model).__name__.replace("LUT", "Dense")
    if path.stem == "mnist":
        assert model.n_parameters <= 1_000_000


def test_the_five_examples_are_there() -> None:
    assert {path.stem for path in EXAMPLES} >= {"digits", "mnist", "stdlib", "shakespeare", "enwik8"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "clasifier"}, "a.toml: model.kind is 'clasifier', expected one of "),
        ({"kind": "classifier", "dense": 1}, "a.toml: model.dense is 1, expected true or false"),
        (
            {"kind": "classifier", "n_clases": 3},
            "a.toml: [model]: a ClassifierConfig has no field 'n_clases': did you mean n_classes?",
        ),
        ({"kind": "transformer", "context": 0}, "a.toml: [model]: context is 0"),
        ({}, "a.toml: model.kind is None"),
        ({"kind": ["classifier"]}, "a.toml: model.kind is ['classifier']"),
        (
            {"kind": "lut"},
            "a.toml: model.kind is 'lut', expected one of 'classifier', 'dense_classifier', 'votes', 'gates', 'tabular', "
            "'targets', 'transformer', 'dense_transformer': "
            "this is a kind of layer, for [[model.layers]]",
        ),
    ],
)
def test_mistakes_in_the_model_are_named(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build_model(model, "a.toml")
    assert message in str(caught.value)

"""What a checkpoint says of its data: kept by save and load, and checked before it is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_saving import classifier, transformer

from lutetia import models
from lutetia.errors import ArgumentError, DataError
from lutetia.lut import use_backend
from lutetia.models import saving
from lutetia.models.metadata import METADATA, check_metadata

NAMES = [f"kind {number}" for number in range(10)]
GOOD: dict[str, Any] = {
    "task": "classification",
    "classes": NAMES,
    "features": ["a", "b", "c", "<b>", "e\x1b"],
    "input_low": [0.0, -1.0, 0.5, 2, 0.0],
    "input_high": [1.0, 1.0, 0.5, 3, 9.0],
}


def test_metadata_is_kept(tmp_path: Path) -> None:
    model = classifier()
    assert model.metadata == {}
    model.metadata = dict(GOOD)
    model.save_pretrained(tmp_path / "m")
    back = models.load(tmp_path / "m")
    assert back.metadata == GOOD
    back.save_pretrained(tmp_path / "again")
    assert type(back).from_pretrained(tmp_path / "again").metadata == GOOD


def test_a_model_without_metadata_has_none(tmp_path: Path) -> None:
    classifier().save_pretrained(tmp_path / "m")
    assert not (tmp_path / "m" / METADATA).exists()
    assert models.load(tmp_path / "m").metadata == {}


def test_one_model_does_not_get_the_names_of_another(tmp_path: Path) -> None:
    model = classifier()
    model.metadata = dict(GOOD)
    model.save_pretrained(tmp_path / "m")
    transformer().save_pretrained(tmp_path / "m")
    assert models.load(tmp_path / "m").metadata == {}
    assert METADATA in saving.verify(tmp_path / "m")


def test_one_number_may_stand_for_all_inputs() -> None:
    metadata = {"input_low": 0, "input_high": 1.0}
    assert check_metadata(metadata, classifier().config) == metadata


@pytest.mark.parametrize(
    "key", ["task", "classes", "features", "categories", "target", "weight", "missing", "resized", "input_low", "other"]
)
def test_null_is_nothing(key: str) -> None:
    """Commands ask whether a key is there."""
    assert check_metadata({"classes": NAMES, key: None}, classifier().config) == ({} if key == "classes" else {"classes": NAMES})


BAD = [
    ([], "metadata is [], expected a dict"),
    ({"query": " "}, "metadata.query is ' ', expected a name of 1 to 1000 characters"),
    ({"loss_name": 3}, "metadata.loss_name is 3, expected a name"),
    (
        {"task": "chess"},
        "metadata.task is 'chess', expected one of 'classification', 'regression', 'ranking', 'unusual', 'language'",
    ),
    ({"task": []}, "metadata.task is []"),
    ({"classes": "kind"}, "metadata.classes is 'kind', expected a list of strings"),
    ({"classes": [*NAMES[:-1], 9]}, "expected a list of strings"),
    ({"classes": NAMES[:-1]}, "metadata.classes holds 9 names, expected 10, by the config of the model"),
    ({"classes": [*NAMES[:-1], NAMES[0]]}, "metadata.classes is 'kind 0', expected a name for one class only"),
    ({"classes": [*NAMES[:-1], " "]}, "expected names of 1 to 1000 characters"),
    ({"features": ["a"]}, "metadata.features holds 1 names, expected 5"),
    ({"input_low": 0.0}, "metadata.input_high is None, expected a finite number"),
    ({"input_low": "0", "input_high": 1}, "metadata.input_low is '0', expected a finite number"),
    ({"input_low": [0.0] * 4, "input_high": 1}, "metadata.input_low holds 4 numbers, expected 5"),
    ({"input_low": [0.0] * 5, "input_high": [1, 1, -1, 1, 1]}, "metadata.input_low is 0.0 for input 2, expected at most"),
    ({"input_low": float("nan"), "input_high": 1}, "metadata.input_low is nan, expected a finite number"),
    ({"missing": "-"}, "metadata.missing is '-', expected a list of words"),
    ({"missing": ["-", 0]}, "expected a list of words"),
    ({"unknown": "ignore"}, "metadata.unknown is 'ignore', expected one of 'error', 'missing'"),
    ({"error_90": -1.0}, "metadata.error_90 is -1.0, expected a finite number of at least 0"),
    ({"error_90": "1"}, "metadata.error_90 is '1'"),
    ({"dates": []}, "metadata.dates is [], expected how dates are written by the number of an input"),
    ({"dates": {"5": {"order": "day first", "times": True}}}, "metadata.dates is '5', expected numbers of inputs below 5"),
    (
        {"dates": {"0": {"order": "day", "times": True}}},
        "metadata.dates['0'] is {'order': 'day', 'times': True}, expected an order",
    ),
    ({"dates": {"0": {"order": "day first"}}}, "and times, true or false"),
    ({"dates": {"0": {"order": "day first", "times": False}}, "categories": {"0": ["a"]}}, "other inputs than those of dates"),
    ({"decimals": [1]}, "metadata.decimals is [1], expected decimal places by the number of an input"),
    ({"decimals": {"5": 1}}, "metadata.decimals is '5', expected numbers of inputs below 5"),
    ({"decimals": {"0": 19}}, "metadata.decimals['0'] is 19, expected a whole number from 0 to 18"),
    ({"empty": {"0": 1}}, "metadata.empty is {'0': 1}, expected a list of the numbers of inputs below 5"),
    ({"empty": [5]}, "metadata.empty is [5], expected a list"),
    ({"empty": [True]}, "metadata.empty is [True], expected a list"),
    ({"spread_90": -1.0}, "metadata.spread_90 is -1.0, expected a finite number of at least 0"),
    ({"resized": 1}, "metadata.resized is 1, expected true or false"),
    ({"input_low": True, "input_high": 1}, "metadata.input_low is True, expected a finite number"),
]


@pytest.mark.parametrize(("metadata", "message"), BAD)
def test_bad_metadata_is_refused(metadata: Any, message: str, tmp_path: Path) -> None:
    model = classifier()
    model.metadata = metadata
    with pytest.raises(ArgumentError) as caught:
        model.save_pretrained(tmp_path / "m")
    assert message in str(caught.value)
    assert not (tmp_path / "m").exists()
    forge(tmp_path / "forged", json.dumps(metadata))
    with pytest.raises(DataError) as refused:
        models.load(tmp_path / "forged")
    assert str(tmp_path / "forged" / METADATA) in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100_000, '{"classes": ' + "[" * 100_000])
def test_a_file_that_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    forge(tmp_path / "m", text)
    with pytest.raises(DataError, match="is not JSON"):
        models.load(tmp_path / "m")


def test_a_language_model_has_no_classes() -> None:
    with pytest.raises(ArgumentError, match="expected none, as the model has no such names"):
        check_metadata({"classes": ["a"]}, transformer().config)
    with pytest.raises(ArgumentError, match="expected none"):
        check_metadata({"input_low": [0.0], "input_high": 1.0}, transformer().config)
    assert check_metadata({"task": "language"}, transformer().config) == {"task": "language"}


def test_what_cannot_be_json_is_refused(tmp_path: Path) -> None:
    model = classifier()
    model.metadata = {"more": {1, 2}}
    with pytest.raises(ArgumentError, match="metadata holds a value that JSON cannot"):
        model.save_pretrained(tmp_path / "m")


def test_load_returns_eval_mode(tmp_path: Path) -> None:
    model = classifier()
    assert model.training
    model.save_pretrained(tmp_path / "m")
    for back in (models.load(tmp_path / "m"), type(model).from_pretrained(tmp_path / "m")):
        assert not any(module.training for module in back.modules())
        with use_backend("reference"):
            assert torch.equal(back(torch.ones(1, 5)), model.eval()(torch.ones(1, 5)))


def forge(folder: Path, text: str) -> None:
    """A model's folder whose metadata file was written by somebody else, who knows how to compute checksums."""
    model = classifier()
    saving.save(model, folder, files={"other.json": text.encode()})
    (folder / "other.json").rename(folder / METADATA)
    manifest = json.loads((folder / saving.MANIFEST).read_text())
    manifest["files"][METADATA] = manifest["files"].pop("other.json")
    (folder / saving.MANIFEST).write_text(json.dumps(manifest))

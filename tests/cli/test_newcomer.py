"""What a newcomer types for data of their own, with nothing but defaults: train, predict, explain, build, page, a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_wine

from said import told

Capture = pytest.CaptureFixture[str]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def wine_csv(place: Path) -> tuple[Path, Path, list[str], list[str]]:
    wine = load_wine(as_frame=True)
    names = np.array(["Barolo", "Grignolino", "Barbera"])
    wine.data.assign(cultivar=names[wine.target]).to_csv(place / "wine.csv", index=False)
    return place / "wine.csv", place / "wine.csv", ["Barolo", "Grignolino"], ["proline", "hue"]


def digits_npz(place: Path) -> tuple[Path, Path, list[str], list[str]]:
    digits = load_digits()
    np.savez(place / "digits.npz", x=(digits.images * 15.9).astype(np.uint8), y=digits.target, target_names=np.array(WORDS))
    return place / "digits.npz", place / "digits.npz", ["zero"], []


def folder_of_pngs(place: Path) -> tuple[Path, Path, list[str], list[str]]:
    """600 digits, three times as wide and high as those of scikit-learn."""
    digits = load_digits()
    for number, (image, target) in enumerate(zip(digits.images[:600], digits.target, strict=False)):
        inside = place / "pngs" / WORDS[target]
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).resize((24, 24)).save(inside / f"{number}.png")
    return place / "pngs", place / "pngs" / "three" / "3.png", ["three"], []


FLOWS = (wine_csv, digits_npz, folder_of_pngs)
FEW = [f"--set=fit.{each}" for each in ("n_tables=6", "n_anchors=3", "candidates=8")]


def follow(make: Any, place: Path, capsys: Capture, settings: list[str], least: float) -> dict[str, Any]:
    """All commands; classes and columns have their names in each."""
    data, given, classes, columns = make(place)
    run = place / "run"
    trained = told(capsys, "train", data, "--out", run, *settings)
    assert trained["test"]["accuracy"] > least
    predicted = told(capsys, "predict", run, given)["predictions"]
    assert {each["class"] for each in predicted} >= set(classes if len(predicted) > 1 else classes[:0])
    explained = told(capsys, "explain", run, given, "--html", place / "why.html", "--png", place / "why.png")
    assert set(classes) <= set(explained["classes"])
    assert set(columns) <= set(explained.get("features") or columns)
    built = told(capsys, "build", run, "--out", place / "circuit")
    if built.get("kind") == "patterns":  # a core, whose pixels have no names
        assert built["read_back"]["equal"]
        assert built["read_back"]["images"] >= 35
    else:
        assert built["simulated"]["equal"]
        assert built["simulated"]["samples"] >= 35
        assert built["proof"]["whole"]
        assert set(columns) <= set(built["features"])
    assert set(classes) <= set(built["classes"])
    told(capsys, "page", run, "--out", place / "page.html")
    program = told(capsys, "build", run, "--target", "c", "--out", place / "program")
    assert program["accuracy"]["integer_accuracy"] == pytest.approx(trained["test"]["accuracy"], abs=0.05)
    for page in ("why.html", "page.html"):
        text = (place / page).read_text()
        assert all(name in text for name in (*classes[:1], *columns[:1])), page
    return built


# README and docs/start.md, whose blocks are run, have the other two.
@pytest.mark.parametrize("make", [*(pytest.param(each, marks=pytest.mark.slow) for each in FLOWS[:2]), FLOWS[2]])
def test_small_models_of_each_kind_of_data(make: Any, tmp_path: Path, capsys: Capture) -> None:
    follow(make, tmp_path, capsys, FEW, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "least"), list(zip(FLOWS, (0.9, 0.97, 0.9), strict=True)))
def test_defaults_of_each_kind_of_data(make: Any, least: float, tmp_path: Path, capsys: Capture) -> None:
    built = follow(make, tmp_path, capsys, [], least)
    assert built["accuracy"]["integer_accuracy"] > least - 0.01

"""Data of which some cannot be used: damaged images, rows without a target. A run stops there, or goes on and names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lutetia.cli import main
from lutetia.errors import DataError
from lutetia.training.images import ImageSettings, read_images
from said import told

Capture = pytest.CaptureFixture[str]
SKIP = ["--set", "data.skip_unusable=true"]
FEW = ["--set", "fit.n_tables=2"]


def error(capsys: Capture, *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 1
    return capsys.readouterr().err


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Forty photos of two sizes in two folders, the last two of them damaged: one is no image, one was cut off."""
    random = np.random.default_rng(0)
    for number in range(40):
        folder = tmp_path / "photos" / ("dark", "light")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        low = (0, 128)[number % 2]
        pixels = random.integers(low, low + 128, size=(8 + number % 3, 9, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    (tmp_path / "photos" / "dark" / "98.jpg").write_text("an error page, saved as a photo")
    whole = (tmp_path / "photos" / "light" / "01.png").read_bytes()
    (tmp_path / "photos" / "light" / "99.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path / "photos"


def test_a_damaged_image_stops_a_run_or_is_skipped(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    run, damaged = tmp_path / "run", [photos / "dark" / "98.jpg", photos / "light" / "99.png"]
    message = error(capsys, "train", photos, "--out", run, *FEW)
    assert f"{damaged[0]} is not an image that can be read, or is damaged" in message
    assert message.endswith("; remove it, or skip such images: --set data.skip_unusable=true\n")
    assert not run.exists()
    assert main(["train", str(photos), "--out", str(run), *FEW, *SKIP]) == 0
    screen = capsys.readouterr().out
    assert f"skipped 2 damaged images: {damaged[0]}, {damaged[1]} (data.skip_unusable in the config)\n" in screen
    assert "2 classes: 32 images to fit, 8 images to test\n" in screen
    summary = json.loads((run / "summary.json").read_text())
    assert summary["skipped"] == [str(each) for each in damaged]
    assert told(capsys, "evaluate", run)["samples"] == 8  # reads the folder again
    again = told(capsys, "train", run / "config.toml")["skipped"]
    assert [Path(each).resolve() for each in again] == [each.resolve() for each in damaged]
    for each in damaged:
        each.unlink()
    kept = told(capsys, "train", photos, "--out", tmp_path / "other", *FEW)
    assert kept["skipped"] == []
    assert kept["train"] == summary["train"]


def test_an_image_that_was_cut_off_is_named_although_its_size_is_known(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    (photos / "dark" / "98.jpg").unlink()
    message = error(capsys, "train", photos, "--out", tmp_path / "run", *FEW)
    assert f"{photos / 'light' / '99.png'} is not an image that can be read" in message
    assert "data.skip_unusable=true" in message


def test_an_image_of_another_size_is_not_damaged(tmp_path: Path) -> None:
    """It is an error, although damaged ones are skipped: the first image might be the one that is odd."""
    for number, size in enumerate([(4, 5), (5, 4)]):
        Image.new("L", size).save(tmp_path / f"{number}.png")
    images = [tmp_path / "0.png", tmp_path / "1.png"]
    with pytest.raises(DataError, match=r"4 × 5 pixels, expected 5 × 4 as .*0.png has; data.size = "):
        read_images(images, ImageSettings(), True)
    (tmp_path / "0.png").write_text("no image")
    x, skipped = read_images(images, ImageSettings(), True)
    assert (x.shape, skipped) == ((1, 4, 5), images[:1])
    (tmp_path / "1.png").write_text("no image")
    with pytest.raises(DataError, match="none of the 2 images can be read"):
        read_images(images, ImageSettings(), True)


def test_a_row_without_a_target_stops_a_run_or_is_skipped(tmp_path: Path, capsys: Capture) -> None:
    lines = [f"{n},{n % 7},{'NA' if n in (3, 8) else 'xy'[n % 2]}" for n in range(60)]
    path, clean, run = tmp_path / "a.csv", tmp_path / "clean.csv", tmp_path / "run"
    path.write_text("\n".join(["number,b,kind", *lines]))
    clean.write_text("\n".join(["number,b,kind", *(line for line in lines if not line.endswith("NA"))]))
    message = error(capsys, "train", path, "--out", run, *FEW)
    assert "column 'kind' has no value in line 5, expected one in each row; remove such rows, or skip them: --set" in message
    assert main(["train", str(path), "--out", str(run), *FEW, *SKIP]) == 0
    screen = capsys.readouterr().out
    assert "skipped 2 rows without a target: line 5, line 10 (data.skip_unusable in the config)\n" in screen
    assert "number  left out: it numbers the rows\n" in screen  # it does, the skipped ones with them
    summary = json.loads((run / "summary.json").read_text())
    assert summary["skipped"] == ["line 5", "line 10"]
    expected = told(capsys, "train", clean, "--out", tmp_path / "clean", *FEW, "--set", 'data.leave_out=["number"]')
    assert summary["train"] == expected["train"]
    assert told(capsys, "evaluate", run)["accuracy"] == expected["test"]["accuracy"]


def test_many_skipped_rows_are_counted(tmp_path: Path, capsys: Capture) -> None:
    x = np.arange(60.0).reshape(30, 2) % 7
    np.savez(tmp_path / "a.npz", x=x, y=np.where(np.arange(30) % 3 == 0, np.nan, x[:, 0] / 3))
    assert main(["train", str(tmp_path / "a.npz"), "--out", str(tmp_path / "run"), *FEW, *SKIP]) == 0
    told_so = "skipped 10 rows without a target: row 1, row 4, row 7, row 10, row 13 and 5 more "
    assert told_so in capsys.readouterr().out
    images = np.random.default_rng(0).random((30, 3, 3))
    np.savez(tmp_path / "b.npz", x=images, y=np.where(np.arange(30) < 4, np.nan, np.arange(30) % 2))
    assert told(capsys, "train", tmp_path / "b.npz", "--out", tmp_path / "b", *FEW, *SKIP)["rows"] == {"train": 21, "test": 5}
    (tmp_path / "c.csv").write_text("a,b\n1,\n2,\n")
    message = error(capsys, "train", tmp_path / "c.csv", "--target", "b", "--out", tmp_path / "c", *SKIP)
    assert "has no row with a target, expected at least two" in message


def test_predictions_go_on_past_damaged_images(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    run, damaged = tmp_path / "run", [photos / "dark" / "98.jpg", photos / "light" / "99.png"]
    assert main(["train", str(photos), "--out", str(run), *FEW, *SKIP]) == 0
    capsys.readouterr()
    table = tmp_path / "all.csv"
    assert main(["predict", str(run), str(photos), "--csv", str(table)]) == 1
    warnings = capsys.readouterr().err
    assert all(f"warning: {each} is not an image that can be read, or is damaged: " in warnings for each in damaged)
    assert "warning: 2 damaged images have no prediction, so the exit code is 1\n" in warnings
    assert len(table.read_text().splitlines()) == 41
    assert main(["predict", str(run), str(photos), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found["predictions"]) == 40
    assert [each["input"] for each in found["skipped"]] == [str(each) for each in damaged]
    assert all("is damaged" in each["why"] for each in found["skipped"])
    message = error(capsys, "predict", run, damaged[0])  # nothing else was asked for
    assert message.startswith(f"error: {damaged[0]} is not an image")
    assert main(["predict", str(run), str(damaged[1]), str(photos / "dark" / "00.png"), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 1
    for each in damaged:
        each.unlink()
    assert told(capsys, "predict", run, photos)["predictions"] == found["predictions"]


def test_an_image_of_another_size_stops_predictions(tmp_path: Path, capsys: Capture) -> None:
    """It is not damaged: the size that the model takes may not be the one that was meant."""
    for number in range(8):
        folder = tmp_path / "a" / "xy"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 30 * number).save(folder / f"{number}.png")
    assert main(["train", str(tmp_path / "a"), "--out", str(tmp_path / "run"), *FEW]) == 0
    Image.new("L", (5, 4)).save(tmp_path / "a" / "x" / "9.png")
    capsys.readouterr()
    assert "9.png has 4 × 5 pixels, expected 4 × 4" in error(capsys, "predict", tmp_path / "run", tmp_path / "a")


def test_hidden_files_are_no_images_and_empty_folders_are_named(tmp_path: Path, capsys: Capture) -> None:
    photos, run = tmp_path / "a", tmp_path / "run"
    for number in range(8):
        folder = photos / ("chat noir", "größer")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 30 * number).save(folder / f"bild {number} é.png")
        (folder / f"._bild {number} é.png").write_text("left by another system")
    for name in (".git", "empty"):
        (photos / name).mkdir()
    Image.new("L", (9, 9)).save(photos / ".git" / "0.png")
    assert main(["train", str(photos), "--out", str(run), *FEW]) == 0
    screen = capsys.readouterr().out
    assert "2 classes: 7 images to fit, 1 image to test\n" in screen
    assert "  empty  left out: a folder without images\n" in screen
    assert "leave_out = []\n" in (run / "config.toml").read_text()
    assert len(told(capsys, "predict", run, photos)["predictions"]) == 8
    assert len(told(capsys, "predict", run, photos / "größer")["predictions"]) == 4
    assert told(capsys, "train", run / "config.toml")["left_out"] == {"empty": "a folder without images"}
    assert f"; {photos} does: name that one\n" in error(capsys, "train", tmp_path)
    assert "; 4 images lie directly in it: each class needs a folder" in error(capsys, "train", photos / "größer")

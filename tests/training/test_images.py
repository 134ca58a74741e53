"""Images as photographers and cameras leave them: held upright or not, damaged, many in a folder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from lutetia.training.images import ORIENTATION, ImageSettings, guess_images, read_images, read_pixels


def save_turned(path: Path, pixels: np.ndarray, orientation: int) -> Path:
    """An image whose EXIF data say how the camera was held."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
def test_photos_are_turned_as_the_camera_was_held(suffix: str, orientation: int, tmp_path: Path) -> None:
    """As pillow's own function does it, before the size is checked and before the image is resized."""
    pixels = np.random.default_rng(0).integers(256, size=(5, 8, 3)).astype(np.uint8)
    path = save_turned(tmp_path / f"photo.{suffix}", pixels, orientation)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
        expected = np.asarray(upright.convert("RGB"))
    sizes: list[tuple[int, int]] = []
    read = read_pixels(path, "RGB", lambda width, height: sizes.append((width, height)))
    np.testing.assert_array_equal(read, expected)
    assert sizes == [expected.shape[1::-1]] == [(5, 8) if orientation > 4 else (8, 5)]
    resized = read_pixels(path, "RGB", lambda width, height: None, (4, 3))
    np.testing.assert_array_equal(resized, np.asarray(upright.convert("RGB").resize((3, 4), Image.Resampling.BILINEAR)))


def test_photos_of_one_camera_held_in_two_ways_have_two_sizes(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(6, 9)).astype(np.uint8)
    flat, upright = (save_turned(tmp_path / f"{turn}.png", pixels, turn) for turn in (1, 6))
    assert guess_images([flat, flat]) == ImageSettings()
    assert guess_images([flat, upright]).size is not None
    np.testing.assert_array_equal(read_images([upright], ImageSettings())[0][0], np.rot90(pixels, -1) / 255)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(orientation: int, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(5, 8)).astype(np.uint8)
    read = read_pixels(save_turned(tmp_path / "photo.png", pixels, orientation), "L", lambda width, height: None)
    np.testing.assert_array_equal(read, pixels)


@pytest.mark.filterwarnings("error")
def test_damaged_exif_data_do_not_spoil_a_photo(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(5, 8)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    np.testing.assert_array_equal(read_pixels(tmp_path / "photo.png", "L", lambda width, height: None), pixels)


def test_a_size_is_refused_before_pixels_are_decoded(tmp_path: Path) -> None:
    """Of a PNG without EXIF data in front, pillow would decode all pixels to look for them behind."""
    whole = io.BytesIO()
    Image.new("L", (50, 40)).save(whole, "png")
    (tmp_path / "cut.png").write_bytes(whole.getvalue()[:60])  # the header, and a piece of the pixels

    def refuse(width: int, height: int) -> None:
        raise AssertionError((width, height))

    with pytest.raises(Exception, match=r"\(50, 40\)"):
        read_pixels(tmp_path / "cut.png", "L", refuse)


def test_arrays_with_colours_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They train, predict and evaluate as the same images with colours first."""
    from lutetia.cli import main
    from lutetia.models import load

    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    first = random.integers(0, 255, (40, 3, 8, 9)).astype(np.uint8)
    first[y == 1, 0] //= 3
    np.savez(tmp_path / "first.npz", x=first, y=y)
    np.savez(tmp_path / "last.npz", x=np.moveaxis(first, 1, -1), y=y)
    found = {}
    for name in ("first", "last"):
        run = tmp_path / f"run {name}"
        assert main(["train", str(tmp_path / f"{name}.npz"), "--out", str(run), "--set", "fit.n_tables=3"]) == 0
        assert load(run).config.input_shape == (3, 8, 9)
        assert ("colour_last = true" in (run / "config.toml").read_text()) == (name == "last")
        capsys.readouterr()
        for data in ("first", "last"):
            path = str(tmp_path / f"{data}.npz")
            assert main(["predict", str(run), path, "--json"]) == 0
            predictions = json.loads(capsys.readouterr().out)["predictions"]
            assert main(["evaluate", str(run), path, "--json"]) == 0
            accuracy = json.loads(capsys.readouterr().out)["accuracy"]
            found[name, data] = [each["probabilities"] for each in predictions], accuracy
        assert main(["evaluate", str(run), "--json"]) == 0
        found[name, "own"] = json.loads(capsys.readouterr().out)["accuracy"]
    assert found["first", "first"] == found["first", "last"] == found["last", "first"] == found["last", "last"]
    assert found["first", "own"] == found["last", "own"]
    np.savez(tmp_path / "grey.npz", x=first[:, 0], y=y)
    assert main(["train", str(tmp_path / "grey.npz"), "--out", str(tmp_path / "grey"), "--set", "data.colour_last=true"]) == 1
    assert "grey.npz holds x [40, 8, 9], expected x [n, height, width, channels]" in capsys.readouterr().err

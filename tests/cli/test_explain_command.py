"""`lutetia explain` as a user meets it: every kind of input, every way to show, and everything that can go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lutetia
import warm
from lutetia.cli import main
from lutetia.models import LUTClassifier, LUTTransformer
from lutetia.report.attribution import attribute_class, attribute_token, lead
from tools import require_module

require_module("typer")
pillow: Any = require_module("PIL.Image")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}
PIXELS = (np.arange(24).reshape(4, 6) * 10).astype(np.uint8)

Capture = pytest.CaptureFixture[str]


def saved(folder: Path, **fields: Any) -> Path:
    fields = {"readout": "lut", "readout_detectors": 9, "readout_anchors": 3, "initial_noise": 1.0, "seed": 0, **fields}
    LUTClassifier(n_classes=3, **fields).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and inputs of every kind."""
    place = tmp_path_factory.mktemp("explain")
    saved(place / "images", input_shape=(4, 6))
    saved(place / "colour", input_shape=(3, 4, 6))
    saved(place / "features", input_shape=(5,))
    LUTTransformer(width=16, n_layers=1, n_heads=2, context=12, initial_noise=0.5, seed=0).save_pretrained(place / "text")
    pillow.fromarray(PIXELS).save(place / "image.png")
    (place / "image.pgm").write_bytes(b"P5\n6 4\n255\n" + PIXELS.tobytes())
    (place / "plain.pgm").write_text("P2\n6 4\n255\n" + " ".join(map(str, PIXELS.flatten())) + "\n")
    np.save(place / "image.npy", PIXELS.astype(np.float32) / 255)
    np.save(place / "bytes.npy", PIXELS)
    (place / "rows.csv").write_text("a,b,c,d,e,class\n1,2,3,4,5,x\n0.5,-1,0,2,1e1,y\n")
    (place / "bare.csv").write_text("1,2,3,4,5\n")
    (place / "words.txt").write_bytes("def f():\n  ré".encode())
    return place


def told(capsys: Capture, *arguments: object) -> dict[str, Any]:
    assert main(["explain", *map(str, arguments), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return dict(json.loads(said.out))


@pytest.mark.parametrize("name", ["image.png", "image.pgm", "plain.pgm", "image.npy", "bytes.npy"])
def test_an_image_of_any_kind_is_the_same_image(name: str, folder: Path, capsys: Capture) -> None:
    found = told(capsys, folder / "images", folder / name)
    model = LUTClassifier.from_pretrained(folder / "images").eval()
    x = torch.from_numpy(PIXELS).float() / 255
    scores = model(x[None])[0].detach()
    assert found["scores"] == pytest.approx(scores.tolist())
    assert found["prediction"] == found["target"] == int(scores.argmax())
    wanted = attribute_class(model, x, found["target"], "decisive").relevance
    assert torch.allclose(torch.tensor(found["relevance"]), wanted, atol=1e-5)
    assert found["explained"] == pytest.approx(float(lead(scores, int(scores.argmax()))), abs=1e-5)


def test_an_image_in_colour(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    pixels = np.stack([PIXELS, PIXELS[::-1], PIXELS.T.reshape(4, 6)], -1)
    pillow.fromarray(pixels).save(tmp_path / "colour.png")
    found = told(capsys, folder / "colour", tmp_path / "colour.png", "--rule", "gradient")
    model = LUTClassifier.from_pretrained(folder / "colour").eval()
    x = torch.from_numpy(np.moveaxis(pixels, -1, 0).copy())
    assert found["scores"] == pytest.approx(model(x[None])[0].tolist())
    assert np.shape(found["relevance"]) == (3, 4, 6)


@pytest.mark.parametrize(
    ("given", "row", "values"),
    [
        ("1,2,3,4,5", [], [1, 2, 3, 4, 5]),
        ("-0.5, 1e-3,0,2,1", [], [-0.5, 1e-3, 0, 2, 1]),
        ("rows.csv", [], [1, 2, 3, 4, 5]),
        ("rows.csv", ["--row", "1"], [0.5, -1, 0, 2, 10]),
        ("bare.csv", ["--row", "0"], [1, 2, 3, 4, 5]),
    ],
)
def test_a_row_of_numbers(given: str, row: list[str], values: list[float], folder: Path, capsys: Capture) -> None:
    given = str(folder / given) if given.endswith(".csv") else given
    assert main(["explain", "--json", *row, str(folder / "features"), "--", given]) == 0
    found = json.loads(capsys.readouterr().out)
    model = LUTClassifier.from_pretrained(folder / "features").eval()
    assert found["scores"] == pytest.approx(model(torch.tensor([values], dtype=torch.float32))[0].tolist())
    assert len(found["relevance"]) == 5


@pytest.mark.parametrize("given", ["def f(", "file"])
def test_text_or_a_file_of_it(given: str, folder: Path, capsys: Capture) -> None:
    data = b"def f(" if given != "file" else (folder / "words.txt").read_bytes()[-12:]  # the end, as long as the context
    found = told(capsys, folder / "text", folder / "words.txt" if given == "file" else given, "--target", "(")
    model = LUTTransformer.from_pretrained(folder / "text").eval()
    tokens = torch.tensor(list(data))
    assert found["tokens"] == tokens.tolist()
    assert found["target"] == ord("(")
    assert found["prediction"] == int(model(tokens[None])[0, -1].argmax())
    wanted = attribute_token(model, tokens, ord("("), "decisive").relevance
    assert found["relevance"] == pytest.approx(wanted.tolist(), abs=1e-6)


def test_rules_and_targets(folder: Path, capsys: Capture) -> None:
    arguments = (folder / "images", folder / "image.png")
    found = [told(capsys, *arguments, "--rule", rule)["relevance"] for rule in ("epsilon", "gradient", "occlusion")]
    assert found[0] != found[1] != found[2]
    assert told(capsys, *arguments, "--target", "2")["target"] == 2
    assert told(capsys, folder / "text", "def", "--target", "10")["target"] == 10
    assert told(capsys, folder / "text", "def", "--target", "7")["target"] == ord("7")


def test_the_terminal_shows_a_heat_map(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert main(["explain", str(folder / "images"), str(folder / "image.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    # Without colours the image stands beside its heat map: of this one what is brighter than its corners.
    assert [line[:12] for line in lines[:4]] == [" ." * 6, " ." * 6, " ." + "##" * 5, "##" * 6]
    heat = "".join(line[15:] for line in lines[:4])
    assert [len(line) for line in lines[:4]] == [27] * 4
    assert "##" in heat or "==" in heat
    assert lines[4].startswith("predicted class ")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["explain", str(folder / "images"), str(folder / "image.png")]) == 0
    shown = capsys.readouterr().out
    assert shown.count("48;2;") == 24
    # The outline: an edge to the right of the first pixel of the third line, and a line below the ones above the others.
    assert shown.count("▕") == 1 + 2
    assert shown.count("\x1b[4;") == 5 + 1 + 6
    assert main(["explain", str(folder / "text"), "a\x1b[31mb"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[31m" not in shown  # the text steers no terminal
    assert "\\x1b" in shown


def test_the_terminal_shows_features_and_tokens_by_weight(folder: Path, capsys: Capture) -> None:
    assert main(["explain", str(folder / "features"), "1,2,3,4,5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    sizes = [abs(float(line.split()[3])) for line in lines[:5]]
    assert sizes == sorted(sizes, reverse=True)
    assert {line.split("  ")[0] for line in lines[:5]} == {f"x{at} = {at + 1}" for at in range(5)}
    assert main(["explain", str(folder / "text"), "ab\n"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[1] for line in lines[:3]) == ["'\\n'", "'a'", "'b'"]
    assert lines[3].startswith("next comes ")


def test_pages_and_pictures_are_written(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    for name, given in [("images", folder / "image.png"), ("features", "1,2,3,4,5"), ("text", "a $b_{c}$ <img>")]:
        page, picture = tmp_path / f"{name}.html", tmp_path / f"{name}.png"
        assert main(["explain", str(folder / name), str(given), "--html", str(page), "--png", str(picture)]) == 0
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
        with pillow.open(picture) as image:
            image.load()
            assert image.size[0] > 400
    assert "<img>" not in (tmp_path / "text.html").read_text(encoding="utf-8")
    assert len(os.listdir(tmp_path)) == 6
    capsys.readouterr()


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the names of its classes and features, and their ranges."""
    place = tmp_path_factory.mktemp("named")
    model = LUTClassifier(input_shape=(2,), n_classes=3, readout="lut", initial_noise=1.0, seed=0)
    model.metadata = {
        "task": "classification",
        "classes": ["benign", "malignant", "\x1b[31mother"],
        "features": ["radius", "area <b>"],
        "input_low": [0.0, 100.0],
        "input_high": [1.0, 200.0],
    }
    model.save_pretrained(place / "model")
    return place / "model"


def test_names_probability_and_runner_up(named: Path, tmp_path: Path, capsys: Capture) -> None:
    found = told(capsys, named, "0.5,150", "--target", "malignant")
    model = LUTClassifier.from_pretrained(named)
    chances = model(torch.tensor([[0.5, 150.0]]))[0].detach().softmax(0)
    order = chances.argsort(descending=True).tolist()
    names = ["benign", "malignant", "\\x1b[31mother"]
    assert (found["target"], found["target_name"]) == (1, "malignant")
    assert [found["prediction"], found["runner_up"]] == order[:2]
    assert [found["prediction_name"], found["runner_up_name"]] == [names[at] for at in order[:2]]
    assert [found["probability"], found["runner_up_probability"]] == pytest.approx(chances[order[:2]].tolist(), abs=1e-6)
    assert (found["classes"], found["features"], found["warnings"]) == (names, ["radius", "area <b>"], [])
    page = tmp_path / "why.html"
    assert main(["explain", str(named), "0.5,150", "--html", str(page)]) == 0
    said = capsys.readouterr()
    assert {line.split("  ")[0] for line in said.out.splitlines()[:2]} == {"radius = 0.5", "area <b> = 150"}
    assert said.out.splitlines()[2].startswith(f"predicted {names[order[0]]} ({chances[order[0]]:.1%}, then {names[order[1]]}")
    assert "\x1b" not in said.out
    assert said.err == f"next: lutetia flow {named} 0.5,150\n"
    assert f"Read as {names[order[0]]}" in page.read_text(encoding="utf-8")


def test_inputs_unlike_the_training_data_are_told(named: Path, capsys: Capture) -> None:
    sentence = "the input lies far outside the training data: area <b> is 0.5 in the input, trained on 100 to 200"
    found = told(capsys, named, "0.5,-0.5")
    assert found["warnings"] == [sentence.replace("is 0.5", "is -0.5")]
    assert main(["explain", str(named), "0.5,301"]) == 0
    assert capsys.readouterr().err.startswith("warning: the input lies far outside the training data: area <b> is 301")
    assert told(capsys, named, "0.5,299")["warnings"] == []


def test_a_class_that_is_not_there(named: Path, capsys: Capture) -> None:
    message = fails(capsys, 2, named, "0.5,150", "--target", "malign")
    assert message == "--target is 'malign', expected a class from 0 to 2, or its name: did you mean malignant?"


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def fails(capsys: Capture, code: int, *arguments: object) -> str:
    """The sentence that is said; the same one as JSON."""
    given = ["explain", *map(str, arguments)]
    assert main(given) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert main([*given, "--json"]) == code
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert said.err == f"error: {message}\n"
    return str(message)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "missing argument 'CKPT'"),
        (["{}/images"], 2, "missing argument 'INPUT'"),
        (["{}/none", "x"], 1, "does not exist, expected the folder of a saved model"),
        (["{}/image.png", "x"], 1, "is a file, expected the folder of a saved model"),
        (["{}", "x"], 1, "is not the folder of a saved model"),
        (["{}/images", "{}/none.png"], 1, "none.png does not exist, expected an image"),
        (["{}/images", "{}"], 1, "is a folder, expected an image"),
        (["{}/images", "{}/words.txt"], 1, "ends in .txt, expected an image"),
        (["{}/images", "1,2,3"], 1, "INPUT has 3 numbers, expected 24: the model takes 4 × 6"),
        (["{}/images", "{}/image.png", "--row", "1"], 1, "has no rows: only .csv files"),
        (["{}/colour", "{}/bare.csv"], 1, "has 5 numbers in a row, expected 72"),
        (["{}/features", "{}/rows.csv", "--row", "2"], 1, "--row is 2, expected 0 to 1"),
        (["{}/features", "{}/image.npy"], 1, "has 24 numbers, expected 5"),
        (["{}/text", "{}"], 1, "is a folder, expected a file of text"),
        (["{}/text", ""], 1, "INPUT is empty, expected text"),
        (["{}/text", "x", "--row", "1"], 2, "--row works only for classifiers"),
        (["{}/text", "x", "--target", "ab"], 2, "--target is 'ab', expected one character"),
        (["{}/text", "x", "--target", "256"], 2, "--target is '256', expected one character"),
        (["{}/text", "x", "--target", "9" * 5000], 2, "expected one character"),
        (["{}/images", "{}/image.png", "--target", "9" * 5000], 2, "expected a class from 0 to 2"),
        (["{}/images", "{}/image.png", "--target", "3"], 2, "--target is '3', expected a class from 0 to 2"),
        (["{}/images", "{}/image.png", "--rule", "epsilom"], 2, "there is no rule 'epsilom': did you mean epsilon?"),
        (["{}/images", "{}/image.png", "--html", "{}"], 1, "a folder, expected a name for a file"),
        (["{}/images", "{}/image.png", "--png", "{}/none/x.png"], 1, "and there is no folder"),
        (["{}/images", "{}/image.png", "--png", "{}/why.html"], 2, "expected a name that ends in .png"),
        (["{}/images", "{}/image.png", "--html", "{}/why.png"], 2, "expected a name that ends in .html or .htm"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], code: int, sentence: str, folder: Path, capsys: Capture) -> None:
    if arguments[1:] == [""]:
        sentence = "INPUT is empty" if not Path("").exists() else sentence
    before = sorted(os.listdir(folder))
    assert sentence in fails(capsys, code, *(each.format(folder) for each in arguments))
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize(
    "name", ["cut.png", "cut.npy", "cut.pgm", "noise.png", "noise.npy", "noise.csv", "pickled.npy", "nan.npy"]
)
def test_damaged_inputs(name: str, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    path, suffix = tmp_path / name, Path(name).suffix
    if name.startswith("cut"):
        path.write_bytes((folder / f"image{suffix}").read_bytes()[:-30])
    elif name == "pickled.npy":
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif name == "nan.npy":
        np.save(path, np.full((4, 6), np.nan, np.float32))
    else:
        path.write_bytes(bytes(range(256)))
    assert str(path) in fails(capsys, 1, folder / "images", path)


def test_an_image_of_another_size(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    pillow.fromarray(PIXELS.T).save(tmp_path / "turned.png")
    assert "has 6 × 4 pixels, expected 4 × 6 (height × width)" in fails(capsys, 1, folder / "images", tmp_path / "turned.png")


def test_a_truncated_checkpoint(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    model = saved(tmp_path / "model", input_shape=(4, 6))
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    assert "it is damaged" in fails(capsys, 1, model, folder / "image.png")
    file.unlink()
    assert "is missing: the model is not complete" in fails(capsys, 1, model, folder / "image.png")


def test_a_disk_that_takes_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    files = {"--html": tmp_path / "why.html", "--png": tmp_path / "why.png"}
    for old in files.values():
        old.write_text("the old one")

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    for option, old in files.items():
        sentence = fails(capsys, 1, folder / "images", folder / "image.png", option, old)
        assert sentence == f"{old} cannot be written: Read-only file system"
        assert old.read_text() == "the old one"
    assert sorted(os.listdir(tmp_path)) == ["why.html", "why.png"]


def test_ctrl_c_while_writing_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys, time, lutetia.cli\n"
        "def wait(*_):\n    print('ready', flush=True); time.sleep(60)\n"
        "os.fsync = wait\n"
        "sys.exit(lutetia.cli.main(sys.argv[1:]))"
    )
    words = ["explain", str(folder / "images"), str(folder / "image.png"), "--html", str(tmp_path / "why.html")]
    process = warm.Process(["-c", code, *words], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "error: interrupted\n")
    assert os.listdir(tmp_path) == []

"""`lutetia predict`: every kind of input, and every way out."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from setting import FLOWERS, SPECIES

import lutetia
import warm
from lutetia import models
from lutetia.cli import main

Capture = pytest.CaptureFixture[str]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}


def told(capsys: Capture, *arguments: object) -> dict[str, Any]:
    assert main(["predict", *map(str, arguments), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return dict(json.loads(said.out))


def chances(model: Any, x: Any) -> list[list[float]]:
    return model(torch.as_tensor(np.asarray(x, np.float32))).detach().double().softmax(1).tolist()


def rows_of(path: Path) -> list[list[float]]:
    with open(path, newline="") as file:
        return [[float(cell) for cell in row[:4]] for row in list(csv.reader(file))[1:]]


def test_rows_and_files_come_out_in_order(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    rows = rows_of(trained / "flowers.csv")
    np.save(tmp_path / "two.npy", np.array(rows[:2]))
    np.savez(tmp_path / "one.npz", X=np.array(rows[2]))
    given = ["5.1,3.5,1.4,0.2", trained / "flowers.csv", tmp_path / "two.npy", tmp_path / "one.npz"]
    result = told(capsys, trained / "runs/iris", *given)
    model = models.load(trained / "runs/iris")
    wanted = chances(model, [[5.1, 3.5, 1.4, 0.2], *rows, *rows[:3]])
    found = result["predictions"]
    assert np.allclose([each["probabilities"] for each in found], wanted, atol=1e-6)
    assert result["classes"] == SPECIES
    assert [each["class"] for each in found] == [SPECIES[int(np.argmax(each))] for each in wanted]
    assert [each["number"] for each in found] == [int(np.argmax(each)) for each in wanted]
    assert [found[at]["input"] for at in (0, 1, 51, 53)] == [
        "5.1,3.5,1.4,0.2",
        f"{trained / 'flowers.csv'} row 0",
        f"{tmp_path / 'two.npy'} row 0",
        str(tmp_path / "one.npz"),
    ]
    assert result["warnings"] == []


def test_columns_are_found_by_their_names(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mixed.csv").write_text("id;" + ";".join(["species", *FLOWERS[::-1]]) + "\n7;setosa;4;3;2;1\n")
    result = told(capsys, trained / "runs/iris", tmp_path / "mixed.csv")
    wanted = chances(models.load(trained / "runs/iris"), [[1, 2, 3, 4]])
    assert np.allclose(result["predictions"][0]["probabilities"], wanted[0], atol=1e-6)
    (tmp_path / "mixed.csv").write_text("id," + ",".join(FLOWERS[1:]) + "\n7,3,2,1\n")
    assert main(["predict", str(trained / "runs/iris"), str(tmp_path / "mixed.csv")]) == 1
    assert "has no column 'sepal length', which the model was trained on" in capsys.readouterr().err


def test_images_and_folders_of_them(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    from PIL import Image

    pixels = np.load(trained / "digits.npz")["x"][:3]
    for number, each in enumerate(pixels):
        Image.fromarray(each).save(tmp_path / f"{number}.png")
    result = told(capsys, trained / "runs/digits", tmp_path, trained / "digit.png")
    wanted = chances(models.load(trained / "runs/digits"), np.concatenate([pixels, pixels[:1]]) / 255)
    assert np.allclose([each["probabilities"] for each in result["predictions"]], wanted, atol=1e-6)
    assert result["predictions"][2]["input"] == str(tmp_path / "2.png")
    assert result["classes"] == [str(number) for number in range(10)]


def test_the_next_byte_of_a_text(trained: Path, capsys: Capture) -> None:
    result = told(capsys, trained / "runs/stdlib", "def f(", trained / "text.txt")
    model = models.load(trained / "runs/stdlib")
    wanted = model(torch.tensor([list(b"def f(")]))[0, -1].detach().double().softmax(0)
    first, second = result["predictions"]
    assert np.allclose(first["probabilities"], wanted, atol=1e-6)
    assert first["number"] == int(wanted.argmax())
    assert len(result["classes"]) == len(second["probabilities"]) == 256
    assert (result["classes"][40], result["classes"][10], result["classes"][200]) == ("(", "'\\n'", "\\xc8")


def test_csv_to_a_file_and_to_stdout(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["predict", str(trained / "runs/iris"), "5.1,3.5,1.4,0.2", str(trained / "flowers.csv"), "--csv"]
    assert main([*arguments, str(tmp_path / "out.csv")]) == 0
    capsys.readouterr()
    assert main([*arguments, "-"]) == 0
    said = capsys.readouterr()
    written = (tmp_path / "out.csv").read_text()
    assert said.out == written  # and nothing else
    table = list(csv.reader(io.StringIO(written)))
    assert table[0] == ["input", "class", "probability", *SPECIES]
    assert len(table) == 52
    assert table[1][0] == "5.1,3.5,1.4,0.2"
    assert float(table[1][2]) == max(map(float, table[1][3:]))
    assert sum(map(float, table[1][3:])) == pytest.approx(1)
    assert [each.name for each in tmp_path.iterdir()] == ["out.csv"]


def test_the_screen_shows_names_probabilities_and_what_comes_next(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["predict", str(trained / "runs/iris"), str(trained / "flowers.csv")]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert len(lines) == 41
    assert lines[0].startswith(f"{trained / 'flowers.csv'} row 0")
    assert lines[0].count("%") == 2
    assert lines[-1] == "and 10 more: --csv FILE writes all of them"
    assert said.err == f"next: lutetia explain {trained / 'runs/iris'} {trained / 'flowers.csv'}\n"
    out = tmp_path / "all.csv"
    assert main(["predict", str(trained / "runs/iris"), str(trained / "flowers.csv"), "--csv", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"and 10 more, all in {out}"
    assert main(["predict", str(trained / "runs/iris"), "5.1,3.5,1.4,200"]) == 0
    assert "warning: the input lies far outside the training data: petal width is 200" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["runs/iris"], 2, "missing argument 'INPUT...'"),
        (["runs/iris", "1,2,3"], 1, "INPUT has 3 numbers, expected 4"),
        (["runs/iris", "1,2,3,1e39"], 1, "INPUT holds values that are not finite in 32 bits"),
        (["runs/iris", "none.csv"], 1, "none.csv does not exist"),
        (["runs/iris", "examples"], 1, "is a folder without images"),
        (["runs/iris", "1,2,3,4", "--csv", "out.html"], 2, "--csv is 'out.html', expected a name that ends in .csv"),
        (["runs/none", "1,2,3,4"], 1, "does not exist, expected the folder of a saved model"),
        (["runs/stdlib", "examples"], 1, "is a folder, expected a file of text"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], code: int, sentence: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(trained)
    before = sorted(each.name for each in trained.iterdir())
    assert main(["predict", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert sorted(each.name for each in trained.iterdir()) == before


LIGHT = ("predict runs/iris 1,2,3,4", "explain runs/iris 1,2,3,4", "generate runs/stdlib --max-new 2", "evaluate runs/iris")


def test_commands_load_no_more_than_they_need(trained: Path) -> None:
    """What each of these brings takes as long to import as torch itself, or nearly; one process runs all the commands."""
    code = (
        "import sys\nfrom lutetia.cli import main\n"
        "heavy = ['torch._dynamo', 'torch._inductor', 'torch.distributed.tensor', 'sympy', 'triton', 'matplotlib', 'sklearn']\n"
        "for words in sys.argv[1:]:\n"
        "    assert main(words.split()) == 0\n"
        "    unwanted = heavy + ['numba', 'llvmlite', 'scipy', 'lutetia.training.config', 'lutetia.report.pages'] * "
        "('evaluate' not in words)\n"  # small jobs compile nothing, and read no config
        "    unwanted += ['lutetia.relevance'] * words.startswith('predict')\n"
        "    print('loaded:', [name for name in unwanted if name in sys.modules], file=sys.stderr)"
    )
    done = warm.run(["-c", code, *LIGHT], warm.Plain, cwd=trained, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("loaded:")] == ["loaded: []"] * len(LIGHT)

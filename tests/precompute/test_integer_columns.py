"""A model of columns as C that takes values in their own units: `columns.c` and `rows.c` against the whole-number model."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from category_trees import by_hand, category_trees, every_row
from interval_trees import interval_trees

from lutetia.models import load
from lutetia.precompute import c_files, integer_model
from lutetia.precompute.integer.c_columns import encoding_bytes
from lutetia.sklearn import GateClassifier, LUTClassifier
from lutetia.training.date_columns import EXAMPLES
from lutetia.training.table_run import guess_config, make_table_config, open_table, train_table
from precompute.strict_c import STRICT
from tools import require_tool

FLAGS = [*STRICT, "-DLUTETIA_NO_MAIN"]


FIRST = datetime(1, 1, 2)  # as files have them


def compiled(model: Any, folder: Path) -> Callable[[str | bytes], subprocess.CompletedProcess[str]]:
    compiler = require_tool("gcc", "cc")
    for name, text in c_files(model).items():
        (folder / name).write_text(text, encoding="utf-8")
    names = ("model.c", "columns.c", "rows.c")
    subprocess.run([compiler, *FLAGS, *names, "-o", "run"], cwd=folder, check=True, capture_output=True)

    def run(text: str | bytes) -> subprocess.CompletedProcess[str]:
        data = text.encode() if isinstance(text, str) else text
        done = subprocess.run([folder / "run"], input=data, capture_output=True, timeout=60)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def ugly(path: Path, n: int, target: str) -> Path:
    """Umlauts, quotes, trigraphs, units, categories, missing cells, huge and tiny numbers, a BOM, Windows line ends."""
    random = np.random.default_rng(0)
    lines = ['Größe (mm),"a ""b"", ??/",Farbe,riesig,Gewicht,ziel']
    for row in range(n):
        size, other, colour = random.normal(10, 2), random.integers(0, 9), random.choice(["rot", "grün", "*/ blau, hell"])
        score = size + 2 * (colour == "rot") + other / 3 - 12
        answer = ("gut" if score > 1 else "mäßig" if score > -1 else "schlecht") if target == "class" else f"{score:.3f}"
        cell = "" if row % 11 == 0 else f"{size:.3f}"
        lines.append(f'{cell},{other},"{colour}",{random.normal() * 1e30:.6g},{random.normal(5, 1) * 1e-9:.4g} kg,{answer}')
    path.write_bytes(b"\xef\xbb\xbf" + ("\r\n".join(lines) + "\r\n").encode())
    return path


@pytest.mark.parametrize("target", ["class", "number"])
def test_c_answers_rows_as_the_model_does(target: str, tmp_path: Path) -> None:
    data = ugly(tmp_path / "data.csv", 150, target)
    config = guess_config(data, None, None)[0].to_dict()
    config["fit"] |= {"n_tables": 12, "n_anchors": 4}
    config["fit"].pop("patience", None)
    wanted = make_table_config(config, "config")
    train_table(wanted, Path(), tmp_path / "fitted")
    model = integer_model(load(tmp_path / "fitted"))
    run = compiled(model, tmp_path)
    table = open_table(wanted, Path())[0]
    assert table.units == {4: "kg"}
    answers = model(model.quantise(torch.from_numpy(table.x)))
    done = run(data.read_bytes())
    assert done.stderr == ""
    if target == "class":
        assert done.stdout.splitlines() == [table.classes[answer] for answer in answers.tolist()]
    else:
        unit = model.graph.output_edge.scale[0]
        names, *rows = done.stdout.splitlines()
        assert names == "ziel,ziel low,ziel high"
        numbers = np.array([[*map(float, row.split(","))] for row in rows])
        np.testing.assert_allclose(numbers[:, 0], answers.numpy() * unit, rtol=1e-8)
        np.testing.assert_allclose(numbers[:, 2] - numbers[:, 1], 2 * model.model.metadata["error_90"], atol=unit)
    categories = "one of the categories */ blau, hell, grün, rot"
    for line, message in (
        ("1,2", "line 2: the row has another number of cells than the first line"),
        ("x,2,rot,1,5 kg,gut", "line 2, column Größe (mm): x, expected a number"),
        ('"\n\t\n",2,rot,1,5 g\t' + "x" * 60 + ",gut", f"line 4, column Gewicht: 5 g?{'x' * 36}..., expected a number in kg"),
        ("1,2,gelb,1,5 kg,gut", f"line 2, column Farbe: gelb, expected {categories}"),
        ("1,2,rot\0,1,5 kg,gut", "line 2: a byte 0, expected text in UTF-8"),
        ("1,1_0,rot,1,5 kg,gut", 'line 2, column a "b", ??/: 1_0, expected a number'),
        ("1,2,rot,1,5 g,gut", "line 2, column Gewicht: 5 g, expected a number in kg"),
    ):
        done = run(data.read_text("utf-8-sig").split("\n")[0] + "\n" + line + "\n")
        assert (done.returncode, done.stderr.strip()) == (1, message)
    assert run("a,b\n1,2\n").stderr.strip() == "line 1: the first line has no column Größe (mm)"
    # Spaces of any kind around a cell, or before a unit, are those that Python strips.
    head, spaces = data.read_text("utf-8-sig").split("\n")[0], "\u00a0\u2003\u3000\x85\x1f"
    plain = run(f"{head}\n9,2,rot,1,5 kg,gut\n,2,,1,5 kg,gut\n")
    spaced = run(
        f"{head}\n{spaces}9,2{spaces},\u1680rot{spaces},1,5\u00a0kg,gut\n\u202f,2,{spaces},1,5\u2009kg,gut\n{spaces},,,,,\n"
    )
    assert (spaced.stderr, spaced.stdout) == ("", plain.stdout)


@pytest.mark.parametrize("estimator", [LUTClassifier(n_tables=8, random_state=0), GateClassifier(n_tables=40, random_state=0)])
def test_values_at_edges_and_unknown_ones(estimator: Any, tmp_path: Path) -> None:
    """Values equal to edges, infinite ones and missing ones have the codes of the encoding, for estimators, too."""
    random = np.random.default_rng(1)
    x = random.normal(size=(200, 3)).round(1)
    estimator.fit(x, (x[:, 0] > x[:, 1]).astype(int) + (x[:, 2] > 0))
    model = integer_model(estimator.model_)
    edges = estimator.model_.encoding.edges.numpy()
    edges = edges[np.isfinite(edges)]
    values = np.concatenate([x, random.choice(edges, (300, 3)), random.choice([np.nan, 1e300, -1e300], (30, 3))])
    text = pandas.DataFrame(values, columns=["x0", "x1", "x2"]).to_csv(index=False, float_format="%.17g")
    answers = model(model.quantise(torch.from_numpy(values)))
    assert compiled(model, tmp_path)(text).stdout.split() == [str(answer) for answer in answers.tolist()]
    assert 0 < encoding_bytes(model) < 10_000


def test_c_reads_files_with_semicolons_and_columns_without_a_name(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    x = random.normal(size=(120, 2)).round(3)
    rows = [f"{a};{b};{'ja' if a > b else 'nein'}".replace(".", ",") for a, b in x]
    (tmp_path / "d.csv").write_text('\n"a ""b""\n(1, 2, 3)";;gut\n' + "\n".join(rows) + "\n")
    config = make_table_config({**guess_config(tmp_path / "d.csv", None, None)[0].to_dict(), "fit": {"n_tables": 9}}, "x")
    train_table(config, Path(), tmp_path / "fitted")
    model = integer_model(load(tmp_path / "fitted"))
    table = open_table(config, Path())[0]
    assert table.features == ['a "b"\n(1, 2, 3)', "column 1"]
    run = compiled(model, tmp_path)
    with (tmp_path / "d.csv").open("rb") as file:
        done = subprocess.run([tmp_path / "run"], stdin=file, capture_output=True, text=True, timeout=60)
    answers = model(model.quantise(torch.from_numpy(table.x))).tolist()
    assert done.stdout.split() == [table.classes[answer] for answer in answers]
    piped = run((tmp_path / "d.csv").read_bytes())
    assert (piped.returncode, piped.stdout) == (1, "")
    assert "a file with semicolons, tabs or | is read twice, so it cannot come through a pipe" in piped.stderr


def test_other_models_have_no_columns() -> None:
    from lutetia.models import LUTClassifier as Network

    assert set(c_files(integer_model(Network(input_shape=(4, 4), readout="lut", seed=0)))) == {"model.c", "model.h"}


@pytest.mark.parametrize("order", ["year first", "day first", "month first"])
def test_c_reads_dates_as_python_does(order: str, tmp_path: Path) -> None:
    """Dates of all centuries, with zones and fractions, of two columns; what is no date stops the program."""
    random = np.random.default_rng(0)
    ways = {"year first": "%Y-%m-%d %H:%M:%S", "day first": "%d/%m/%Y %H:%M", "month first": "%m/%d/%Y"}
    moments = [FIRST + timedelta(seconds=int(each)) for each in random.integers(0, 315_000_000_000, 300)]
    ends = [(year, *end) for year in (1900, 1970, 2000, 2023, 2024) for end in ((2, 28), (3, 1), (12, 31))]
    moments += [datetime(*end) for end in ends]
    rows = [each.strftime(ways[order].replace("%Y", f"{each.year:04}")) for each in moments]
    zones = ["", "Z", "+05:30", "-0945", " UTC", "+01"]
    others = [each.isoformat()[:16] + f":05.25{zones[at % 6]}" for at, each in enumerate(moments)]
    answers = [each.month + 20 * (each.weekday() > 4) + each.year / 1000 + each.day / 31 + each.hour / 24 for each in moments]
    others[::9] = [""] * len(others[::9])
    lines = [f"{row},{other},{answer}" for row, other, answer in zip(rows, others, answers, strict=True)]
    text = "\n".join(["a,b,y", *lines]) + "\n"
    (tmp_path / "d.csv").write_text(text)
    config, _ = guess_config(tmp_path / "d.csv", "y", "regression")
    train_table(make_table_config({**config.to_dict(), "fit": {"n_tables": 60, "seed": 1}}, "x"), Path(), tmp_path / "fitted")
    model = load(tmp_path / "fitted")
    assert {each["order"] for each in model.metadata["dates"].values()} == {order, "year first"}
    whole = integer_model(model)
    run = compiled(whole, tmp_path)
    done = run(text)
    assert done.returncode == 0, done.stderr
    x = open_table(config, Path())[0].x
    scale = float(whole.graph.output_edge.scale[0])
    wanted = [float(f"{each * scale:.9g}") for each in whole(model.encode(torch.from_numpy(x)).long()).flatten().tolist()]
    assert [float(each.split(",")[0]) for each in done.stdout.split("\n")[1:-1]] == wanted
    for bad in ("2023-02-29", "soon", "2024-02-29 25:00", "2024-02-29T10:00+24:00", "2024-02-29 10:00x", "13/13/2024"):
        done = run(f"a,b\n{bad},\n")
        assert (done.returncode, done.stderr) == (1, f"line 2, column a: {bad}, expected {EXAMPLES[order]}\n")


def test_imported_trees_with_intervals_take_values_as_they_are(tmp_path: Path) -> None:
    model = integer_model(interval_trees(), weight_bits=16)
    values = [-1e308, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, np.nextafter(3.0, 4.0), 4.0, 9.0, np.nan]
    rows = np.array([[one, other] for one in values for other in (-1.0, 0.0, 1.0, np.nan)])
    rows = rows[~np.isnan(rows).all(1)]  # a line without any value is no row
    text = "x0,x1\n" + "".join(f"{','.join('' if np.isnan(each) else repr(float(each)) for each in row)}\n" for row in rows)
    answers = compiled(model, tmp_path)(text).stdout.split()
    unit = float(model.graph.output_edge.scale[0])
    wanted = model(model.quantise(torch.from_numpy(rows))).numpy() * unit
    np.testing.assert_allclose([float(each) for each in answers[-len(rows) :]], wanted, rtol=1e-5)
    np.testing.assert_allclose(wanted, interval_trees().numbers(torch.from_numpy(rows)), atol=2e-3)


def test_imported_trees_with_categories_take_words_and_codes(tmp_path: Path) -> None:
    model = integer_model(category_trees(), weight_bits=16)
    rows = [row for row in every_row() if row[1] is not None or not np.isnan(row[::2]).any()]
    cells = [("" if np.isnan(size) else size, "violet" if word is None else word, "" if np.isnan(code) else code) for
             size, word, code in rows]  # fmt: skip
    text = pandas.DataFrame(cells, columns=["size", "colour", "code"]).to_csv(index=False)
    done = compiled(model, tmp_path)(text)
    assert "hold a category that the model has not seen: taken for missing" in done.stderr
    np.testing.assert_allclose([float(each) for each in done.stdout.split()], [by_hand(*row) for row in rows], atol=2e-3)

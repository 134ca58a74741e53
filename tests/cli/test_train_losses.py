"""`lutetia train` by another loss than squared errors, and what follows: numbers, reasons, pages, programs and circuits."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from sklearn.metrics import mean_pinball_loss, mean_poisson_deviance

from browser import OpenPage
from cli.test_train_table import Capture, told
from lutetia._shared.numbers import short_number
from lutetia.cli import main
from lutetia.models import load
from lutetia.sklearn import LUTRegressor
from lutetia.training import make_table_config, open_table, read_toml
from tools import require_tool

pytest_plugins = ["browser"]
SMALL = ("--set", "fit.n_tables=30", "--set", "fit.n_anchors=3", "--set", "fit.candidates=16")
LOSSES = {
    "absolute_error": ("--set", "fit.loss=absolute_error"),
    "quantile": ("--set", "fit.loss=quantile", "--set", "fit.quantile=0.9"),
    "poisson": ("--set", "fit.loss=poisson"),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Visits, which are counts from 0 to about 20, by two columns."""
    random = np.random.default_rng(0)
    age, town = random.integers(20, 80, 1300), random.choice(["Lyon", "Nice"], 1300)
    visits = random.poisson(np.exp((age - 40) / 25 + (town == "Nice") * 0.5))
    pandas.DataFrame({"age": age, "town": town, "visits": visits}).to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path / "visits.csv"


def trained(data: Path, loss: str) -> Path:
    out = data.parent / loss
    assert main(["train", str(data), "--out", str(out), *SMALL, *LOSSES[loss]]) == 0
    return out


def test_counts(data: Path, capsys: Capture) -> None:
    """With a loss, counts are numbers and not classes; they are predicted as means, and explained as logarithms."""
    run = trained(data, "poisson")
    shown = capsys.readouterr().out
    assert "regression of visits" in shown
    test = json.loads((run / "summary.json").read_text())["test"]
    assert f"Poisson deviance {test['deviance']:.6g}"[:24] in shown
    assert f"D² {test['d2']:.4f}" in shown
    found = told(capsys, "predict", run, data)
    assert (found["loss"], found["quantile"]) == ("poisson", None)
    values, low = (np.array([row[key] for row in found["predictions"]]) for key in ("value", "low"))
    frame = pandas.read_csv(data)
    np.testing.assert_allclose(LUTRegressor.load(run).predict(frame[["age", "town"]]), values, rtol=1e-5)
    assert LUTRegressor.load(run).get_params()["loss"] == "poisson"
    assert (values > 0).all()
    assert (low >= 0).all()
    known = told(capsys, "evaluate", run, data)
    assert known["deviance"] == known["loss"] == pytest.approx(mean_poisson_deviance(frame["visits"], values), rel=1e-5)
    assert known["measure"] == "deviance"
    reasons = told(capsys, "explain", run, data, "--row", "3")
    assert sum(reasons["relevance"]) == pytest.approx(reasons["logarithm"], abs=1e-4)
    assert np.exp(reasons["logarithm"]) == pytest.approx(reasons["prediction"]) == pytest.approx(values[3], rel=1e-5)
    main(["explain", str(run), str(data), "--row", "3"])
    assert "; its logarithm" in capsys.readouterr().out
    main(["info", str(run)])
    assert "the mean of visits, as a logarithm in its tables" in capsys.readouterr().out


def test_quantiles(data: Path, capsys: Capture) -> None:
    run = trained(data, "quantile")
    shown = capsys.readouterr().out
    test = json.loads((run / "summary.json").read_text())["test"]
    assert 0.84 < test["below"] < 0.98
    assert f"{test['below']:.1%} of rows at or below the prediction, 90% wanted" in shown
    assert tomllib.loads((run / "config.toml").read_text())["fit"]["intervals"] is False  # which 1,300 rows would have
    assert "error_90" not in load(run).metadata
    rows = told(capsys, "predict", run, data)["predictions"]
    assert set(rows[0]) == {"input", "value"}
    known, truth = told(capsys, "evaluate", run, data), pandas.read_csv(data)["visits"]
    assert known["pinball"] == pytest.approx(mean_pinball_loss(truth, [row["value"] for row in rows], alpha=0.9), rel=1e-5)
    main(["predict", str(run), str(data)])
    shown = capsys.readouterr().out.splitlines()
    assert "the 90% quantile" in shown[0]
    assert shown[0].index("visits", 12) == shown[10].index("visits", 12)  # row 0 and row 10, one below the other
    main(["evaluate", str(run)])
    assert "how far the pinball loss rises" in capsys.readouterr().out
    main(["info", str(run)])
    told_of = capsys.readouterr().out
    assert "the 90% quantile of visits" in told_of
    assert "input      2 columns, 1 of categories\n" in told_of


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("fit.loss=huber",), "fit.loss is 'huber', expected one of"),
        (("fit.loss=quantile",), 'fit.quantile is None, expected a number between 0 and 1 with fit.loss="quantile"'),
        (("fit.loss=quantile", "fit.quantile=0"), "fit.quantile is 0.0"),
        (("fit.loss=quantile", "fit.quantile=2"), "fit.quantile is 2"),
        (("fit.quantile=0.5",), 'fit.quantile is 0.5, expected None with fit.loss="squared_error"'),
        (("fit.loss=quantile", "fit.quantile=0.5", "fit.intervals=true"), "a quantile is an end, not a middle"),
    ],
)
def test_losses_that_do_not_fit_are_refused(data: Path, capsys: Capture, settings: tuple[str, ...], message: str) -> None:
    out = data.parent / "run"
    assert main(["train", str(data), "--out", str(out), *(word for each in settings for word in ("--set", each))]) != 0
    assert message in capsys.readouterr().err
    assert not (out / "config.toml").exists()


def test_data_that_does_not_fit_a_loss_is_refused(data: Path, capsys: Capture) -> None:
    poisson = LOSSES["poisson"]
    assert main(["train", str(data), "--target", "town", "--task", "classification", *poisson, "--out", "x"]) != 0
    assert 'fit.loss is "poisson", which is for numbers' in capsys.readouterr().err
    frame = pandas.read_csv(data)
    frame["visits"] -= 3
    frame.to_csv(data.parent / "below.csv", index=False)
    assert main(["train", str(data.parent / "below.csv"), *poisson, "--out", str(data.parent / "x")]) != 0
    assert "'visits' holds -3, expected numbers of at least 0" in capsys.readouterr().err
    run = trained(data, "poisson")
    assert main(["evaluate", str(run), str(data.parent / "below.csv")]) != 0
    assert "the target holds -3, expected numbers of at least 0" in capsys.readouterr().err


@pytest.mark.parametrize("loss", ["quantile", "poisson"])
def test_programs_answer_like_the_model(data: Path, loss: str, capsys: Capture) -> None:
    """The C program gives the numbers of the model, but for rounded weights: exp of its sum for counts."""
    compiler = require_tool("gcc", "cc")
    run, out = trained(data, loss), data.parent / "program"
    capsys.readouterr()
    report = told(capsys, "build", run, "--target", "c", "--out", out)
    key = {"quantile": "pinball", "poisson": "deviance"}[loss]
    measured = report["accuracy"]
    assert measured[f"integer_{key}"] == pytest.approx(measured[f"float_{key}"], rel=0.05)
    assert report["is_log"] is (loss == "poisson")
    assert (report["interval"] is None) is (loss == "quantile")
    texts = ("model.c", "columns.c", "rows.c")
    command = [compiler, "-std=c99", "-DLUTETIA_NO_MAIN", *texts, "-o", "run", "-lm"]
    subprocess.run(command, cwd=out, check=True, capture_output=True)
    done = subprocess.run([out / "run"], input=data.read_text(), text=True, capture_output=True, check=True)
    lines = done.stdout.splitlines()[loss == "poisson" :]  # intervals have a line of names
    answers = np.array([line.split(",") for line in lines], float)
    rows = told(capsys, "predict", run, data)["predictions"]
    wanted = np.array([[row[key] for key in ("value", "low", "high") if key in row] for row in rows])
    np.testing.assert_allclose(answers, wanted, rtol=0.05, atol=0.1)
    if loss == "poisson":
        frame = pandas.read_csv(data)
        np.testing.assert_allclose(wanted[:, 1:], LUTRegressor.load(run).predict_interval(frame[["age", "town"]]), rtol=1e-4)
        assert done.stdout.splitlines()[0] == "visits,visits low,visits high"
        assert (answers[:, 1] == 0).any()
        inside = (frame["visits"] >= answers[:, 1]) & (frame["visits"] <= answers[:, 2])
        assert inside.mean() == pytest.approx(0.9, abs=0.04)
        assert report["interval"]["inside"] == pytest.approx(0.9, abs=0.04)


def test_a_circuit_says_what_its_number_is(data: Path, capsys: Capture) -> None:
    run, out = trained(data, "poisson"), data.parent / "circuit"
    assert main(["build", str(run), "--tables", "4", "--no-refit", "--no-prove", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "is the logarithm of the prediction" in shown.out + shown.err
    assert "Poisson deviance: model" in shown.out + shown.err
    page = (out / "summary.html").read_text()
    assert "Poisson deviance of the circuit" in page
    assert "logarithm of visits for each 1 of out_data" in page
    interval = json.loads((out / "verilog" / "manifest.json").read_text())["interval"]
    assert interval == json.loads((out / "report.json").read_text())["interval"]
    assert (interval["whole"], interval["least"]) == (None, 0)
    test = open_table(make_table_config(read_toml(run / "config.toml"), ""), run)[1].splits["test"]
    network = load(run).network(json.loads((out / "report.json").read_text())["weight_bits"], 4)
    counts = np.exp(network(torch.from_numpy(test.x))[:, 0].double().numpy() * network.graph.output_edge.scale[0])
    place = -(-9 * (len(test) + 1) // 10)  # of 261 errors of test rows, that of nine in ten
    assert interval["half_width"] == pytest.approx(np.sort(np.abs(counts - test.y))[place - 1])
    assert "of the prediction itself, from 0 at least" in shown.out + shown.err
    assert "9 of 10 test rows within, from 0 at least" in page


def test_a_page_says_that_tables_add_up_to_a_logarithm(data: Path, open_page: OpenPage, capsys: Capture) -> None:
    run, out = trained(data, "poisson"), data.parent / "model.html"
    assert main(["page", str(run), "--out", str(out)]) == 0
    assert "How far the logarithm of the answer would fall" in out.read_text()
    opened, source = open_page(out.read_text("utf-8")), load(run).encoding.source.tolist()
    edges = load(run).encoding.edges[source.index(0)].tolist()
    capsys.readouterr()
    for code, town in ((3, "Lyon"), (45, "Nice")):
        opened.page.locator(f"#input{source.index(0)}").fill(str(code))
        opened.page.locator(f"#input{source.index(1)}").select_option(town)
        (wanted,) = told(capsys, "predict", run, f"{edges[code - 1]!r},{town}")["predictions"]
        assert opened.page.locator("#answer").text_content() == short_number(wanted["value"], 6)
        text = f"{short_number(wanted['low'], 6)} to {short_number(wanted['high'], 6)} in 9 of 10 cases"
        assert opened.page.locator("#interval").text_content() == text


def test_a_unit_is_shown_with_the_loss(tmp_path: Path, capsys: Capture) -> None:
    random = np.random.default_rng(0)
    width = random.uniform(1, 9, 120)
    lines = "".join(f"{a:.3f},{2 * a + random.normal():.2f} mm\n" for a in width)
    (tmp_path / "parts.csv").write_text("width,length\n" + lines)
    arguments = ["--out", str(tmp_path / "run"), *SMALL, *LOSSES["absolute_error"]]
    assert main(["train", str(tmp_path / "parts.csv"), *arguments]) == 0
    test = json.loads((tmp_path / "run" / "summary.json").read_text())["test"]
    assert test["unit"] == "mm"
    shown = capsys.readouterr().out
    assert f"mean absolute error {test['mae']:.6g} mm, D² {test['d2']:.4f}, RMSE {test['rmse']:.6g} mm" in shown

"""`lutetia train --task ranking`, and what follows: whole queries held out, NDCG, ranks, reasons, pages, programs, circuits."""

from __future__ import annotations

import csv
import json
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.metrics import ndcg_score

from browser import OpenPage
from cli.test_train_table import Capture, told
from lutetia.cli import main
from lutetia.models import load
from lutetia.sklearn import LUTRanker
from lutetia.training import make_table_config, open_table, read_toml
from tools import require_tool

pytest_plugins = ["browser"]
SMALL = ("--set", "fit.n_tables=20", "--set", "fit.n_anchors=3", "--set", "fit.candidates=16")
RANKING = ("--target", "relevance", "--task", "ranking", "--set", "data.query=query id")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offers for 70 searches, whose rows do not lie together, and a run on them."""
    folder, random = tmp_path_factory.mktemp("searches"), np.random.default_rng(0)
    query = random.integers(0, 70, 700)
    stars, shop = random.integers(1, 6, 700), random.choice(["north", "south"], 700)
    level = random.normal(size=70)[query] * 2
    relevance = np.clip(np.round(stars / 2 + (shop == "north") + level), 0, 4).astype(int)
    frame = pandas.DataFrame({"query id": 1000 + query, "stars": stars, "shop": shop, "relevance": relevance})
    frame.assign(row=range(700)).to_csv(folder / "numbered.csv", index=False)
    frame.to_csv(folder / "searches.csv", index=False)
    assert main(["train", str(folder / "searches.csv"), *RANKING, *SMALL, "--out", str(folder / "run")]) == 0
    return folder


def test_whole_queries_are_held_out(place: Path, capsys: Capture) -> None:
    config = make_table_config(read_toml(place / "run" / "config.toml"), "config")
    table, data = open_table(config, place / "run")
    train, test = (data.splits[name].query for name in ("train", "test"))
    assert len(set(train)) + len(set(test)) == 70
    assert len(test) == pytest.approx(140, abs=12)  # about a fifth of the rows
    assert not set(train) & set(test)
    assert table.features == ["stars", "shop"]
    told_config = tomllib.loads((place / "run" / "config.toml").read_text())
    assert (told_config["data"]["task"], told_config["data"]["query"]) == ("ranking", "query id")
    assert "loss" not in told_config["fit"]
    again = place / "again"
    assert main(["train", str(place / "run" / "config.toml"), "--out", str(again)]) == 0
    assert "ranking by relevance: " in (shown := capsys.readouterr().out)
    assert f"{len(train)} rows of {len(set(train))} queries to fit, {len(test)} rows of {len(set(test))} queries to test" in shown
    first, second = (json.loads((run / "summary.json").read_text())["test"] for run in (place / "run", again))
    assert first == second
    assert f"NDCG@10 {first['ndcg_10']:.4f}, NDCG@5 {first['ndcg_5']:.4f} (by chance: {first['chance_10']:.4f}" in shown
    assert first["ndcg_5"] > 0.9 > first["chance_5"] + 0.2


def test_ndcg_is_that_of_scikit_learn(place: Path, capsys: Capture) -> None:
    """Of the scores that predict gives, and by chance: the mean over all orders, as many equal scores have it."""
    frame = pandas.read_csv(place / "searches.csv")
    rows = told(capsys, "predict", place / "run", place / "searches.csv")["predictions"]
    frame["score"] = [row["score"] for row in rows]
    known = told(capsys, "evaluate", place / "run", place / "searches.csv")
    parts = [part for _, part in frame.groupby("query id") if part["relevance"].any()]
    for at in (5, 10):
        gains = [2.0 ** part["relevance"].to_numpy() - 1 for part in parts]
        own = [ndcg_score([gain], [part["score"]], k=at) for gain, part in zip(gains, parts, strict=True)]
        chance = [ndcg_score([gain], [np.zeros(len(gain))], k=at) for gain in gains]
        assert known[f"ndcg_{at}"] == pytest.approx(np.mean(own), rel=1e-9)
        assert known[f"chance_{at}"] == pytest.approx(np.mean(chance), rel=1e-9)
    assert (known["queries"], known["without_relevant"]) == (70, 70 - len(parts))
    assert {each["column"] for each in known["columns"]} == {"stars", "shop"}
    assert all(each["rise"] > 0.02 for each in known["columns"])
    main(["evaluate", str(place / "run")])
    assert "how far the NDCG@10 falls" in capsys.readouterr().out


def test_predict_ranks_within_queries(place: Path, capsys: Capture) -> None:
    run, data, out = place / "run", place / "searches.csv", place / "ranks.csv"
    assert main(["predict", str(run), str(data), "--csv", str(out), "--keep"]) == 0
    shown = capsys.readouterr().out.splitlines()
    frame = pandas.read_csv(out)
    assert list(frame) == ["query id", "stars", "shop", "relevance", "score", "rank"]
    expected = frame.groupby("query id")["score"].rank(ascending=False, method="min")
    np.testing.assert_array_equal(frame["rank"], expected)
    np.testing.assert_allclose(LUTRanker.load(run).predict(frame[["stars", "shop"]]), frame["score"], rtol=1e-5)
    assert shown[0] == f"query id {frame['query id'][0]}"
    assert shown[1].startswith("   1. ")
    scores = [float(line.split("score ")[1]) for line in shown[1 : 1 + (frame["query id"] == frame["query id"][0]).sum()]]
    assert scores == sorted(scores, reverse=True)
    rows = told(capsys, "predict", run, "5,north", "1,south", "3,north")["predictions"]  # one query, as none is named
    assert [row["rank"] for row in rows] == [1, 3, 2]
    assert rows[0]["query"] is None
    with out.open("w", newline="") as file:
        csv.writer(file).writerows([["query id", "stars", "shop"], ["", 3, "north"]])
    assert main(["predict", str(run), str(out)]) != 0
    assert "column 'query id' has no value in row 1" in capsys.readouterr().err


def test_reasons_add_up_to_the_score(place: Path, capsys: Capture) -> None:
    found = told(capsys, "explain", place / "run", place / "searches.csv", "--row", "3")
    assert sum(found["relevance"]) == pytest.approx(found["prediction"], abs=1e-5)
    assert found["target_name"] == "score"
    main(["info", str(place / "run")])
    assert "scores that order rows by relevance" in capsys.readouterr().out


def test_programs_and_circuits_give_the_score(place: Path, capsys: Capture) -> None:
    compiler = require_tool("gcc", "cc")
    run, out = place / "run", place / "program"
    report = told(capsys, "build", run, "--target", "c", "--weight-bits", "16", "--out", out)
    measured = report["accuracy"]
    assert measured["integer_ndcg_10"] == pytest.approx(measured["float_ndcg_10"], abs=0.01)
    assert measured["float_ndcg_10"] == pytest.approx(json.loads((run / "summary.json").read_text())["test"]["ndcg_10"])
    assert report["interval"] is None
    command = [compiler, "-std=c99", "-DLUTETIA_NO_MAIN", "model.c", "columns.c", "rows.c", "-o", "run"]
    subprocess.run(command, cwd=out, check=True, capture_output=True)
    data = place / "searches.csv"
    answers = subprocess.run([out / "run"], input=data.read_text(), text=True, capture_output=True, check=True).stdout.split()
    scores = [row["score"] for row in told(capsys, "predict", run, data)["predictions"]]
    np.testing.assert_allclose(np.array(answers, float), scores, atol=1e-3)
    circuit = place / "circuit"
    assert main(["build", str(run), "--tables", "4", "--no-prove", "--out", str(circuit)]) == 0
    shown = capsys.readouterr()
    assert "NDCG@10: model" in shown.out + shown.err
    assert "held-out training rows" in shown.out + shown.err  # a second fit by the same loss was tried
    assert "NDCG@10 of the circuit" in (circuit / "summary.html").read_text()


def test_a_page_gives_the_score(place: Path, open_page: OpenPage, capsys: Capture) -> None:
    out = place / "model.html"
    assert main(["page", str(place / "run"), "--out", str(out)]) == 0
    capsys.readouterr()
    opened, model = open_page(out.read_text("utf-8")), load(place / "run")
    assert opened.page.locator("h3", has_text="Answer").text_content() == "Answer: score"
    source, edges = model.encoding.source.tolist(), model.encoding.edges.tolist()
    for code, shop in ((2, "south"), (4, "north")):
        opened.page.locator(f"#input{source.index(0)}").fill(str(code))
        opened.page.locator(f"#input{source.index(1)}").select_option(shop)
        row = f"{edges[source.index(0)][code - 1]},{shop}"
        (wanted,) = told(capsys, "predict", place / "run", row)["predictions"]
        assert float(opened.page.locator("#answer").text_content() or "") == pytest.approx(wanted["score"], rel=1e-5)
        assert opened.page.locator("#interval").text_content() == ""
    assert opened.problems == []


def test_the_latest_queries_are_held_out_and_weighted(place: Path, capsys: Capture) -> None:
    """By a column of dates, whose latest in a query is that of the query; NDCG is that of queries by their weights."""
    frame = pandas.read_csv(place / "searches.csv")
    random = np.random.default_rng(1)
    frame["day"] = pandas.Timestamp("2024-01-01") + pandas.to_timedelta(random.integers(0, 900, len(frame)), "D")
    frame["share"] = random.uniform(0.1, 5, len(frame)).round(2)
    data, run = place / "dated.csv", place / "dated run"
    frame.to_csv(data, index=False)
    options = ("--set", "data.split=latest", "--set", "data.split_by=day", "--set", "data.weight=share")
    assert main(["train", str(data), *RANKING, *SMALL, *options, "--out", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "queries to test, the latest by day" in shown
    assert "weighted by share: NDCG@10" in shown
    opened = open_table(make_table_config(read_toml(run / "config.toml"), "config"), run)[1].splits
    names = np.unique(frame["query id"].astype(str))
    last = frame.groupby(frame["query id"].astype(str))["day"].max()
    sides = [[last[names[each]] for each in set(opened[name].query)] for name in ("train", "test")]
    assert len(sides[0]) + len(sides[1]) == len(names)
    assert max(sides[0]) < min(sides[1])
    predicted = told(capsys, "predict", run, data)["predictions"]
    frame["score"] = [row["score"] for row in predicted]
    own = [part for name, part in frame.groupby("query id") if last[str(name)] in sides[1] and part["relevance"].any()]
    each = [ndcg_score([2.0 ** part["relevance"] - 1], [part["score"]], k=10) for part in own]
    expected = np.average(each, weights=[part["share"].mean() for part in own])
    assert json.loads((run / "summary.json").read_text())["test"]["ndcg_10"] == pytest.approx(expected, rel=1e-6)
    assert told(capsys, "evaluate", run)["ndcg_10"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "ranking"), "--set data.query=NAME names the column of queries"),
        (("--task", "regression", "--set", "data.query=query id"), 'expected data.task = "ranking" too'),
        (("--set", "data.query=row"), "'row' differs in all rows, expected rows that share a query"),
        (("--set", "data.query=nothing"), "has no column 'nothing', expected data.query to be one of query id, stars"),
        (("--set", "data.query=relevance"), "'relevance' is the target, expected data.query to be another"),
        (("--set", "data.query=query id", "--target", "shop"), "expected numbers for a ranking"),
        (("--set", "data.query=shop", "--target", "query id"), "expected relevances from 0 to 30"),
        (("--set", "data.query=query id", "--set", "fit.loss=poisson"), "a ranking orders rows"),
        (("--set", "data.query=query id", "--set", "fit.balanced=true"), "a ranking has no classes"),
        (
            ("--set", "data.query=query id", "--set", "data.split=groups", "--set", "data.split_by=shop"),
            "data.split_by is 'shop', which differs within the query",
        ),
    ],
)
def test_what_is_no_ranking_is_refused(place: Path, capsys: Capture, arguments: tuple[str, ...], message: str) -> None:
    out = place / "refused"
    name = "numbered.csv" if "data.query=row" in arguments else "searches.csv"
    target = () if "--target" in arguments else ("--target", "relevance")
    assert main(["train", str(place / name), *target, *arguments, "--out", str(out)]) != 0
    assert message in capsys.readouterr().err
    assert not (out / "config.toml").exists()

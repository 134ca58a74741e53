"""Texts from a file to a prediction: train, predict, evaluate, explain, page, build."""

from __future__ import annotations

import csv
import json
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from browser import OpenPage
from cli.test_train_table import Capture, error, told
from lutetia.cli import main
from lutetia.models import load, text_columns, text_inputs
from lutetia.precompute import integer_model, model_page
from lutetia.sklearn import LUTClassifier
from tools import require_tool

pytest_plugins = ["browser"]
ODD = [
    "", "DON’T buy’ this, NOT good!!", "größe GRÖSSE Σίσυφος ΣΊΣΥΦΟΣ", "日本語テスト สวย", "👍🏽👍 ❤️ so\u00adft",
    "12345 123456 1234", "order 08\u00ad0012\u200b",
    "a ' '' 'good' bad' don' 'bad x_y", "İstanbul K 5€", "good " * 300, "w" * 3000 + " good",
]  # fmt: skip


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reviews with a price and a colour, in which "not good" is bad and "not bad" is good; some are missing."""
    place, random = tmp_path_factory.mktemp("shop"), np.random.default_rng(0)
    with (place / "reviews.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["price", "review", "colour", "verdict"])
        for row in range(500):
            word, no = random.choice(["good", "Größe passt", "bad", "👎"]), random.random() < 0.4
            is_good = (word in ("good", "Größe passt")) != (no and word in ("good", "bad"))
            filler = random.choice(["the shoe is", "I don’t know, it is", "“it” is"], 2)
            text = f"{filler[0]} {'not ' if no else ''}{word}, {filler[1]} what it is, order {row % 7}{row:05}"
            text, is_good = ("", random.random() < 0.9) if row % 25 == 7 else (text, is_good)
            out.writerow([f"{random.normal(20, 3):.2f}", text, random.choice(["red", "blue"]), "keep" if is_good else "return"])
    return place


@pytest.fixture(scope="module")
def run(shop: Path) -> Path:
    settings = ["--set", "fit.n_tables=40", "--set", "fit.n_anchors=4", "--set", "fit.calibrate=false"]
    assert main(["train", str(shop / "reviews.csv"), "--out", str(shop / "run"), *settings]) == 0
    return shop / "run"


def test_a_text_column_is_found_and_learned_from(run: Path, capsys: Capture) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["types"][1] == {"column": "review", "type": "text, 17.3 words in a cell, 20 missing"}
    assert summary["test"]["accuracy"] > 0.95
    assert tomllib.loads((run / "config.toml").read_text())["data"]["text"] == ["review"]
    (text,) = summary["texts"]
    assert text["column"] == "review"
    assert "not good" in text["speak"]["return"]
    found = told(capsys, "evaluate", str(run))
    assert found["accuracy"] == summary["test"]["accuracy"]
    assert next(each["column"] for each in found["columns"]) == "review"
    assert len(found["columns"]) == 3
    assert {*found["words"][0]["word"].split()} & {"👎", "good", "bad", "not"}
    assert found["words"][0]["rise"] > 0
    assert "words that matter" in shown(capsys, "evaluate", str(run))
    assert "3 columns, 1 of categories, 1 of text" in shown(capsys, "info", str(run))


def shown(capsys: Capture, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_what_was_decided_is_shown_and_can_be_corrected(shop: Path, tmp_path: Path, capsys: Capture) -> None:
    data, few = str(shop / "reviews.csv"), ["--set", "fit.n_tables=2", "--set", "fit.calibrate=false"]
    screen = shown(capsys, "train", data, "--out", str(tmp_path / "a"), *few)
    assert "review  text, 17.3 words in a cell, 20 missing" in screen
    assert "data.text=" in screen
    assert "words and pairs have weights, " in screen
    none = told(capsys, "train", data, "--out", str(tmp_path / "b"), *few, "--set", "data.text=[]")
    assert "texts" not in none
    assert none["left_out"] == {"review": "text with 480 different values"}
    both = told(capsys, "train", data, "--out", str(tmp_path / "c"), *few, "--set", 'data.text=["review", "colour"]')
    assert [each["column"] for each in both["texts"]] == ["review", "colour"]
    listed = told(capsys, "train", data, "--out", str(tmp_path / "d"), *few, "--set", 'data.categorical=["review"]')
    assert "texts" not in listed
    for setting, expected in (
        ('data.text=["revue"]', "data.text has 'revue'"),
        ('data.text="review"', "data.text"),
    ):
        assert expected in error(capsys, "train", data, "--out", str(tmp_path / "e"), "--set", setting)
    twice = ["--set", 'data.text=["review"]', "--set", 'data.categorical=["review"]']
    assert "both have 'review'" in error(capsys, "train", data, "--out", str(tmp_path / "e"), *twice)
    wrong = ["--set", "fit.monotone.review=1"]
    assert "fit.monotone has 'review'" in error(capsys, "train", data, "--out", str(tmp_path / "e"), *wrong)


def test_a_run_is_measured_with_the_columns_of_its_model(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs from before there were texts have categories that now look like texts."""
    data, random = tmp_path / "shop.csv", np.random.default_rng(0)
    rows = [f"{random.normal():.3f},{number % 50} of the shoes,{'yes' if number % 50 < 25 else 'no'}" for number in range(100)]
    data.write_text("\n".join(["price,shoe,sold", *rows]))
    few = ["--set", "fit.n_tables=2", "--set", "fit.calibrate=false"]
    with monkeypatch.context() as before:
        before.setattr("lutetia.training.table_files.looks_like_text", lambda values: False)
        fitted = told(capsys, "train", str(data), "--out", str(tmp_path / "run"), *few)
    assert fitted["types"][1]["type"] == "50 categories"
    assert told(capsys, "evaluate", str(tmp_path / "run"))["accuracy"] == fitted["test"]["accuracy"]
    why = told(capsys, "explain", str(tmp_path / "run"), str(data), "--rule", "shapley")
    assert why["features"] == ["price", "shoe"]


def test_rows_are_predicted_and_explained(run: Path, shop: Path, tmp_path: Path, capsys: Capture) -> None:
    typed = '20,"it is not good, not at all <b>",red'
    (answer,) = told(capsys, "predict", str(run), typed)["predictions"]
    assert answer["class"] == "return"
    why = told(capsys, "explain", str(run), typed, "--html", str(tmp_path / "why.html"))
    assert why["features"] == ["price", "review", "colour"]
    np.testing.assert_allclose(sum(why["relevance"]) + why["absorbed"], why["explained"], rtol=1e-4)
    (text,) = why["texts"]
    np.testing.assert_allclose(sum(word[2] for word in text["words"]) + text["rest"], why["relevance"][1], rtol=1e-6)
    strongest = max(text["words"], key=lambda word: word[2])
    assert text["text"][strongest[0] : strongest[1]] in ("not", "good")
    assert {"feature": "review", "operator": "contains"}.items() <= next(
        each for each in why["comparisons"] if each["other"] == '"not good"'
    ).items()
    page = (tmp_path / "why.html").read_text()
    assert "Words of review" in page
    assert "<b>" not in page.split("<body")[-1].replace("<b>sample", "")
    assert "in review:" in shown(capsys, "explain", str(run), typed)
    missing = told(capsys, "explain", str(run), "20,,red")
    assert missing["texts"] == []
    assert missing["relevance"][1] != 0
    rows = told(capsys, "predict", str(run), str(shop / "reviews.csv"))["predictions"]
    model = LUTClassifier.load(run)
    frame = pandas.read_csv(shop / "reviews.csv")[["price", "review", "colour"]]
    np.testing.assert_allclose([each["probabilities"] for each in rows], model.predict_proba(frame), atol=1e-6)
    assert "expected 3: price, review, colour" in error(capsys, "predict", str(run), "20,red")


def test_a_column_alone_is_typed_as_it_is(shop: Path, tmp_path: Path, capsys: Capture) -> None:
    with (shop / "reviews.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["review"], row["verdict"]) for row in csv.DictReader(file)]
    with (tmp_path / "alone.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("review", "verdict"), *rows])
    few = ["--set", "fit.n_tables=20", "--set", "fit.calibrate=false"]
    assert told(capsys, "train", str(tmp_path / "alone.csv"), "--out", str(tmp_path / "run"), *few)["test"]["accuracy"] > 0.9
    (answer,) = told(capsys, "predict", str(tmp_path / "run"), "it is, in short, not good")["predictions"]
    assert answer["class"] == "return"


def test_c_reads_texts_as_python_does(run: Path, shop: Path, tmp_path: Path, capsys: Capture) -> None:
    compiler, model = require_tool("gcc", "cc"), load(run)
    told(capsys, "build", str(run), "--target", "c", "--out", str(tmp_path / "c"))
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined", "-DLUTETIA_NO_MAIN"]
    # The values themselves, before they are codes: what is equal there is equal in all that follows.
    rows = (tmp_path / "c" / "rows.c").read_text()
    shows = 'for (i = 0; i < LUTETIA_VALUES; i++) { printf("%.17g ", values[i]); }\nputchar(10);\n'
    (tmp_path / "c" / "values.c").write_text(rows.replace("lutetia_encode(values, x);", f"{shows} lutetia_encode(values, x);"))
    call = [compiler, *flags, "model.c", "columns.c", "values.c", "-o", "values", "-lm"]
    subprocess.run(call, cwd=tmp_path / "c", check=True, capture_output=True)
    data = tmp_path / "odd.csv"
    with data.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("review", "colour", "price"), *((text, "red", 5) for text in ODD)])
    (column,) = text_columns(model.metadata)
    wanted = text_inputs([column], [column.read([text.strip() or None for text in ODD])])
    done = subprocess.run([tmp_path / "c" / "values"], input=data.read_bytes(), capture_output=True, check=True)
    found = np.array([[float(each) for each in line.split()] for line in done.stdout.decode().splitlines()[::2]])
    np.testing.assert_array_equal(found[:, column.first :], wanted)
    for file in (data, shop / "reviews.csv"):
        answers = told(capsys, "predict", str(run), str(file))["predictions"]
        done = subprocess.run([tmp_path / "c" / "values"], input=file.read_bytes(), capture_output=True, check=True)
        same = [one == each["class"] for one, each in zip(done.stdout.decode().splitlines()[1::2], answers, strict=True)]
        assert np.mean(same) > 0.99  # weights of 8 bits


def test_the_page_reads_texts_as_python_does(run: Path, open_page: OpenPage) -> None:
    model = load(run)
    whole = integer_model(model)
    opened = open_page(model_page(whole, "reviews"))
    (column,) = text_columns(model.metadata)
    values = text_inputs([column], [column.read(ODD)])
    x = np.concatenate([np.zeros((len(ODD), column.first)), values], 1)
    encoded = [model.encoding.source.tolist().index(each) for each in column.inputs]
    codes = model.encoding.codes(x).T[:, encoded]
    found = opened.page.evaluate("(texts) => texts.map((text) => lutetia.textCodes(0, text))", ODD)
    assert found == codes.tolist()
    opened.page.fill("textarea", "it is not good")
    opened.page.locator(".marked span").nth(3).wait_for()
    assert opened.page.inner_text("#answer") == "return"
    assert opened.page.inner_text(".marked") == "it is not good"
    strongest = opened.page.evaluate(
        "[...document.querySelectorAll('.marked span:not(.minus)')]"
        ".sort((a, b) => parseFloat(b.style.getPropertyValue('--share')) - parseFloat(a.style.getPropertyValue('--share')))[0]"
        ".textContent"
    )
    assert strongest in ("not", "good")
    opened.page.fill("textarea", "<img src=x onerror=alert(1)> good")
    opened.page.locator(".marked", has_text="onerror").wait_for()
    assert opened.page.query_selector(".marked img") is None
    for nothing in ("  ", " N/A\u00a0"):
        opened.page.fill("textarea", nothing)
        assert opened.page.evaluate("(inputs) => inputs.map((input) => lutetia.sample()[input])", encoded) == [0] * len(encoded)
    assert opened.problems == []


def test_a_circuit_takes_words_as_codes(run: Path, shop: Path) -> None:
    model, frame = LUTClassifier.load(run), pandas.read_csv(shop / "reviews.csv")
    network, x = model.model_.network(), torch.from_numpy(model._matrix(frame[["price", "review", "colour"]]))
    whole = network.graph(network.quantise(x))[:, 0].numpy()
    assert (
        np.array(model.model_.metadata["classes"])[whole] == model.predict(frame[["price", "review", "colour"]])
    ).mean() > 0.99

"""The page of a model of windows of signals, in a real browser: the samples, the sums and the answers of Python, bit for bit."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from lutetia.cli.build_data import Measured, open_run_data, run_rows
from lutetia.cli.explain import ExplainRequest, explain
from lutetia.cli.page import write_page
from lutetia.cli.predict import PredictRequest, predict
from lutetia.errors import ArgumentError, DataError
from lutetia.models import SHAPE_KERNELS, WINDOW_KINDS, SignalShape, load, most_apart, save, shape_counts, signal_windows
from lutetia.models.windows import SignalColumn, SignalWindows, feature_sums
from lutetia.precompute import IntegerClassifier, integer_model, model_page
from lutetia.precompute.integer import page_windows
from lutetia.precompute.integer.c_columns import asked_edges
from lutetia.precompute.integer.intervals import stage_sums
from lutetia.report import Comparison, attribute_class
from lutetia.sklearn import GateClassifier, WindowFeatures
from lutetia.training import guess_windows, held_rows, make_table_config, read_table_file, train_table, window_rows
from precompute.test_integer_page import violations
from precompute.test_integer_windows import recordings, tiny
from tools import require_module

if TYPE_CHECKING:
    from browser import OpenPage

require_module("typer")
pytest_plugins = ["browser"]

BYTES = "Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))"
AS_LISTS = "(each) => ({ ...each, scores: [...each.scores], chances: [...each.chances ?? []] })"
PREDICT = f"(text) => lutetia.predict({BYTES}).map({AS_LISTS})"
EXPLAIN = f"([text, number]) => lutetia.explain({BYTES}, number)"
READ = f"""(text) => {{
  try {{
    const {{ samples, begins }} = lutetia.read({BYTES});
    return [samples.map((own) => Array.from(own)), begins, ""];
  }} catch (error) {{
    return [[], [], error.message];
  }}
}}"""
MEASURE = "([samples, starts]) => starts.map((start) => lutetia.measure(Int32Array.from(samples), start))"


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def trained(folder: Path, target: str, *settings: str, **fit: Any) -> tuple[Path, Path]:
    """A run on recordings, and their file."""
    data = recordings(folder / "data.csv", 130, target)
    asked = ["data.window=20", "data.step=7", *(settings or ["data.series=trial"])]
    values = guess_windows(data, read_table_file(data), target, None, asked).to_dict()
    values["fit"] |= {"n_tables": 20, "seed": 1, **fit}
    train_table(make_table_config(values, "config"), folder, folder / "run")
    return folder / "run", data


def whole(run: Path) -> IntegerClassifier:
    made = integer_model(load(run), weight_bits=24)
    assert isinstance(made, IntegerClassifier)
    return made


@pytest.mark.parametrize(("length", "bits"), [(8, 16), (13, 32), (131, 16)])
def test_measures_every_feature_as_python_does(open_page: OpenPage, length: int, bits: int) -> None:
    windows = SignalWindows(length, 3, (SignalColumn("a", 2),), bits)
    random, n, (low, high) = np.random.default_rng(length), 12 * length, windows.ends
    samples = random.integers(low, high + 1, n)
    samples[2 * length : 4 * length] = random.integers(-3, 4, 2 * length)
    samples[5 * length : 7 * length] = low
    samples[8 * length : 10 * length] = np.where(random.random(2 * length) < 0.5, low, high)
    opened = open_page(model_page(tiny(windows), "page"))
    starts = list(range(n - length + 1))
    wanted = feature_sums(np.stack([samples[start : start + length] for start in starts])[:, None])[:, 0]
    assert opened.page.evaluate(MEASURE, [samples.tolist(), starts]) == wanted.tolist()
    assert opened.problems == []


def test_sums_of_the_longest_window_are_exact(open_page: OpenPage) -> None:
    windows = SignalWindows(1 << 14, 5, (SignalColumn("a"),), 32)
    (low, high), turns = windows.ends, np.arange(1 << 14) % 2
    opened = open_page(model_page(tiny(windows), "page"))
    for samples in (np.where(turns, low, high), np.where(turns, low, low + 1), np.where(np.arange(1 << 14) == 9, low, high)):
        wanted = feature_sums(samples[None, None])[0]
        assert np.abs(wanted).max() > 2**31
        assert opened.page.evaluate(MEASURE, [samples.tolist(), [0]]) == wanted.tolist()


FITS = [("class", {}), ("class", {"pairs": 1.0}), ("number", {"intervals": True}), ("number", {"loss": "poisson"})]


@pytest.mark.parametrize(("target", "fit"), FITS)
def test_answers_a_file_as_predict_does(open_page: OpenPage, target: str, fit: dict[str, Any], tmp_path: Path) -> None:
    run, data = trained(tmp_path, target, **fit)
    model, windows = whole(run), signal_windows(load(run).metadata)
    assert windows is not None
    assert windows.bits == 32
    opened = open_page(model_page(model, "page"))
    found = opened.page.evaluate(PREDICT, packed(data.read_bytes()))
    rows = window_rows(read_table_file(data), windows)
    sums = stage_sums(model.stages[0], model.quantise(torch.from_numpy(rows.inputs)).numpy())  # type: ignore[arg-type]
    assert [each["scores"] for each in found] == sums.tolist()
    told = predict(run, PredictRequest([str(data)]), show=False)["predictions"]
    assert [f"{data} rows {each['first']} to {each['last']}" for each in found] == [each["input"] for each in told]
    if target == "class":
        assert [each["best"] for each in found] == [each["number"] for each in told]
        chances = [each["probabilities"] for each in told]
        np.testing.assert_allclose([each["chances"] for each in found], chances, rtol=1e-5, atol=1e-7)
    else:
        np.testing.assert_allclose([each["value"] for each in found], [each["value"] for each in told], rtol=1e-5, atol=1e-6)
        ends = [[each["low"], each["high"]] for each in told]
        np.testing.assert_allclose([each["ends"] for each in found], ends, rtol=1e-4, atol=1e-5)
    for number in (0, len(told) // 2):
        request = ExplainRequest("decisive", None, number, None, None)
        wanted = [Comparison(**each) for each in explain(run, str(data), request, show=False)["comparisons"]]
        reasons = opened.page.evaluate(EXPLAIN, [packed(data.read_bytes()), number])
        assert {text for text, _ in reasons} == {each.text.replace("<=", "≤") for each in wanted}
        assert any("by rank" in text for text, _ in reasons) == ("pairs" in fit)
        effects = {each.text.replace("<=", "≤"): each.effect for each in wanted}
        assert dict(reasons) == pytest.approx(effects, rel=1e-3, abs=1e-5)
        assert [abs(effect) for _, effect in reasons] == sorted((abs(effect) for _, effect in reasons), reverse=True)
    assert opened.problems == []


HEAD = "a,trial,b\n"
ROWS = [f"{number - 5},x,{number / 8}" for number in range(12)]
FILES = {
    "plain": HEAD + "\n".join(ROWS),
    "beyond the ends": HEAD + "\n".join([*ROWS, "1e9,x,-1e300", "-1e9,x,32767.5", "4.5,x,-5.5"]),
    "two recordings": HEAD + "\n".join([*ROWS, *(row.replace("x", "y") for row in ROWS), *ROWS]),
    "quotes and lines": '"a", "trial" , "b"\r\n' + "\r\n".join(row.replace("x", '"x ""1""\r\n, z"') for row in ROWS) + "\r\n",
    "blank lines": "\n \n" + HEAD + "\n\n,,\n".join(ROWS) + "\n\n",
    "decimal commas": HEAD.replace(",", ";") + "\n".join(row.replace(",", ";").replace(".", ",") for row in ROWS),
    "points after all": HEAD.replace(",", ";") + "\n".join(row.replace(",", ";").replace("x", "1,5") for row in ROWS),
    "tabs": HEAD.replace(",", "\t") + "\r".join(row.replace(",", "\t") for row in ROWS),
    "bars and spaces": HEAD.replace(",", " | ") + "\n".join(row.replace(",", " |\u00a0") for row in ROWS),
    "other columns": "time,b,trial,more,a\n" + "\n".join(f"one,.5,{number // 9},\"{number},5\",{number}" for number in range(20)),
    "no recordings": "b,a\n" + "\n".join(f"{number}e-1,+{number}." for number in range(9)),
    "a comma at each end": "a,trial,b,\n" + "\n".join(f"{row}," for row in ROWS),
    "half steps": HEAD + "\n".join(f"{number}.5,x,{number / 1000 + 0.0005}" for number in range(-9, 9)),
    "no header": "\n".join(ROWS),
    "empty": "",
    "header alone": HEAD,
    "a missing sample": HEAD + "\n".join([*ROWS, ",x,2"]),
    "a word for none": HEAD + "\n".join([*ROWS, "1,x,NaN"]),
    "a word of the run": HEAD + "\n".join([*ROWS, "1,x,-999"]),
    "a word": HEAD + "\n".join([*ROWS, "one,x,1"]),
    "infinity": HEAD + "\n".join([*ROWS, "1e999,x,1"]),
    "an underscore": HEAD + "\n".join([*ROWS, "1_0,x,1"]),
    "a price": HEAD + "\n".join([*ROWS, "$5,x,1"]),
    "a recording without a name": HEAD + "\n".join([*ROWS, "1,,1"]),
    "too few": HEAD + "\n".join(ROWS[:7]),
    "too few in each": HEAD + "\n".join(row.replace("x", str(number // 5)) for number, row in enumerate(ROWS)),
    "ragged": HEAD + "\n".join([*ROWS, "1,2"]),
    "twice": "a,z,b,z\n" + "\n".join(f"{row},1" for row in ROWS),
    "another name": HEAD.replace("b", "c") + "\n".join(ROWS),
    "open quote": HEAD + "\n".join(ROWS) + '\n1,"x,1\n2,y,2',
}  # fmt: skip


def test_reads_files_as_python_does(open_page: OpenPage, tmp_path: Path) -> None:
    windows = SignalWindows(8, 3, (SignalColumn("a"), SignalColumn("b", 3)), 16, "trial")
    model = tiny(windows)
    model.model.metadata["missing"] = ["-999"]
    opened = open_page(model_page(model, "page"))
    refused = set()
    for name, text in FILES.items():
        for kind in ("utf-8", "utf-8-sig", "utf-16"):
            path = tmp_path / "data.csv"
            path.write_bytes(data := text.encode(kind))
            samples, begins, message = opened.page.evaluate(READ, packed(data))
            try:
                file = read_table_file(path)
                rows = window_rows(file, windows, ["-999"])
            except DataError:
                assert message, name
                refused.add(name)
                continue
            assert message == "", name
            values = np.array([[float(cell) for cell in file.columns[each.name]] for each in windows.signals]).T
            assert np.array(samples).T.tolist() == windows.samples(values).tolist(), name
            assert begins == rows.series.tolist(), name
    assert refused == set(list(FILES)[list(FILES).index("empty") :]) | {"no header"}
    assert opened.page.evaluate(READ, packed(HEAD.encode() + b"1,\xff,2\n"))[2].startswith("the file is not UTF-8")


def test_answers_windows_of_the_largest_samples(open_page: OpenPage) -> None:
    windows = SignalWindows(131, 50, (SignalColumn("a", 1), SignalColumn("b")), 32)
    model, (low, high) = tiny(windows), windows.ends
    samples = np.random.default_rng(1).integers(low // 2, high // 2, (9 * 131, 2))
    text = "\n".join(["a,b", *(f"{a / 10:.1f},{b}" for a, b in samples.tolist())])
    found = open_page(model_page(model, "page")).page.evaluate(PREDICT, packed(text.encode()))
    inputs = windows.inputs(samples, np.arange(0, 8 * 131 + 1, 50))
    wanted = stage_sums(model.stages[0], model.quantise(torch.from_numpy(inputs)).numpy())  # type: ignore[arg-type]
    assert [each["scores"] for each in found] == wanted.tolist()
    assert len({tuple(row) for row in wanted.tolist()}) > 9


def test_gates_answer_and_say_what_they_would_without_an_input(open_page: OpenPage, tmp_path: Path) -> None:
    random, t = np.random.default_rng(0), np.arange(50)
    y = np.arange(60) % 3
    x = np.sin(t * (0.2 + 0.3 * y[:, None]))[:, None] + random.normal(0, 0.3, (60, 1, 50))
    features = WindowFeatures(signals=["a"], decimals=3).fit(x)
    model = GateClassifier(n_tables=30, max_epochs=4, random_state=0, n_jobs=1).fit(features.transform(x), y)
    features.save(model, tmp_path / "model")
    path = files(tmp_path, data="a\n" + "\n".join(f"{value:.3f}" for value in x[:9].ravel()))["data"]
    opened = open_page(model_page(whole(tmp_path / "model"), "page"))
    found = opened.page.evaluate(PREDICT, packed(path.read_bytes()))
    told = predict(tmp_path / "model", PredictRequest([str(path)]), show=False)["predictions"]
    assert [each["best"] for each in found] == [each["number"] for each in told]
    chances = [each["probabilities"] for each in told]
    np.testing.assert_allclose([each["chances"] for each in found], chances, rtol=1e-5, atol=1e-7)
    given = torch.from_numpy(features.transform(x[2:3])[0])  # window 4, as one begins every 25 rows
    fallen = attribute_class(model.model_, given, told[4]["number"], "occlusion").relevance.tolist()
    sums = dict(zip(features.windows_.titles, fallen, strict=True))
    for text, effect in opened.page.evaluate(EXPLAIN, [packed(path.read_bytes()), 4]):
        assert sums.pop(text.split(" = ")[0]) == pytest.approx(effect, abs=1e-5)
    assert not any(sums.values())


def test_a_kind_that_the_page_does_not_know_is_refused_where_tables_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = SignalWindows(8, 4, (SignalColumn("a"),))
    model, known = tiny(windows), page_windows.page_kinds()
    assert known == set(WINDOW_KINDS)
    sources = model.model.encoding.source.tolist()
    asked = [windows.features[at].kind for at, (codes, _) in zip(sources, asked_edges(model), strict=True) if len(codes)]
    monkeypatch.setattr(page_windows, "page_kinds", lambda: known - {asked[0]})
    with pytest.raises(ArgumentError, match=f"'{asked[0]}' of windows, which a page cannot compute"):
        model_page(model, "page")
    monkeypatch.setattr(page_windows, "page_kinds", lambda: set(asked))
    assert "window.lutetia" in model_page(model, "page")


BY = "data.series=trial"
HELD = [(BY,), (BY, "data.test=0"), (BY, "data.step=50", "data.signals={c=0}"), ("data.step=9",), ("data.leave_out=['c']",)]


@pytest.mark.parametrize("settings", HELD)
def test_the_page_holds_rows_that_were_held_out(settings: tuple[str, ...], tmp_path: Path) -> None:
    run, data = trained(tmp_path, "class", *settings)
    model = load(run)
    windows, found = signal_windows(model.metadata), run_rows(run, model)
    assert windows is not None
    assert not isinstance(found, str)
    assert found.said == f"Rows of data.csv that were {'fitted' if 'data.test=0' in settings else 'held out'}"
    lines = data.read_text().replace(",", ".").splitlines()[1:]
    places = [{'a, "b"': 0, "c": 3}[signal.name] for signal in windows.signals]
    every = windows.samples(np.array([[line.rsplit(";", 3)[at] for at in places] for line in lines], float))
    ends = [*found.begins[1:], len(found.samples)]
    for name, begin, end in zip(found.names, found.begins, ends, strict=True):
        first, last = map(int, name.split("rows ")[1].replace(",", "").split(" to "))
        assert found.samples[begin:end].tolist() == every[first : last + 1].tolist()
        assert last - first + 1 >= windows.length
        assert name.startswith(f"trial {first // 130}, x: rows" if BY in settings else "rows")
        assert last // 130 == first // 130 or BY not in settings
    starts = [start for begin, end in zip(found.begins, ends, strict=True) for start in range(begin, end - windows.length + 1)]
    shown = {tuple(row) for row in windows.inputs(found.samples, np.array(starts)).tolist()}
    measured = open_run_data(run, None, model)
    assert isinstance(measured, Measured)
    assert measured.train is not None
    assert shown & set(map(tuple, measured.x.tolist()))
    assert ("data.test=0" in settings) == bool(shown & set(map(tuple, measured.train[0].tolist())))
    (tmp_path / "data.csv").unlink()
    assert "cannot be opened" in str(run_rows(run, model))


def test_rows_of_two_recordings_are_two_parts(tmp_path: Path) -> None:
    """The last window of one ends where the first of the next begins, and one person made both."""
    random = np.random.default_rng(0)
    rows = [f"{random.normal():.3f},{trial},{trial // 2},{'ab'[row // 20]}" for trial in range(8) for row in range(40)]
    data = files(tmp_path, data="\n".join(["x,trial,person,y", *rows]))["data"]
    asked = ["data.window=20", "data.step=20", "data.series=trial", "data.split=groups", "data.split_by=person"]
    config = guess_windows(data, read_table_file(data), "y", None, asked)
    windows = SignalWindows(20, 20, (SignalColumn("x", 3),), 16, "trial")
    found = held_rows(make_table_config(config.to_dict(), "config"), tmp_path, windows)
    assert found.begins == [0, 40]
    first = int(found.names[0].split()[1][:-1])
    assert found.names == [f"trial {first + at}: rows {(first + at) * 40} to {(first + at) * 40 + 39}" for at in range(2)]


# ---- what a reader sees and does -------------------------------------------------------------------------------------

NAMES = "Array.from(document.querySelectorAll('{}'), (each) => each.textContent)"


def files(folder: Path, **texts: str) -> dict[str, Path]:
    """Files of these texts, by name."""
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.csv" for name in texts}


def test_a_file_is_opened_and_a_window_is_chosen(open_page: OpenPage, tmp_path: Path) -> None:
    run, data = trained(tmp_path, "class")
    model = load(run)
    model.metadata = {**model.metadata, "classes": ["<b>slow", "fast & <i>"]}
    save(model, tmp_path / "other")
    opened = open_page(model_page(whole(tmp_path / "other"), "<i>signals"))
    page = opened.page
    assert "made up" in (page.locator("#opened").text_content() or "")
    assert page.locator("#example").is_hidden()
    page.locator("#file").set_input_files(data)
    page.get_by_text("data.csv: 1,560 rows, 192 windows.").wait_for()
    told = predict(run, PredictRequest([str(data)]), show=False)["predictions"]
    names = ["<b>slow", "fast & <i>"]
    counts = [f"{name}: {sum(each['number'] == number for each in told)} windows" for number, name in enumerate(names)]
    assert page.evaluate(NAMES.format("#legend li")) == counts
    for number in (1, 2, 191):
        page.locator("#chart").focus()
        page.keyboard.press("ArrowRight") if number < 3 else page.evaluate("document.querySelector('#part').selectedIndex = 0")
        if number == 191:
            box = page.locator("#chart svg").bounding_box()
            assert box is not None
            page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 20)
        assert (page.locator("#which").text_content() or "").startswith(
            f"Window {number}: {told[number]['input'].split(' ', 1)[1]}"[:18]
        )
        assert page.locator("#answer").text_content() == names[told[number]["number"]]
        best = max(told[number]["probabilities"])
        assert (page.locator("#scores .best").text_content() or "").endswith(f"{best:.1%}")
        assert page.locator("#scores li").first.get_attribute("class") == "best"
    assert page.locator("#after").is_disabled()
    assert (page.locator("#which").text_content() or "").endswith(", in 11, x")
    for name in ("closer", "closer"):
        page.locator(f"#{name}").click()
    box = page.locator("#chart svg").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 3, box["y"] + 20)
    seen = int((page.locator("#which").text_content() or "").split(":")[0].split()[1])
    assert 130 < seen < 160  # a quarter of the recording is in sight, the last
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 20)
    first = explain(run, str(data), ExplainRequest("decisive", None, 191, None, None), show=False)["comparisons"][0]
    assert page.locator("#loud button").first.get_attribute("title") == Comparison(**first).text.replace("<=", "≤")
    assert opened.requests == [page.url]
    assert opened.problems == []


def test_samples_in_another_unit_are_warned_of(open_page: OpenPage, tmp_path: Path) -> None:
    run, data = trained(tmp_path, "class")
    model = whole(run)
    known, windows = model.model.metadata, signal_windows(model.model.metadata)
    assert windows is not None
    page = open_page(model_page(model, "page")).page
    head, *lines = data.read_text().replace(",", ".").splitlines()
    scaled = {
        factor: [f"{factor * float(line.split(';')[0]):.3f};{line.split(';', 1)[1]}" for line in lines] for factor in (1, 2, 9)
    }
    texts = {f"times{factor}": "\n".join([head.replace(".", ","), *own]) for factor, own in scaled.items()}
    asked = [at for at, (codes, _) in zip(model.model.encoding.source.tolist(), asked_edges(model), strict=True) if len(codes)]
    low, high = (np.array(known[f"input_{end}"])[asked] for end in ("low", "high"))
    counts, is_near = [], False
    for path in files(tmp_path, **texts).values():
        page.locator("#file").set_input_files(path)
        page.get_by_text(f"{path.name}: 1,560 rows, 192 windows.").wait_for()
        inputs = window_rows(read_table_file(path), windows).inputs[:, asked]
        beyond = np.maximum(low - inputs, inputs - high) / (high - low)
        row, worst = divmod(int(beyond.argmax()), len(asked))
        counts.append(int((beyond > 1).any(1).sum()))
        is_near |= bool(((beyond.max(1) > 1) & (beyond.max(1) < 2)).any())
        told = re.fullmatch(r"(\d+) of 192 windows lie far outside the training data: (.+) is (\S+) in rows (\S+) to .+",
                            page.locator("#warned").text_content() or "")  # fmt: skip
        assert (told is not None) == bool(counts[-1])
        if told is not None:
            assert (int(told[1]), told[2]) == (counts[-1], windows.titles[asked[worst]])
            assert float(told[3].replace(",", "")) == pytest.approx(inputs[row, worst], rel=1e-5)
    assert is_near
    assert counts[0] < counts[2]


def test_a_file_that_cannot_be_read_is_refused_by_name(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(model_page(tiny(SignalWindows(8, 4, (SignalColumn("<a>"),), 16, "trial")), "page")).page
    shown = page.locator("#chart").inner_html()
    for path, text in files(tmp_path, word="<a>\n1\n<img src=x>\n", short="<a>\n1\n2\n", other="b\n1\n2\n").items():
        page.locator("#file").set_input_files(text)
        page.locator("#opened.bad").wait_for()
        wanted = {
            "word": "line 3, column “<a>”: “<img src=x>”, expected",
            "short": "no window of 8 rows",
            "other": "no column “<a>”",
        }
        page.get_by_text(wanted[path]).wait_for()
    assert page.locator("#chart").inner_html() == shown  # what was shown before stays
    assert page.locator("#opened img").count() == 0


def test_marks_are_where_a_feature_looks(open_page: OpenPage) -> None:
    windows = SignalWindows(30, 30, (SignalColumn("a"),))
    x = np.random.default_rng(0).integers(-50, 50, 60)
    opened = open_page(model_page(tiny(windows), "page"))
    found = opened.page.evaluate("(samples) => lutetia.marks(Int32Array.from(samples), 17)", x.tolist())
    own = x[17:47]
    level, least, most = {"level": own.mean()}, {"place": int(own.argmin())}, {"place": int(own.argmax())}
    wanted: dict[str, Any] = {"mean": [level], "deviation": [level], "crossings": [level], "change": [], "agreement": [level]}
    wanted |= {"minimum": [least], "maximum": [most], "range": [most, least]}
    wanted |= {"place of the minimum": [least], "place of the maximum": [most]}
    for feature, marks in zip(windows.features, found, strict=True):
        if feature.kind in wanted:
            assert marks == wanted[feature.kind]
            continue
        parts = 4 if feature.kind.startswith("quarter") else 8
        begin, end = feature.at * 30 // parts, (feature.at + 1) * 30 // parts
        ends = [{"place": begin + int(own[begin:end].argmax())}, {"place": begin + int(own[begin:end].argmin())}]
        more = {"quarter range": ends, "part above": [level]}.get(feature.kind, [])
        assert marks == [{"span": [begin, end]}, *more]


@pytest.mark.parametrize(("length", "bits"), [(9, 16), (50, 32)])
def test_shapes_are_counted_and_marked_as_in_python(open_page: OpenPage, length: int, bits: int) -> None:
    random, most = np.random.default_rng(length), most_apart(length)
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    drawn = random.integers((0, 0, 1), (2, 84, most + 1), (30, 3)).tolist()
    shapes = (*{SignalShape(*each, int(random.normal(0, high / 2))) for each in drawn}, SignalShape(1, 40, 1, -3))
    windows = SignalWindows(length, length, (SignalColumn("a"), SignalColumn("b", 2)), bits, None, shapes)
    samples = np.concatenate([random.integers(low, high + 1, length), random.integers(-4, 5, length)])
    model = tiny(windows)
    opened, sources = open_page(model_page(model, "page")), model.model.encoding.source.tolist()
    features = dict.fromkeys([*windows.features, *(windows.columns[column][1] for column in sources)])
    asked = [(at, shapes[each.at]) for at, each in enumerate(features) if each.kind == "shape"]
    assert len(asked) > 20
    call = "([samples, start]) => lutetia.{}(Int32Array.from(samples), start)"
    for start in (0, length // 2, length):
        found, marks = (opened.page.evaluate(call.format(what), [samples.tolist(), start]) for what in ("measure", "marks"))
        own = [shape._replace(signal=0) for _, shape in asked]
        assert [found[at] for at, _ in asked] == shape_counts(samples[:, None], np.array([start]), own, length)[0].tolist()
        for at, shape in asked:
            x, places = samples[start : start + length], np.arange(length - shape.width + 1)
            nine = np.array([x[places + k * shape.apart] for k in range(9)])
            best = int((3 * nine[list(SHAPE_KERNELS[shape.kernel])].sum(0) - nine.sum(0)).argmax())
            assert marks[at] == [{"span": [best, best + shape.width]}]


@pytest.mark.parametrize("target", ["class", "number"])
def test_a_page_of_shapes_answers_as_the_model_does(open_page: OpenPage, target: str, tmp_path: Path) -> None:
    run, data = trained(tmp_path, target, BY, "data.shapes=true")
    opened = open_page(model_page(whole(run), "page"))
    found = opened.page.evaluate(PREDICT, packed(data.read_bytes()))
    told = predict(run, PredictRequest([str(data)]), show=False)["predictions"]
    key = "number" if target == "class" else "value"
    np.testing.assert_allclose(
        [each["best" if target == "class" else "value"] for each in found], [each[key] for each in told], rtol=1e-4
    )
    reasons = opened.page.evaluate(EXPLAIN, [packed(data.read_bytes()), 0])
    assert any(": share of " in text for text, _ in reasons)


def test_a_file_is_dropped(open_page: OpenPage) -> None:
    opened = open_page(model_page(tiny(SignalWindows(8, 4, (SignalColumn("a"),))), "page"))
    text = "a\n" + "\n".join(map(str, range(12)))
    given = "(text) => { const held = new DataTransfer(); held.items.add(new File([text], 'dropped.csv')); return held; }"
    held = opened.page.evaluate_handle(given, text)
    opened.page.locator("#chart").dispatch_event("drop", {"dataTransfer": held})
    opened.page.get_by_text("dropped.csv: 12 rows, 2 windows.").wait_for()
    opened.page.locator("#example").click()
    opened.page.get_by_text("made up, as none of the model's data is here: 48 rows, 11 windows.").wait_for()
    assert opened.problems == []


def test_what_a_reason_looks_at_is_marked(open_page: OpenPage) -> None:
    windows = SignalWindows(40, 40, (SignalColumn("a", 1), SignalColumn("b")))
    opened = open_page(model_page(tiny(windows), "page"))
    page, kinds = opened.page, set()
    marks = {"part": ".span", "quarter": ".span", "place": ".spot", "minimum": ".spot", "mean": ".level", "crossings": ".level"}
    for number in range(2):
        for at in range(page.locator("#loud button").count()):
            button = page.locator("#loud button").nth(at)
            button.click()
            assert button.get_attribute("aria-pressed") == "true"
            title = button.get_attribute("title") or ""
            assert (page.locator("#looked").text_content() or "").split(" is ")[0] in title
            wanted = next((mark for word, mark in marks.items() if word in title), None)
            if wanted is not None:
                assert page.locator(f"#detail {wanted}").count() >= 1
                kinds.add(wanted)
        page.locator("#after").click() if number < 1 else None
    assert kinds
    assert opened.problems == []


def test_many_signals_are_drawn_as_they_are_chosen(open_page: OpenPage) -> None:
    windows = SignalWindows(9, 4, tuple(SignalColumn(f"signal {number}") for number in range(60)), 16)
    opened = open_page(model_page(tiny(windows), "page"), 390, 800)
    page = opened.page
    assert page.locator("#chart .signal").count() == 6
    page.locator("#shown").click()
    boxes = page.locator("#lanes input")
    assert boxes.count() == 60
    free = next(number for number in range(60) if not boxes.nth(number).is_checked())
    boxes.nth(free).check()
    assert page.locator("#chart .signal").count() == 7
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.problems == []


@pytest.mark.parametrize(("target", "width", "scheme"), [("class", 1280, "dark"), ("number", 390, "light")])
def test_fits_and_has_no_serious_fault(open_page: OpenPage, target: str, width: int, scheme: str, tmp_path: Path) -> None:
    run, _ = trained(tmp_path, target, intervals=target == "number")
    told = write_page(run, tmp_path / "page.html", None)
    assert told["example"] == "Rows of data.csv that were held out"
    opened = open_page((tmp_path / "page.html").read_text(encoding="utf-8"), width, 900, scheme)
    opened.page.locator("#detail svg").wait_for()
    assert opened.page.locator(".answer" if target == "number" else ".band").count() >= 1
    for name in ("closer", "closer", "after", "wider", "whole"):
        opened.page.locator(f"#{name}").click()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(opened.page) == []
    assert opened.problems == []

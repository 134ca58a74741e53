"""Results are data: every saved file has one form, and the pages say what the files say."""

from __future__ import annotations

import ast
import copy
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAVED = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.fixture(scope="module")
def modules() -> Any:
    """benchmarks/results.py and tools/make_results.py; the names they share with tests are theirs for a while."""
    paths, names = [str(ROOT / "benchmarks"), str(ROOT / "tools")], set(sys.modules)
    sys.path[:0] = paths
    try:
        yield importlib.import_module("results"), importlib.import_module("make_results")
    finally:
        for path in paths:
            sys.path.remove(path)
        for name in set(sys.modules) - names:
            if name.startswith(("results", "make_results")):
                del sys.modules[name]


@pytest.fixture
def results(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[0]


@pytest.fixture
def make_results(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[1]


def small(results: ModuleType) -> dict[str, Any]:
    table = results.table("t", {"shape": None, "time": "ms"}, [{"shape": "B1", "time": 1.5}, {"shape": "B2", "time": [1.0, 2.0]}])
    return dict(
        results.result("It is fast.\n\nMore.", "small", {"n": 1}, [table], peers=[results.peer("torch", "torch", "eager")])
    )


# ---- the form --------------------------------------------------------------------------------------------------------


def test_there_are_results() -> None:
    assert len(SAVED) >= 15


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_every_saved_result_has_the_form(results: ModuleType, path: Path) -> None:
    found = results.load(path)
    assert found["claim"]
    assert found["sources"]
    assert not found["settings"].get("quick")
    for table in found["tables"]:
        assert table["rows"], table["name"]
    for name, source in found["sources"].items():  # a source says where it comes from: a commit that was run, or a note
        assert source["commit"] or source["note"], name


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_a_saved_claim_is_what_the_benchmark_claims_now(results: ModuleType, path: Path) -> None:
    benchmark = ROOT / "benchmarks" / f"{path.stem}.py"
    if benchmark.exists():
        docstring = ast.get_docstring(ast.parse(benchmark.read_text(encoding="utf-8")))
        assert docstring is not None
        assert results.load(path)["claim"] == docstring.splitlines()[0]
    else:
        assert not (results.load(path)["command"] or "").startswith("lutetia bench")


def test_a_result_knows_its_machine(results: ModuleType) -> None:
    found = small(results)
    run = found["sources"]["run"]
    assert run["machine"]["cores"] > 0
    assert run["versions"]["torch"]
    assert len(run["date"]) == 10
    assert found["claim"] == "It is fast."
    assert found["peers"][0]["version"] == run["versions"]["torch"]
    assert [row["source"] for row in found["tables"][0]["rows"]] == ["run", "run"]


BROKEN = {
    "a key too few": (lambda found: found.pop("peers"), "expected the keys"),
    "another schema": (lambda found: found.update(schema=2), "the schema is 2, expected 1"),
    "a row from nowhere": (
        lambda found: found["tables"][0]["rows"][0].update(source="x"),
        r"source 'x', expected one of \['run'\]",
    ),
    "an unknown column": (lambda found: found["tables"][0]["rows"][0].update(more=1), r"\['more'\], expected columns of"),
    "not a number": (lambda found: found["tables"][0]["rows"][0].update(time=float("nan")), "expected a finite number"),
    "a text in a list": (lambda found: found["tables"][0]["rows"][0].update(time=[1, "2"]), "expected a finite number"),
    "an empty list": (lambda found: found["tables"][0]["rows"][0].update(time=[]), "expected a finite number"),
    "a source without a date": (lambda found: found["sources"]["run"].pop("date"), "source run"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_has_another_form_is_refused(results: ModuleType, name: str) -> None:
    change, message = BROKEN[name]
    found = copy.deepcopy(small(results))
    results.check(found, "small")
    change(found)
    with pytest.raises(ValueError, match=message):
        results.check(found, "small")


def test_a_result_is_saved_whole(results: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "new" / "small.json"
    results.save(path, small(results))
    assert results.load(path) == small(results)
    assert [each.name for each in path.parent.iterdir()] == ["small.json"]
    path.rename(path.with_stem("other"))
    with pytest.raises(ValueError, match="holds the result of 'small', expected 'other'"):
        results.load(path.with_stem("other"))
    path.write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        results.load(path)


def test_a_quick_run_measures_nothing(results: ModuleType, make_results: ModuleType, tmp_path: Path) -> None:
    found = {**small(results), "missed": ["all"]}
    options = results.options_of("x").parse_args(["--quick", "--json", "--save", str(tmp_path / "small.json")])
    assert results.finish(found, options) == 0
    with pytest.raises(ValueError, match="of a quick run"):
        make_results.read(tmp_path)
    assert results.finish(found, results.options_of("x").parse_args(["--json"])) == 1


@pytest.mark.parametrize(
    ("value", "unit", "digits", "expected"),
    [
        (0.0044, "ms", 3, "0.0044"),
        (12.345, "x", 3, "12.3x"),
        (1234.5, None, 3, "1,234"),
        (10000, None, 3, "10,000"),
        (14.0, "x", 3, "14x"),
        (1.0, "x", 3, "1.0x"),
        (0.5, "x", 3, "0.50x"),
        ([1.5, 0.5], "x", 2, "0.50–1.5x"),
        ([2.0, 2.0], "x", 2, "2.0x"),
        (None, "x", 3, ""),
        (True, None, 3, "yes"),
        (98.18, "%", 4, "98.18%"),
        (-0.01, None, 2, "-0.010"),
        (0.0, None, 3, "0.00"),
        (100.0, None, 3, "100"),
    ],
)
def test_numbers_for_the_eye(results: ModuleType, value: Any, unit: str | None, digits: int, expected: str) -> None:
    assert results.text_of(value, unit, digits) == expected


def test_the_tables_print(results: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    results.show({**small(results), "missed": ["a claim"]})
    said = capsys.readouterr().out
    assert "time (ms)" in said
    assert "1.0–2.0" in said
    assert "missed: a claim" in said
    assert "peer: torch" in said


# ---- mode for mode ---------------------------------------------------------------------------------------------------


def test_the_originals_times_stand_in_the_files_as_they_are(results: ModuleType) -> None:
    original = importlib.import_module("original")
    for name, times in (("lut_step", original.STEP), ("lut_attention", original.ATTENTION)):
        rows = [
            row for row in results.rows_of(results.load(results.FOLDER / f"{name}.json"), "layers") if "train, graph/graph" in row
        ]
        assert len(rows) == len(times) == 5
        for row, expected in zip(rows, times.values(), strict=True):
            ours = {key: row[key] for key in original.COLUMNS if key in row and "/" not in key and not key.startswith("original")}
            assert original.beside(ours, expected) == {key: row[key] for key in original.COLUMNS if key in row}


def test_the_smallest_layer_is_compared_mode_for_mode(results: ModuleType) -> None:
    """Eager with eager, graph with graph: dividing our graph's time into the original's eager time would give 35x here."""
    row = results.rows_of(results.load(results.FOLDER / "lut_step.json"), "layers")[0]
    for mode, original in (("eager", 0.599), ("graph", 0.0699)):  # its training steps in ms
        assert row[f"train, {mode}/{mode}"] == pytest.approx(original / row[f"train, {mode}"], rel=1e-3)


# ---- the pages -------------------------------------------------------------------------------------------------------


def test_the_pages_say_what_the_files_say(make_results: ModuleType) -> None:
    for path, text in make_results.make(make_results.read(make_results.FOLDER)).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: run `make results` and look at what changed"


@pytest.mark.parametrize("name", [path.stem for path in SAVED])
def test_a_changed_number_changes_a_page(make_results: ModuleType, name: str) -> None:
    """No file is saved in vain: when its numbers differ, so does a page."""
    found = make_results.read(make_results.FOLDER)
    before = make_results.make(found)
    for table in found[name]["tables"]:
        for row in table["rows"]:
            row.update({key: 12345.0 for key, cell in row.items() if isinstance(cell, int | float | list) and cell is not True})
    assert make_results.make(found) != before


def test_flashinfer_is_on_the_page_where_it_was_measured(make_results: ModuleType) -> None:
    """Its columns and its sentence, with numbers of our own making; neither where a run had none of it."""
    found = make_results.read(make_results.FOLDER)
    result = found["decode_attention"]
    tables = {table["name"]: table["rows"] for table in result["tables"]}
    result["peers"] = [each for each in result["peers"] if each["name"] != "FlashInfer"]
    tables["eager call"][:] = [row for row in tables["eager call"] if not row["call"].startswith("FlashInfer")]
    for row in (row for rows in tables.values() for row in rows):
        for key in [key for key in row if key.startswith("FlashInfer")]:
            del row[key]

    def section() -> str:
        page = make_results.make(found)[make_results.ROOT / "docs" / "results.md"]
        return str(page).partition("## Decode attention on a GPU")[2].partition("## Decode attention on two")[0]

    assert "SDPA cuDNN" in section()
    assert "FlashInfer" not in section()
    result["peers"].append({"name": "FlashInfer", "version": "0.7", "mode": None, "constant": None})
    result["tables"][0]["columns"]["FlashInfer / Lutetia"] = "x"
    tables["dense"][0] |= {"FlashInfer": 12.34, "FlashInfer / Lutetia": 0.5}
    tables["cascade"][0] |= {"FlashInfer": 10.0, "FlashInfer / Lutetia": 0.25}
    tables["pages and fp8"][0] |= {"pages of 16": 2.0, "FlashInfer, pages of 16": 3.0}
    plan, call = "FlashInfer plan, once for all layers", "FlashInfer XQA"
    tables["eager call"] += [{"source": "run", "call": plan, "time": 1.0}, {"source": "run", "call": call, "time": 77.0}]
    text = " ".join(section().split())
    assert "|12.34|0.50x|" in text
    assert (
        "FlashInfer 0.7 takes, in multiples of our time and with the fastest of its kernels, 1.5 in pages of 16, 0.25 with"
        in text
    )
    assert "Its eager call takes 77 µs, without planning." in text


def test_what_stands_in_two_files_is_the_same(results: ModuleType) -> None:
    """torchlogix's circuits of MNIST, means of three seeds: beside those of others, and over the number of LUTs."""
    files = {name: results.load(results.FOLDER / f"{name}.json") for name in ("circuits", "mnist_circuits")}
    rows = results.rows_of(files["circuits"], "circuits")
    rows = [row for row in rows if (row["set"], row["method"]) == ("mnist", "torchlogix")]
    counted = [(round(row["accuracy"], 2), round(row["LUT6"])) for row in rows]
    rows = results.rows_of(files["mnist_circuits"], "circuits")
    assert counted == [(row["accuracy"], row["LUTs"]) for row in rows if row["network"].startswith("torchlogix")] != []


def test_every_block_has_one_place(make_results: ModuleType) -> None:
    page = "above\n<!-- results:begin -->\nold\n<!-- results:end -->\nbelow\n"
    assert make_results.put(page, {"": "new"}, "p") == page.replace("old", "\nnew\n")
    for blocks in ({}, {"": "x", "more": "y"}):
        with pytest.raises(ValueError, match="p has places for"):
            make_results.put(page, blocks, "p")


def test_check_writes_nothing(make_results: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "results.md"
    monkeypatch.setattr(make_results, "ROOT", tmp_path)
    monkeypatch.setattr(make_results, "make", lambda found: {page: "text"})
    assert make_results.main(["--check"]) == 1
    assert not page.exists()
    assert make_results.main([]) == 0
    assert page.read_text() == "text"
    assert make_results.main(["--check"]) == 0

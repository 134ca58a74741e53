"""Intervals of a number in whole numbers: Python, C and the page give the same ends, as wide as those of the float model."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from whole import numbers, regression

from lutetia._shared.numbers import short_number
from lutetia.errors import ArgumentError
from lutetia.models import Tabular
from lutetia.precompute import c_files, c_memory, integer_model, model_page
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.intervals import stage_sums
from tools import require_tool

if TYPE_CHECKING:
    from browser import OpenPage

pytest_plugins = ["browser"]
FLAGS = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"]


def widths(model: Tabular, x: torch.Tensor) -> np.ndarray:
    """Of codes x [n, n_inputs], by the layers of the model."""
    assert model.spread is not None
    return (model.metadata["spread_90"] * model.spread(x.float())[:, 0].clamp(min=0.2)).double().detach().numpy()


def whole_model(model: Tabular, bits: int = 8) -> IntegerClassifier:
    whole = integer_model(model, weight_bits=bits)
    assert isinstance(whole, IntegerClassifier)
    return whole


@pytest.mark.parametrize("bits", [2, 5, 8, 12, 16, 24])
@pytest.mark.parametrize("bound", [40.0, 0.3, 0.0, 1e6])
def test_half_widths_are_those_of_the_float_model(bits: int, bound: float) -> None:
    """Off by half a unit, and by half a fine one for each table."""
    model = regression(spread_90=bound, error_90=3.0)
    whole, x = whole_model(model, bits), numbers(4, 8, 500)
    width, unit = whole.half_width, float(whole.graph.output_edge.scale[0])
    assert width is not None
    assert width.stage is not None
    wanted = widths(model, x)
    assert bound == 0 or 0.1 < (wanted <= 0.2001 * bound).mean() < 0.9
    most = 0.501 + 0.5 * len(width.stage.contents) / 2**width.shift + 1e-6 * wanted.max() / unit
    assert np.abs(width(x.numpy()) - wanted / unit).max() <= most
    assert max(int(contents.max()) for contents in width.stage.contents) < 2 ** (16 if bits <= 8 and bound < 100 else 31)


def test_the_sums_of_a_stage_are_those_of_the_graph() -> None:
    whole, x = whole_model(regression()), numbers(4, 8, 300)
    assert stage_sums(whole.stages[0], x.numpy())[:, 0].tolist() == whole(x).tolist()


def test_one_width_for_all_rows_and_none() -> None:
    whole = whole_model(regression(error_90=12.5))
    assert whole.half_width is not None
    unit = whole.graph.output_edge.scale[0]
    assert whole.half_width(np.zeros((3, 4), np.int64)).tolist() == [round(12.5 / unit)] * 3
    assert whole_model(regression(spread_90=1.0)).half_width is not None
    assert whole_model(regression()).half_width is None
    first = integer_model(regression(spread_90=1.0, error_90=1.0), n_tables=5)
    assert isinstance(first, IntegerClassifier)
    assert first.half_width is None  # its errors are not those of all tables
    with pytest.raises(ArgumentError, match=r"intervals reach .* units of the answer to each side, expected at most"):
        _ = whole_model(regression(error_90=1e300)).half_width


@pytest.mark.parametrize("metadata", [{"spread_90": 40.0}, {"error_90": 12.5}, {"spread_90": 1e4}])
@pytest.mark.parametrize("bits", [3, 16])
def test_c_gives_the_ends(metadata: dict[str, float], bits: int, tmp_path: Path) -> None:
    whole, x = whole_model(regression(**metadata), bits), numbers(4, 8, 300)
    for name, text in c_files(whole).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    subprocess.run([require_tool("gcc", "cc"), *FLAGS, "model.c", "-o", "run"], cwd=tmp_path, check=True)
    given = "\n".join(",".join(map(str, row)) for row in x.tolist()) + "\n"
    done = subprocess.run([tmp_path / "run"], input=given, capture_output=True, text=True, check=True)
    assert whole.half_width is not None
    answers, width = whole(x).numpy(), whole.half_width(x.numpy())
    found = np.array([[*map(int, line.split())] for line in done.stdout.splitlines()])
    assert found.tolist() == np.stack([answers, answers - width, answers + width], 1).tolist()
    assert c_memory(whole)["flash_table_bytes"] >= c_memory(whole_model(regression(), bits))["flash_table_bytes"]


def test_a_page_gives_the_ends(open_page: OpenPage) -> None:
    model = regression(spread_90=40.0)
    whole = whole_model(model, 24)
    unit = float(whole.graph.output_edge.scale[0])
    opened = open_page(model_page(whole, "number"))
    seen = set()
    for codes in numbers(4, 4, 12).tolist():
        for number, code in enumerate(codes):
            opened.page.locator(f"#input{number}").fill(str(code))
        x = torch.tensor([opened.page.evaluate("lutetia.sample()")])
        assert whole.half_width is not None
        answer, width = int(whole(x)), int(whole.half_width(x.numpy())[0])
        ends = [short_number((answer + sign * width) * unit, 6) for sign in (-1, 1)]
        assert opened.page.locator("#answer").text_content() == short_number(answer * unit, 6)
        assert opened.page.locator("#interval").text_content() == f"{ends[0]} to {ends[1]} in 9 of 10 cases"
        assert width * unit == pytest.approx(widths(model, x)[0], rel=1e-5)
        seen.add(round(width * unit, 3))
    assert 8.0 in seen  # the least
    assert len(seen) > 3
    opened = open_page(model_page(whole_model(regression(), 24), "number"))
    assert opened.page.locator("#interval").text_content() == ""
    assert opened.problems == []


def counts(**metadata: float) -> Tabular:
    """The same model with logarithms of counts from about 4 to 20."""
    plain = regression()
    model = Tabular(replace(plain.config, loss="poisson")).eval()
    model.encoding, model.metadata = plain.encoding, metadata
    assert plain.spread is not None
    model.set_tables(plain.tables.anchors, plain.tables.weight.data / 45 - 1.5)
    model.set_tables(plain.spread.anchors, plain.spread.weight.data, model.spread)
    return model


def ends_of(model: Tabular, x: torch.Tensor) -> np.ndarray:
    """What nine in ten counts lie between, by the layers of the model: [n, 3], the prediction first."""
    middle = np.exp(model.tables(x.float())[:, 0].double().detach().numpy())
    reach = widths(model, x) if "spread_90" in model.metadata else np.full(len(x), model.metadata["error_90"])
    return np.stack([middle, np.maximum(middle - reach, 0), middle + reach], 1)


@pytest.mark.parametrize("metadata", [{"spread_90": 12.0}, {"error_90": 7.5}, {"spread_90": 0.0}])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_intervals_of_counts_in_c(metadata: dict[str, float], bits: int, tmp_path: Path) -> None:
    """C gives a logarithm and a half width of the count, each in its unit: rounded by the same part of what they are."""
    model, x = counts(**metadata), numbers(4, 8, 300)
    whole = whole_model(model, bits)
    width, unit = whole.half_width, float(whole.graph.output_edge.scale[0])
    assert width is not None
    bound = next(iter(metadata.values()))
    assert width.unit == (bound * unit or 1.0)
    for name, text in c_files(whole).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert f"#define LUTETIA_WIDTH_UNIT {width.unit!r}\n" in (tmp_path / "model.h").read_text()
    subprocess.run([require_tool("gcc", "cc"), *FLAGS, "model.c", "-o", "run"], cwd=tmp_path, check=True)
    given = "\n".join(",".join(map(str, row)) for row in x.tolist()) + "\n"
    done = subprocess.run([tmp_path / "run"], input=given, capture_output=True, text=True, check=True)
    found = np.array([[*map(int, line.split())] for line in done.stdout.splitlines()])
    assert found.tolist() == np.stack([whole(x).numpy(), width(x.numpy())], 1).tolist()
    reach = widths(model, x) if "spread_90" in metadata else np.full(len(x), bound)
    fine = 0.0 if width.stage is None else 0.5 * len(width.stage.contents) / 2**width.shift
    assert np.abs(found[:, 1] * width.unit - reach).max() <= (0.501 + fine) * width.unit + 1e-6 * reach.max()
    middle, half = np.exp(found[:, 0] * unit), found[:, 1] * width.unit
    ends = np.stack([middle, np.maximum(middle - half, 0), middle + half], 1)
    slack = 6 * unit * ends_of(model, x).max()  # nine tables, each rounded by half a unit at most, and the width
    np.testing.assert_allclose(ends, ends_of(model, x), atol=slack)


def test_intervals_of_counts_on_a_page(open_page: OpenPage) -> None:
    """They are those of the float model, to six digits, and begin at 0 at least."""
    for metadata in ({"spread_90": 30.0}, {"error_90": 9.0}):
        model = counts(**metadata)
        opened = open_page(model_page(whole_model(model, 24), "counts"))
        lows = []
        for codes in numbers(4, 4, 8).tolist():
            for number, code in enumerate(codes):
                opened.page.locator(f"#input{number}").fill(str(code))
            shown, *ends = ends_of(model, torch.tensor([opened.page.evaluate("lutetia.sample()")]))[0].tolist()
            found = [float(each) for each in re.findall(r"[\d.e+-]+", opened.page.locator("#interval").text_content() or "")[:2]]
            assert float(opened.page.locator("#answer").text_content() or "") == pytest.approx(shown, rel=1e-5)
            assert found == pytest.approx(ends, rel=1e-5, abs=1e-4)
            lows.append(found[0])
        assert min(lows) == 0 < max(lows)
        assert opened.problems == []


def test_a_sum_that_c_cannot_return_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"the sum of the tables takes \d+ bits, expected at most 32 in C: use fewer weight bits"
    ):
        c_files(whole_model(wide(), 24))
    for metadata in ({"spread_90": 1e7}, {"error_90": 1e7}):
        with pytest.raises(ArgumentError, match="the intervals of the model are too wide for its unit in C"):
            c_files(whole_model(regression(**metadata), 16))


@pytest.mark.parametrize("metadata", [{"spread_90": 1e6}, {"error_90": 1e6}])
def test_a_page_of_a_model_that_knows_nothing(metadata: dict[str, float], open_page: OpenPage) -> None:
    """Sums of more than 32 bits, and errors that are huge beside the tables."""
    model = wide()
    model.metadata = metadata
    assert c_memory(whole_model(model, 24))["flash_table_bytes"] > 9 * 8 * 4
    opened = open_page(model_page(whole_model(model, 24), "wide"))
    x = torch.tensor([opened.page.evaluate("lutetia.sample()")])
    answer, width = float(model.tables.double()(x.double()).detach()), widths(model, x)[0] if "spread_90" in metadata else 1e6
    assert opened.page.locator("#answer").text_content() == short_number(answer, 6)
    ends = [short_number(answer + sign * width, 6) for sign in (-1, 1)]
    assert opened.page.locator("#interval").text_content() == f"{ends[0]} to {ends[1]} in 9 of 10 cases"


def wide() -> Tabular:
    """Tables that differ by 70 about 100,000 each."""
    model = regression()
    model.tables.weight.data.add_(100_000)
    return model

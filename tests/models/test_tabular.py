"""`Tabular`: what its encoding gives, and its folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError, DataError
from lutetia.models import Tabular, load, save
from lutetia.models.encoding import Columns, fit_encoding
from tools import require_module


def columns(x: np.ndarray, n_categories: list[int], y: np.ndarray | None = None) -> Columns:
    target = np.zeros((len(x), 1)) if y is None else y
    return Columns(x.astype(np.float64), target, np.ones(len(x)), n_categories)


def test_numbers_become_ranks_and_missing_is_0() -> None:
    x = np.array([[3.0], [1.0], [2.0], [np.nan], [2.0]])
    encoding = fit_encoding(columns(x, [0]))
    assert encoding.codes(x)[0].tolist() == [3, 1, 2, 0, 2]
    assert encoding.codes(np.array([[-9.0], [1.4], [1.6], [99.0]]))[0].tolist() == [1, 1, 2, 3]
    assert encoding.tops().tolist() == [3]


@pytest.mark.parametrize("most", [2, 7, 255])
def test_many_values_share_quantiles(most: int) -> None:
    values = np.random.default_rng(0).exponential(size=5000)
    encoding = fit_encoding(columns(values[:, None], [0]), most)
    codes = encoding.codes(values[:, None])[0]
    assert codes.max() == most
    counts = np.bincount(codes)[1:]
    assert counts.min() > 0.5 * 5000 / most
    edges = encoding.edges[0].numpy()
    np.testing.assert_array_equal(codes, 1 + np.searchsorted(edges[np.isfinite(edges)], values, side="left"))


def test_neighbouring_numbers_stay_apart() -> None:
    low = 1.0
    high = np.nextafter(low, 2)
    x = np.array([[low], [high]])
    assert fit_encoding(columns(x, [0])).codes(x)[0].tolist() == [1, 2]


def test_categories_are_ranked_by_the_target_and_unknown_ones_are_missing() -> None:
    """Category 3 has no sample: its rank is that of category 0, whose mean is nearest to that of all."""
    x = np.array([[0.0], [0.0], [1.0], [2.0], [2.0]])
    y = np.array([[5.0], [5.0], [9.0], [1.0], [1.0]])
    encoding = fit_encoding(columns(x, [4], y))
    assert encoding.codes(np.array([[0.0], [1.0], [2.0], [3.0], [7.0], [np.nan], [0.5]]))[0].tolist() == [2, 3, 1, 2, 0, 0, 0]


@pytest.mark.parametrize(("n", "threads"), [(0, 1), (1, 2), (257, 1), (1031, 2)])
def test_the_compiled_loop_gives_what_one_comparison_after_another_gives(n: int, threads: int, monkeypatch: Any) -> None:
    require_module("numba")
    draw = np.random.default_rng(n)
    x = np.stack([draw.normal(size=400), draw.integers(-2, 3, 400), np.full(400, 7.0), draw.integers(0, 3, 400)], 1)
    encoding = fit_encoding(columns(x, [0, 0, 0, 3], draw.normal(size=(400, 1))))
    edges = encoding.edges[torch.isfinite(encoding.edges)].numpy()
    given = draw.choice(np.concatenate([edges, np.nextafter(edges, 9), [np.nan, np.inf, -np.inf, -0.0, 1e300]]), (n, 4))
    given[:, 3] = draw.choice([0.0, 1.0, 2.0, 3.0, np.nan], n)
    finite = [own[np.isfinite(own)] for own in encoding.edges.numpy()]
    slow = [[0 if value != value else 1 + sum(edge < value for edge in finite[column]) for value in given[:, column]]
            for column in range(3)]  # fmt: skip
    ranks = encoding.ranks[3].tolist()
    slow.append([ranks[int(value)] if value in (0, 1, 2) else 0 for value in given[:, 3]])
    import numba

    assert numba.__name__ in sys.modules
    read_only = np.asfortranarray(given)
    read_only.flags.writeable = False
    for values in (given, read_only):
        np.testing.assert_array_equal(encoding.codes(values, threads), slow)
    monkeypatch.delitem(sys.modules, "numba")
    np.testing.assert_array_equal(encoding.codes(given, threads), slow)
    encoding.edges[0, 0] = -9.0  # what was prepared is not kept
    assert encoding.codes(np.full((1, 4), -8.0), threads)[0] == 2


def model() -> Tabular:
    made = Tabular(input_shape=(2,), n_classes=3, n_tables=4, n_anchors=2, n_encoded=2, n_edges=1, seed=0)
    made.encoding.source.copy_(torch.tensor([0, 1]))
    made.encoding.edges.copy_(torch.tensor([[0.5], [1.5]]))
    anchors = torch.tensor([[[0, 1], [0, 3]], [[1, 0], [1, 3]], [[0, 2], [1, 2]], [[0, 1], [1, 3]]])
    made.set_tables(anchors, torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(0)))
    return made.eval()


def test_forward_is_the_sum_of_rows() -> None:
    made, x = model(), torch.tensor([[1.0, 1.0], [0.0, float("nan")], [1.0, 2.0]])
    codes = made.encode(x)
    assert codes.tolist() == [[2, 1], [1, 0], [2, 2]]
    known = torch.cat([codes, torch.arange(255.0).expand(3, -1)], 1)
    a, b = made.core.anchors.long().unbind(-1)
    rows = (known[:, a] > known[:, b]).long() @ torch.tensor([1, 2])
    wanted = sum(made.core.weight[t, rows[:, t]] for t in range(4))
    torch.testing.assert_close(made(x), wanted)


def test_saved_and_loaded(tmp_path: Path) -> None:
    made = model()
    made.metadata = {"task": "classification", "features": ["a", "b"], "categories": {"1": ["x", "y"]}}
    save(made, tmp_path / "m")
    again = load(tmp_path / "m", expected=Tabular)
    x = torch.tensor([[0.7, 1.4], [0.1, 9.0]])
    assert torch.equal(again(x), made(x))
    assert again.metadata["categories"] == {"1": ["x", "y"]}


@pytest.mark.parametrize(
    "wrong", [{"categories": {"9": ["x"]}}, {"categories": ["x"]}, {"categories": {"0": [None]}}, {"target": 3}]
)
def test_metadata_that_cannot_be(wrong: dict, tmp_path: Path) -> None:
    made = model()
    made.metadata = wrong
    with pytest.raises(ArgumentError, match="metadata"):
        save(made, tmp_path / "m")


def test_a_folder_whose_encoding_points_outside_is_refused_before_it_reads_there(tmp_path: Path) -> None:
    made = model()
    made.encoding.source[1] = 7
    with pytest.raises(ArgumentError, match="source"):
        made(torch.zeros(1, 2))


def test_a_folder_of_another_size_is_refused(tmp_path: Path) -> None:
    save(model(), tmp_path / "m")
    file = tmp_path / "m" / "config.toml"
    file.write_text(file.read_text().replace("n_tables = 4", "n_tables = 5"))
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest
    with pytest.raises(DataError):
        load(tmp_path / "m")

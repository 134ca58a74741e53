"""Synapses against loops over neurons: groups, blocks, weights, files, and what validate refuses."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from lutetia.errors import ArgumentError, DataError
from lutetia.lut.connectivity.growth import from_edges, fully_connected, random
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.connectivity.synapses import Synapses

METAS = (
    SynapseMeta(),
    SynapseMeta(lr_scale=0.5, min_weight=-0.25, max_weight=0.5),
    SynapseMeta(initial_weight=2.0, initial_noise=0.5),
)


def grow(shared: bool, seed: int = 5, n_outputs: int = 13, group_size: int = 3, probability: float = 0.6) -> Synapses:
    synapses = random(5, 2, n_outputs, probability, shared=shared, seed=seed, metas=METAS)
    return dataclasses.replace(synapses, group_size=group_size)


def walk(synapses: Synapses) -> list[tuple[int, int, int, int]]:
    """(detector, row, output, meta) of every weight, in order, by the definition of each layout."""
    found = []
    for t in range(synapses.n_detectors):
        for row in range(synapses.n_rows):
            if synapses.layout == "general":
                n = t * synapses.n_rows + row
                for k in range(int(synapses.row_start[n]), int(synapses.row_start[n + 1])):
                    found.append((t, row, int(synapses.targets[k]), int(synapses.meta_of[k])))
            else:
                for k in range(int(synapses.det_start[t]), int(synapses.det_start[t + 1])):
                    found.append((t, row, int(synapses.det_targets[k]), int(synapses.det_meta[k])))
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_weights_against_loops(shared: bool) -> None:
    synapses = grow(shared)
    listed = walk(synapses)
    assert synapses.n_weights == len(listed)
    weight = torch.randn(synapses.n_weights, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dense = torch.zeros(5, 4, 13, dtype=torch.float64)
    for k, (t, row, output, _) in enumerate(listed):
        dense[t, row, output] = weight[k]
    assert torch.equal(synapses.expand(weight), dense)
    assert torch.equal(synapses.dense_mask(), dense != 0)
    assert torch.equal(synapses.flatten(dense), weight)
    assert synapses.weight_meta.tolist() == [meta for *_, meta in listed]
    rates = torch.tensor([METAS[int(meta)].lr_scale for meta in synapses.owner_meta], dtype=torch.float64)
    assert torch.equal(synapses.rates, rates)  # type: ignore[arg-type]
    clamped = [min(max(float(weight[k]), METAS[m].min_weight), METAS[m].max_weight) for k, (*_, m) in enumerate(listed)]
    assert synapses.clamp_(weight) is weight
    assert weight.tolist() == clamped


def test_the_shared_block_formula() -> None:
    synapses = grow(True)
    weight = torch.arange(synapses.n_weights)
    dense = synapses.expand(weight)
    for t in range(synapses.n_detectors):
        start, end = int(synapses.det_start[t]), int(synapses.det_start[t + 1])
        block = weight[4 * start : 4 * end].view(4, end - start)
        assert torch.equal(dense[t][:, synapses.det_targets[start:end].long()], block)


def test_expand_and_flatten_are_differentiable() -> None:
    synapses = grow(True, n_outputs=3)
    weight = torch.randn(synapses.n_weights, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(synapses.expand, weight)
    assert torch.autograd.gradcheck(synapses.flatten, synapses.expand(weight).detach().requires_grad_())


def test_to_general_moves_no_weight() -> None:
    shared = grow(True)
    general = shared.to_general().validate()
    assert walk(general) == walk(shared)
    assert general.to_general() is general
    assert general != shared
    weight = torch.randn(shared.n_weights)
    assert torch.equal(general.expand(weight), shared.expand(weight))


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 9), st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_groups_cover_every_synapse_once(shared: bool, seed: int, n_outputs: int, group_size: int, probability: float) -> None:
    synapses = grow(shared, seed, n_outputs, group_size, probability).validate()
    start, targets, meta = synapses.tensors().values()
    covered: list[int] = []
    per_owner: list[int] = []
    for owner in range(synapses.n_owners):
        first, last = synapses.groups.of_owner[owner : owner + 2].tolist()
        per_owner.append(last - first)
        sizes: dict[int, list[int]] = {}
        for g in range(first, last):
            begin, count = int(synapses.groups.start[g]), int(synapses.groups.counts[g])
            assert 1 <= count <= group_size
            assert int(start[owner]) <= begin
            assert begin + count <= int(start[owner + 1])
            assert set(meta[begin : begin + count].tolist()) == {int(synapses.groups.meta[g])}
            covered += range(begin, begin + count)
            sizes.setdefault(int(synapses.groups.meta[g]), []).append(count)
        assert all(count == group_size for counts in sizes.values() for count in counts[:-1])  # only the last may be short
    assert covered == list(range(len(targets)))
    assert int(synapses.groups.of_owner.diff().max()) == max(per_owner)
    assert synapses.n_groups == sum(per_owner)


@settings(max_examples=40, deadline=None)
@given(st.booleans(), st.integers(0, 10_000), st.integers(1, 20), st.sampled_from([0.0, 0.2, 1.0]))
def test_expand_and_flatten_are_inverse(shared: bool, seed: int, n_outputs: int, probability: float) -> None:
    synapses = grow(shared, seed, n_outputs, probability=probability)
    weight = torch.randn(synapses.n_weights)
    assert torch.equal(synapses.flatten(synapses.expand(weight)), weight)
    dense = torch.randn(5, 4, n_outputs)
    assert torch.equal(synapses.expand(synapses.flatten(dense)), dense * synapses.dense_mask())


def shared_from(lists: list[list[int]], n_outputs: int = 9) -> Synapses:
    return from_edges(len(lists), 1, n_outputs, [[t, output] for t, outputs in enumerate(lists) for output in outputs])


def test_blocks_by_hand() -> None:
    synapses = shared_from([[4, 5], [0, 1, 2], [4, 5], [], [0, 1, 2], [4, 5]])
    assert synapses.blocks.of_detector.tolist() == [0, 1, 0, 2, 1, 0]
    assert synapses.blocks.detectors.tolist() == [0, 2, 5, 1, 4, 3]
    assert synapses.blocks.start.tolist() == [0, 3, 5, 6]
    assert synapses.blocks.width.tolist() == [2, 3, 0]
    assert synapses.blocks.disjoint
    assert {each.dtype for each in synapses.blocks[:4]} == {torch.int32}
    assert not shared_from([[4, 5], [5, 6]]).blocks.disjoint
    assert not shared_from([[4, 5], [4]]).blocks.disjoint  # a prefix is another list
    assert fully_connected(7, 2, 5).blocks.start.tolist() == [0, 7]


def test_names_belong_to_their_layout() -> None:
    with pytest.raises(ArgumentError, match="row_start belongs to the general layout, but these synapses are shared"):
        _ = grow(True).row_start
    with pytest.raises(ArgumentError, match="det_meta belongs to the shared layout, but these synapses are general"):
        _ = grow(False).det_meta
    with pytest.raises(ArgumentError, match="det_start belongs to the shared layout"):
        _ = grow(False).blocks


def test_dtypes() -> None:
    for synapses in (grow(True), grow(False)):
        start, targets, meta = synapses.tensors().values()
        assert (start.dtype, targets.dtype, meta.dtype) == (torch.int64, torch.int32, torch.int32)
        assert (synapses.groups.start.dtype, synapses.groups.of_owner.dtype) == (torch.int64, torch.int64)
        assert (synapses.groups.counts.dtype, synapses.groups.meta.dtype) == (torch.int32, torch.int32)


@pytest.mark.parametrize("shared", [False, True])
def test_initial_weights_follow_the_metas(shared: bool) -> None:
    synapses = random(40, 3, 50, 0.5, shared=shared, seed=1, metas=METAS)
    weight = synapses.initial_weights(3)
    for number, meta in enumerate(METAS):
        mine = weight[synapses.weight_meta == number]
        low, high = meta.initial_weight - meta.initial_noise, meta.initial_weight + meta.initial_noise
        assert low <= float(mine.min()) < low + 0.05 * meta.initial_noise
        assert high - 0.05 * meta.initial_noise < float(mine.max()) <= high
        error = meta.initial_noise / math.sqrt(3 * len(mine))
        assert abs(float(mine.double().mean()) - meta.initial_weight) < 5 * error
    assert torch.equal(weight, synapses.initial_weights(3))
    assert torch.equal(weight, synapses.initial_weights(torch.Generator().manual_seed(3)))
    assert not torch.equal(weight, synapses.initial_weights(4))
    assert synapses.initial_weights(3, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_initial_weights_stay_within_the_bounds() -> None:
    synapses = fully_connected(3, 2, 5, SynapseMeta(min_weight=0.0, max_weight=0.25, initial_weight=0.125, initial_noise=5.0))
    weight = synapses.initial_weights(0)
    assert (float(weight.min()), float(weight.max())) == (0.0, 0.25)
    assert len(weight.unique()) > 2
    torch.manual_seed(2)
    first = synapses.initial_weights()
    torch.manual_seed(2)
    assert torch.equal(first, synapses.initial_weights())
    with pytest.raises(ArgumentError, match=r"seed is 1\.5"):
        synapses.initial_weights(1.5)  # type: ignore[arg-type]


def test_one_number_when_all_metas_agree() -> None:
    synapses = random(3, 2, 5, 0.5, seed=0, metas=(SynapseMeta(lr_scale=0.3), SynapseMeta(lr_scale=0.3, initial_weight=1)))
    assert synapses.rates == 0.3
    weight = torch.full((synapses.n_weights,), math.inf)
    assert torch.isinf(synapses.clamp_(weight)).all()
    parameter = torch.nn.Parameter(torch.ones(60))
    fully_connected(3, 2, 5, SynapseMeta(max_weight=0.5)).clamp_(parameter)
    assert parameter.tolist() == [0.5] * 60


@pytest.mark.parametrize("shared", [False, True])
def test_statistics_against_the_mask(shared: bool) -> None:
    synapses = grow(shared)
    mask, found = synapses.dense_mask().long(), synapses.statistics()
    out, into = mask.sum(2).flatten(), mask.sum((0, 1))
    assert (found.n_weights, found.n_neurons) == (int(mask.sum()), 20)
    assert found.fan_out == (int(out.min()), pytest.approx(float(out.float().mean())), int(out.max()))
    assert found.fan_in == (int(into.min()), pytest.approx(float(into.float().mean())), int(into.max()))
    assert synapses.max_fan_out == int(out.max())
    assert found.group_fill == pytest.approx(float(synapses.groups.counts.float().mean()) / 3)
    listed, owners = len(synapses.owner_targets), synapses.n_owners
    assert found.bytes == 8 * (owners + 1) * 2 + 8 * listed + 16 * found.n_groups


def test_equality_copy_and_repr() -> None:
    synapses = grow(False)
    assert synapses == grow(False)
    assert hash(synapses) == hash(grow(False))
    assert synapses == copy.deepcopy(synapses)
    assert synapses != grow(False, seed=6)
    assert synapses != dataclasses.replace(synapses, group_size=4)
    assert synapses != dataclasses.replace(synapses, metas=METAS[::-1])
    assert synapses != 3
    assert synapses.to("cpu") is synapses
    assert repr(fully_connected(3, 2, 5)) == "Synapses(shared, 3 detectors × 4 rows -> 5 outputs, 60 weights, 1 meta, cpu)"
    assert synapses.to("meta").device.type == "meta"


def test_no_synapse_at_all() -> None:
    synapses = random(3, 2, 5, 0.0, seed=0).validate()
    assert (synapses.n_weights, synapses.n_groups, int(synapses.groups.of_owner.diff().max())) == (0, 0, 0)
    assert synapses.expand(torch.empty(0)).shape == (3, 4, 5)
    assert synapses.statistics().fan_in == (0, 0.0, 0)
    assert random(3, 2, 5, 0.0, seed=0, shared=True).blocks.of_detector.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lr_scale": -1}, "lr_scale is -1, expected a number that is not negative"),
        ({"lr_scale": math.inf}, "lr_scale is inf, expected a finite number"),
        ({"initial_noise": -0.1}, "initial_noise is -0.1"),
        ({"initial_noise": math.nan}, "initial_noise is nan"),
        ({"min_weight": math.nan}, "min_weight is nan"),
        ({"min_weight": 1, "max_weight": 0}, "min_weight is 1, expected at most max_weight, which is 0"),
        ({"max_weight": -1}, "initial_weight is 0.0, expected a number from -inf to -1"),
        ({"initial_weight": "a"}, "initial_weight is 'a'"),
        ({"lr_scale": True}, "lr_scale is True"),
    ],
)
def test_bad_metas(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SynapseMeta(**fields)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owner_targets": ints(0, 2, 1, 3, 1)}, "synapse 0 of detector 1, row 0 has output 3, expected 0 to 2"),
        ({"owner_targets": ints(0, 2, -1, 0, 1)}, "synapse 0 of detector 0, row 1 has output -1"),
        ({"owner_meta": ints(0, 0, 0, 0, 2)}, "synapse 1 of detector 1, row 0 has meta 2, expected 0 to 1"),
        ({"owner_targets": ints(2, 0, 1, 0, 1)}, "synapse 1 of detector 0, row 0 is out of order"),
        ({"owner_meta": ints(1, 0, 0, 0, 0)}, "synapse 1 of detector 0, row 0 is out of order"),
        ({"owner_targets": ints(2, 2, 1, 0, 1)}, "detector 0, row 0 reaches output 2 twice"),
        ({"owner_targets": ints(0, 2, 1, 1, 1)}, "detector 1, row 0 reaches output 1 twice"),  # with two metas
        (
            {"owner_start": torch.tensor([0, 2, 2, 5, 5]), "owner_targets": ints(0, 2, 0, 1, 0)},
            "detector 1, row 0 reaches output 0 twice",
        ),
        ({"owner_start": torch.tensor([0, 3, 2, 5, 5])}, "row_start falls at detector 0, row 1"),
        ({"owner_start": torch.tensor([0, 2, 3, 5, 4])}, "row_start runs from 0 to 4, expected 0 to 5"),
        ({"owner_start": torch.tensor([1, 2, 3, 5, 5])}, "row_start runs from 1 to 5"),
        ({"owner_start": torch.tensor([0, 5])}, r"row_start is int64 \[2\] on cpu, expected shape \[5\]"),
        ({"owner_start": ints(0, 2, 3, 5, 5)}, "row_start is int32"),
        ({"owner_targets": [0]}, r"targets is \[0\], expected a tensor"),
        ({"owner_targets": torch.zeros(5)}, "targets is float32"),
        ({"owner_meta": ints(0)}, r"meta_of is int32 \[1\]"),
        ({"owner_meta": ints(0, 0, 0, 0, 1).to("meta")}, "meta_of is int32 .* on meta"),
        ({"n_rows": 3}, "n_rows is 3, expected a power of two"),
        ({"n_rows": 1}, "n_rows is 1"),
        ({"n_outputs": 0}, "n_outputs is 0"),
        ({"n_detectors": 2.0}, r"n_detectors is 2\.0"),
        ({"group_size": 0}, "group_size is 0"),
        ({"metas": ()}, r"metas is \(\)"),
        ({"layout": "dense"}, "layout is 'dense', expected one of 'general', 'shared'"),
        ({"layout": "shared"}, r"det_start is int64 \[5\] on cpu, expected shape \[3\]"),
    ],
)
def test_validate_names_the_first_offender(changes: dict[str, Any], message: str) -> None:
    good = Synapses(
        n_detectors=2,
        n_rows=2,
        n_outputs=3,
        layout="general",
        owner_start=torch.tensor([0, 2, 3, 5, 5]),
        owner_targets=ints(0, 2, 1, 0, 1),
        owner_meta=ints(0, 0, 0, 0, 1),
        metas=METAS[:2],
    )
    assert good.validate() is good
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(good, **changes).validate()


def test_wrong_weights_are_refused() -> None:
    synapses = fully_connected(3, 2, 5)
    for method in (synapses.expand, synapses.clamp_):
        with pytest.raises(ArgumentError, match=r"weight is float32 \[59\] on cpu, expected shape \[60\]"):
            method(torch.zeros(59))
    with pytest.raises(ArgumentError, match="dense is"):
        synapses.flatten(torch.zeros(3, 4, 6))


@pytest.mark.parametrize("shared", [False, True])
def test_files_round_trip(shared: bool, tmp_path: Path) -> None:
    synapses, path = grow(shared), tmp_path / "connectivity.safetensors"
    path.write_bytes(b"an older file")
    synapses.save(path)
    assert Synapses.load(path) == synapses
    assert Synapses.load(str(path)).metas == METAS
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]  # no temporary file is left
    state = {name: tensor.clone() for name, tensor in synapses.tensors().items()}
    assert Synapses.from_tensors(state, json.loads(json.dumps(synapses.header()))) == synapses


def test_a_loaded_connectivity_is_independent_of_its_file(tmp_path: Path) -> None:
    synapses, path = random(64, 4, 50, 0.5, seed=0), tmp_path / "synapses"
    synapses.save(path)
    loaded = Synapses.load(path)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert loaded == synapses


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [False, True])
def test_everything_is_the_same_on_a_gpu(shared: bool) -> None:
    synapses = grow(shared)
    there = synapses.to("cuda").validate()
    assert there.device.type == "cuda"
    assert there == synapses
    for mine, its in zip(there.groups, synapses.groups, strict=True):
        assert torch.equal(mine.cpu(), its)
    if shared:
        assert torch.equal(there.blocks.detectors.cpu(), synapses.blocks.detectors)
    weight = synapses.initial_weights(1)
    assert torch.equal(there.initial_weights(1).cpu(), weight)
    assert torch.equal(there.expand(weight.cuda()).cpu(), synapses.expand(weight))
    assert torch.equal(there.clamp_(4 * weight.cuda()).cpu(), synapses.clamp_(4 * weight))
    assert torch.equal(there.to_general().targets.cpu(), synapses.to_general().targets)
    assert there.statistics() == synapses.statistics()


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "synapses"
    fully_connected(3, 2, 5).save(path)
    content = path.read_bytes()
    for length in (0, 4, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=str(path)):
            Synapses.load(path)
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(DataError, match=r"is of kind None, expected 'lutetia\.synapses/1'"):
        Synapses.load(path)
    path.write_text('{"layout": "shared"}')
    with pytest.raises(DataError, match=str(path)):
        Synapses.load(path)
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(DataError, match=str(missing)):
            Synapses.load(missing)
    with pytest.raises(DataError, match="cannot be written"):
        fully_connected(3, 2, 5).save(tmp_path / "no such directory" / "file")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"n_outputs": 4}, "has output 4, expected 0 to 3"),
        ({"n_rows": None}, "n_rows is None"),
        ({"layout": "general"}, "tensors named row_start, targets, meta_of"),
        ({"layout": None}, "layout is None"),
        ({"metas": []}, r"metas is \(\)"),
        ({"metas": 3}, "metas is 3"),
        ({"metas": [{"colour": 1}]}, "expected fields of SynapseMeta"),
        ({"metas": [3]}, "expected fields of SynapseMeta"),
        ({"metas": [{"lr_scale": "fast"}]}, "lr_scale is 'fast'"),
    ],
)
def test_a_file_with_a_wrong_header(header: dict[str, Any], message: str, tmp_path: Path) -> None:
    synapses, path = fully_connected(3, 2, 5), tmp_path / "synapses"
    changed = json.dumps({**synapses.header(), **header})
    save_file(synapses.tensors(), path, {"kind": "lutetia.synapses/1", "header": changed})
    with pytest.raises(DataError, match=message) as caught:
        Synapses.load(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ArgumentError, match=message):
        Synapses.from_tensors(synapses.tensors(), json.loads(changed))


def test_a_pipe_is_no_file_of_synapses(tmp_path: Path) -> None:
    """Opening one would wait for somebody to write."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe"):
        Synapses.load(tmp_path / "pipe")

"""Detector parallel: what ranks with some of the detectors each compute and learn is what one with all of them does."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

import warm
from lutetia import flow
from lutetia.errors import ArgumentError, DataError
from lutetia.lut import growth, use_backend
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.models import LUTTransformer
from lutetia.nn import (
    LUT,
    LUTAttention,
    LUTProjection2d,
    NgramTables,
    ProjectedLUT,
    RowAdam,
    cell_total_variation,
    clamp_after_step,
)
from lutetia.training import shard_detectors
from lutetia.training.resharding import full_state_dict, load_full_state_dict, spread_parameters, spreads_of
from lutetia.training.state import pack_optimizer
from ports import free_port

pytestmark = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="torch was built without gloo"
)
METAS = (SynapseMeta(initial_noise=0.5), SynapseMeta(lr_scale=0.5, initial_noise=0.3, max_weight=0.31))
NOISE = SynapseMeta(initial_noise=0.5)
ONES = SynapseMeta(initial_weight=1.0, initial_noise=0.0)


def fully_connected(n_detectors: int, **options: Any) -> LUT:
    return LUT(6, 3, n_detectors, 3, meta=NOISE, seed=1, **options)


def sparse_rows(n_detectors: int, bits: int, n_outputs: int, share: bool) -> Any:
    return growth.random(n_detectors, bits, n_outputs, 0.6, metas=METAS, seed=3, shared=share)


def attention(n_detectors: int, positional_dim: int = 2, **options: Any) -> LUTAttention:
    return LUTAttention(5, 4, n_detectors, 2, positional_dim, 7, seed=2, **options)


def projected(gradient: str = "dense") -> ProjectedLUT:
    layer = ProjectedLUT(5, 3, heads=2, head_width=4, n_detectors=4, n_anchors=2, seed=4, gradient=gradient)
    nn.init.normal_(layer.decompress.weight, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(layer.tables.weight, generator=torch.Generator().manual_seed(1))
    return layer


def windows() -> LUTProjection2d:
    options: dict[str, Any] = {"receptive_field": 3, "projection": 2, "n_anchors": 3, "grid": (2, 3), "keep": 0.7}
    return LUTProjection2d((5, 6), (4, 3), **options, meta=NOISE, seed=5, read="confidence2")


def transformer() -> LUTTransformer:
    sizes = {"context": 6, "width": 6, "n_layers": 2, "n_heads": 2, "n_detectors": 3, "n_anchors": 2, "positional_dim": 2}
    return LUTTransformer(**sizes, ff_detectors=5, ff_anchors=3, read="confidence2", seed=0)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "hard": (lambda: fully_connected(8), (9, 6)),
    "uneven": (lambda: fully_connected(7), (2, 3, 6)),
    "one rank without": (lambda: fully_connected(5, read="confidence2"), (9, 6)),
    "blend": (lambda: fully_connected(8, read="blend"), (9, 6)),
    "thresholds": (lambda: fully_connected(7, anchors="mixed"), (9, 6)),
    "confidence": (lambda: fully_connected(8, read="confidence"), (9, 6)),
    "general synapses": (lambda: LUT(6, 9, 7, 3, synapses=sparse_rows(7, 3, 9, False), seed=1), (9, 6)),
    "shared synapses": (lambda: LUT(6, 9, 5, 3, synapses=sparse_rows(5, 3, 9, True), seed=1, read="blend"), (9, 6)),
    "windows": (windows, (3, 5, 6)),
    "projected": (projected, (9, 5)),
    "attention": (lambda: attention(8, meta=NOISE), (2, 6, 5)),
    "attention, shared positions": (lambda: attention(5, meta=NOISE, shared_positions=True), (2, 7, 5)),
    "attention without positions": (lambda: attention(6, 0, meta=NOISE, algorithm="cells"), (2, 7, 5)),
    "attention, synapses": (lambda: attention(6, synapses=sparse_rows(6, 6, 4, False)), (2, 4, 5)),
    "transformer": (transformer, (2, 6)),
}
EVEN = ("hard", "projected", "attention")  # on four ranks too: nothing is padded, so a DTensor is the whole


# ---- what the ranks do -----------------------------------------------------------------------------------------------


def inputs(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    if len(shape) == 2 and shape[-1] == 6 and shape[0] == 2:
        return torch.randint(256, shape, generator=draw)  # text
    return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)


def learn(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, last: bool) -> dict[str, Tensor]:
    """One step; the output, and the gradient of x."""
    optimizer.zero_grad()
    x = x.clone().requires_grad_(x.is_floating_point())
    y = model(x)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    (weights * y + y.square() / 2).sum().backward()
    found = {"y": y.detach()} | ({"x.grad": x.grad} if x.grad is not None else {})
    if not last:
        optimizer.step()
    return found


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """All gradients, whole, on the first rank."""
    spreads = spreads_of(model)
    found = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        found[name] = spreads[name].gather(parameter.grad) if name in spreads else parameter.grad
    return found


def same(name: str, found: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype) -> None:
    assert found.keys() == wanted.keys(), name
    bounds = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key], **bounds, msg=lambda text, key=key: f"{name}, {key}: {text}")


class Alone(NamedTuple):
    """What a model learns in one process."""

    model: nn.Module  # as it was
    steps: list[dict[str, Tensor]]
    gradients: list[dict[str, Tensor]]
    state: dict[str, Tensor]
    y: Tensor  # in the end, of the last inputs


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    # Rounding is magnified where Adam divides by the root of a gradient's square that is nearly nothing.
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, weight_decay=0.1)


@cache
def alone(name: str, dtype: torch.dtype) -> Alone:
    """Once for all meshes."""
    build, shape = CASES[name]
    before = build().to(dtype)
    model = copy.deepcopy(before)
    optimizer = optimizer_of(model)
    steps, found = [], []
    for step in range(3):
        steps.append(learn(model, inputs(shape, dtype, step), optimizer, step == 2))
        found.append({key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None})
    with torch.no_grad():
        return Alone(before, steps, found, model.state_dict(), model.eval()(inputs(shape, dtype, 2)))


def check_case(name: str, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Forward, all gradients, and two steps of AdamW, against the model as it was."""
    wanted, shape = alone(name, dtype), CASES[name][1]
    sharded = shard_detectors(copy.deepcopy(wanted.model), mesh)
    counted = sum(parameter.numel() for parameter in wanted.model.parameters())
    assert sum(spread.own(dict(sharded.named_parameters())[key]).numel() for key, spread in spreads_of(sharded).items()
               if key in dict(sharded.named_parameters())) < counted  # fmt: skip
    optimizer = optimizer_of(sharded)
    for step in range(3):
        found = learn(sharded, inputs(shape, dtype, step), optimizer, step == 2)
        same(f"{name}, step {step}", found, wanted.steps[step], dtype)
        of_all = gradients(sharded)
        if mesh.get_local_rank() == 0:
            same(f"{name}, step {step}", of_all, wanted.gradients[step], dtype)
    state = full_state_dict(sharded)
    if mesh.get_local_rank() == 0:
        same(name, state, wanted.state, dtype)
    sharded.eval()
    with torch.no_grad():
        same(f"{name}, eval", {"y": sharded(inputs(shape, dtype, 2))}, {"y": wanted.y}, dtype)
    if name in EVEN:
        for key, parameter in sharded.named_parameters():
            if isinstance(parameter, DTensor):
                same(name, {key: parameter.full_tensor()}, {key: wanted.state[key]}, dtype)


def check_places(mesh: DeviceMesh) -> None:
    """Each rank holds its own tables and nothing of others, gradients and optimiser state included."""
    whole, rank, size = fully_connected(8), mesh.get_local_rank(), mesh.size()
    layer = shard_detectors(fully_connected(8), mesh)
    own = slice(8 // size * rank, 8 // size * (rank + 1))
    assert isinstance(layer, LUT)
    assert isinstance(layer.weight, DTensor)
    assert layer.weight.placements == (Shard(0),)
    assert layer.weight.shape == whole.weight.shape
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(inputs((4, 6), torch.float32)).sum().backward()
    torch.testing.assert_close(layer.weight.to_local(), whole.weight[own], rtol=0, atol=0)
    torch.testing.assert_close(layer.anchors, whole.anchors[own])
    optimizer.step()
    kept = [layer.weight.grad, *(value for value in optimizer.state[layer.weight].values() if value.dim())]
    assert [each.to_local().shape[0] for each in kept] == [8 // size] * 3
    assert f"n_detectors=8, n_anchors=3, n_own={8 // size}" in repr(layer)
    assert layer.weight.to_local().untyped_storage().nbytes() == layer.weight.to_local().nbytes


def check_sparse(mesh: DeviceMesh) -> None:
    """Sparse gradients, of plain parameters that hold this rank's tables."""
    builds = {
        "fully connected": (lambda gradient: fully_connected(7, gradient=gradient), (9, 6)),
        "flat": (lambda gradient: projected(gradient), (9, 5)),
        "attention": (lambda gradient: attention(7, gradient=gradient, meta=NOISE), (2, 6, 5)),
    }
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": lambda each: torch.optim.SGD(each, lr=0.1, momentum=0.9),
        "adam": lambda each: torch.optim.SparseAdam(each, lr=0.1, eps=1e-3),
    }
    for name, (build, shape) in builds.items():
        for kind, make in kinds.items():
            alone = build("sparse").double()
            sharded = shard_detectors(copy.deepcopy(alone), mesh)
            tables = [next(m for m in model.modules() if isinstance(m, LUT)).weight for model in (alone, sharded)]
            one, many = make(tables[:1]), make(tables[1:])
            for step in range(3):
                x = inputs(shape, torch.float64, step)
                same(name + kind, *(learn(m, x, o, False) for m, o in ((sharded, many), (alone, one))), torch.float64)
                assert tables[1].grad is not None
                assert tables[1].grad.is_sparse
            state = full_state_dict(sharded)
            if mesh.get_local_rank() == 0:
                same(name + kind, state, alone.state_dict(), torch.float64)


def check_in_place(mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Steps in the backward pass, each rank's of its own tables."""
    alone = fully_connected(7, gradient="in_place").to(dtype)
    sharded = shard_detectors(copy.deepcopy(alone), mesh)
    alone.external_lr = sharded.external_lr = 0.1
    for step in range(3):
        for model in (alone, sharded):
            model(inputs((4, 6), dtype, step)).square().sum().backward()
    state = full_state_dict(sharded)
    if mesh.get_local_rank() == 0:
        same("in place", state, alone.state_dict(), dtype)


def check_rows(mesh: DeviceMesh) -> None:
    """N-gram tables: the rows that are read, and stepped, are those of one rank with all of them."""
    alone = NgramTables((1, 2), word=True, n_rows=11, width=3, dtype=torch.float64)
    sharded = shard_detectors(copy.deepcopy(alone), mesh)
    assert len(sharded.weight) in (33 // mesh.size(), 33 // mesh.size() + 1)
    one, many = (RowAdam(model.parameters(), weight_decay=0.5) for model in (alone, sharded))
    for step in range(4):
        tokens = torch.randint(97, 104, (3, 7), generator=torch.Generator().manual_seed(step))
        target = torch.linspace(-1, 1, 3 * 7 * 9, dtype=torch.float64).view(3, 7, 9)
        for model, optimizer in ((alone, one), (sharded, many)):
            optimizer.zero_grad()
            (model(tokens) - target).square().sum().backward()
            optimizer.step()
        same("rows", {"y": sharded(tokens)}, {"y": alone(tokens)}, torch.float64)
    state, held = full_state_dict(sharded), pack_optimizer(sharded, many)[0]
    if mesh.get_local_rank() == 0:
        same("rows", state, alone.state_dict(), torch.float64)
        same("rows", held, pack_optimizer(alone, one)[0], torch.float64)


def check_dropout(mesh: DeviceMesh) -> None:
    """Ranks drop tables each by itself, in the right number and scale, and their generators stay together."""
    layer = shard_detectors(LUT(6, 8, 8, 3, seed=1, table_dropout=0.25, meta=ONES), mesh)
    torch.manual_seed(0)
    y = layer(torch.randn(4000, 6, generator=torch.Generator().manual_seed(0)))
    counts = (y * 0.75).round()  # each table that is not dropped adds 1 / 0.75
    torch.testing.assert_close(counts, y * 0.75, rtol=1e-5, atol=1e-5)
    mean, spread = counts[:, 0].mean().item(), counts[:, 0].var().item()
    assert mean == pytest.approx(8 * 0.75, abs=0.1)
    assert spread == pytest.approx(8 * 0.75 * 0.25, rel=0.1)  # of independent draws: larger where ranks drop alike
    after = torch.rand(3)
    found = [torch.empty(3) for _ in range(mesh.size())]
    distributed.all_gather(found, after, group=mesh.get_group())
    assert all(torch.equal(each, after) for each in found)
    assert torch.equal(layer.eval()(torch.zeros(2, 6)), torch.full((2, 8), 8.0))


def check_reshards(four: DeviceMesh, two: DeviceMesh) -> None:
    """What four ranks have, two can take, and what they have one can."""
    model = shard_detectors(transformer().double(), four)
    state = full_state_dict(model)
    for name in state:  # from the first rank to all, as a file would be
        held = [state[name] if not distributed.get_rank() else None]
        distributed.broadcast_object_list(held)
        state[name] = held[0]
    again = transformer().double()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again = shard_detectors(again, two)
    load_full_state_dict(again, state)
    x = inputs((2, 6), torch.float64)
    alone = transformer().double()
    alone.load_state_dict(state)
    same("resharded", {"y": again(x)}, {"y": alone(x)}, torch.float64)
    # A cache of this rank's detectors, and the sum.
    cache, alone_cache = again.eval().new_cache(2), alone.eval().new_cache(2)
    with torch.no_grad():
        for at in range(6):
            found, wanted = (m(x[:, at : at + 1], cache=c) for m, c in ((again, cache), (alone, alone_cache)))
            same("decoded", {"y": found}, {"y": wanted}, torch.float64)
    key = next(key for key in state if key.endswith("weight") and key in spreads_of(again))
    wrong = {**state, key: torch.zeros(2, 8, 6)}
    with pytest.raises(DataError, match=f"the tensor {key} has the shape"):
        load_full_state_dict(again, wrong)


def check_two_dimensions(mesh: DeviceMesh) -> None:
    """DistributedDataParallel over one dimension, detectors over the other: as one process with the whole batch."""
    for name, gradient in (("uneven", "dense"), ("projected", "dense"), ("projected", "sparse")):
        build, shape = CASES[name]
        alone = (projected(gradient) if name == "projected" else build()).double()
        model = copy.deepcopy(alone)
        if mesh["data"].get_local_rank():  # what the first rank has counts
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1.0)
        sharded = shard_detectors(model, mesh)
        rest = [p for p in sharded.parameters() if id(p) not in spread_parameters(sharded)]
        group = mesh["data"].get_group()
        wrapped = DistributedDataParallel(sharded, process_group=group) if rest else sharded
        one, many = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (alone, sharded))
        for step in range(3):
            x = inputs((4, *shape[1:]), torch.float64, step)
            own = x.chunk(2)[mesh["data"].get_local_rank()]
            for part in own.chunk(2):  # accumulated
                wrapped(part).square().mean().div(2).backward()
            alone(x).square().mean().backward()
            for optimizer in (one, many):
                optimizer.step()
                optimizer.zero_grad()
            state = full_state_dict(sharded)
            if mesh["detectors"].get_local_rank() == 0:
                same(f"{name} {gradient}, step {step}", state, alone.state_dict(), torch.float64)


def check_bytes(mesh: DeviceMesh) -> None:
    """What docs/parallel.md says of the messages of a layer: y forward, x and the scalars backward."""
    layer = shard_detectors(fully_connected(8, read="confidence2"), mesh)
    with flow.record() as recorded:
        layer(torch.randn(10, 6, requires_grad=True)).sum().backward()
    sent = [(step.inputs[0].name, step.inputs[0].bytes) for step in recorded.steps if step.name == "all_reduce"]
    assert sent[:2] == [("y", 10 * 3 * 4), ("gradient", 10 * 6 * 4)]
    assert sent[2:] == [("gradient", 4)] * 3


def check_rest(mesh: DeviceMesh) -> None:
    """Clamping, cell total variation of a share, halves, repeated calls, and what is refused."""
    layer = LUT(6, 9, 7, 3, synapses=sparse_rows(7, 3, 9, False), seed=1)
    alone = copy.deepcopy(layer)
    shard_detectors(layer, mesh)
    one, many = (torch.optim.SGD(m.parameters(), lr=5.0) for m in (alone, layer))
    for model, optimizer in ((alone, one), (layer, many)):
        clamp_after_step(optimizer, model)
        model(inputs((9, 6), torch.float32)).square().sum().backward()
        optimizer.step()
    state = full_state_dict(layer)
    if mesh.get_local_rank() == 0:
        same("clamped", state, alone.state_dict(), torch.float32)
        assert state["weight"].max() > 0.4
        assert (state["weight"] == METAS[1].max_weight).any()
    share = shard_detectors(fully_connected(8), mesh)
    variation = cell_total_variation(share.own()).detach() * share.n_own / share.n_detectors
    distributed.all_reduce(variation, group=mesh.get_group())
    torch.testing.assert_close(variation, cell_total_variation(fully_connected(8)).detach())
    halves = shard_detectors(fully_connected(8, dtype=torch.bfloat16), mesh)
    x = inputs((9, 6), torch.bfloat16)
    assert halves(x).dtype == torch.bfloat16
    torch.testing.assert_close(halves(x), fully_connected(8, dtype=torch.bfloat16)(x), rtol=0.02, atol=0.02)
    for message, model in (
        ("is sharded already", share),
        ("expected a model with LUT layers", nn.Linear(2, 2)),
        ("is on meta, which needs a layer without synapses", projected().to("meta")),
        (f"has 1 detectors for {mesh.size()} ranks, expected some for each", fully_connected(1, gradient="sparse")),
    ):
        with pytest.raises(ArgumentError, match=message):
            shard_detectors(model, mesh)
    with pytest.raises(ArgumentError, match="call reset_parameters before shard_detectors"):
        share.reset_parameters()
    with pytest.raises(ArgumentError, match="call set_thresholds_from before shard_detectors"):
        share.set_thresholds_from(torch.rand(4, 6))
    with pytest.raises(ArgumentError, match="expected a DeviceMesh"):
        shard_detectors(fully_connected(8), 2)  # type: ignore[arg-type]


def check_fresh(four: DeviceMesh, two: DeviceMesh) -> None:
    """Layers that nobody ever has whole: the same weights on any number of ranks."""
    builds: list[tuple[Callable[..., LUT], tuple[int, ...]]] = [
        (lambda **more: fully_connected(7, read="confidence2", **more), (4, 6)),
        (lambda **more: attention(7, meta=NOISE, **more), (2, 6, 5)),
        (lambda **more: fully_connected(7, anchors="thresholds", **more), (4, 6)),
    ]
    for build, shape in builds:
        whole, states = build(), []
        for mesh in (four, two):
            layer = shard_detectors(build(device="meta"), mesh)
            assert layer(inputs(shape, torch.float32)).isfinite().all()
            states.append(full_state_dict(layer))
        if not distributed.get_rank():
            same("fresh", states[0], states[1], torch.float64)
            wanted = {**whole.state_dict(), "weight": states[0]["weight"]}  # tables are drawn in another order
            same("fresh", states[0], wanted, torch.float64)
            assert states[0]["weight"].std() == pytest.approx(whole.weight.std().item(), rel=0.1)
            assert len(states[0]["weight"].unique()) > 0.99 * whole.weight.numel()


def work(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="4", LOCAL_RANK=str(rank), MASTER_ADDR="localhost", MASTER_PORT=str(port))
    distributed.init_process_group("gloo")
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "detectors"))
    four, two = init_device_mesh("cpu", (4,)), both["detectors"]
    with use_backend("reference"):  # in float64, where few layers run: the loops of others would be compiled for this test alone
        for mesh in (two, four) if rank < 2 else (four,):  # the other two ranks would do the same; below they do
            for name in CASES:
                check_case(name, mesh, torch.float64)
        check_sparse(four)
        check_in_place(four, torch.float64)
        check_reshards(four, two)
        check_two_dimensions(both)
    for mesh in (two, four):
        check_case("transformer", mesh, torch.float32)
        check_case("general synapses", mesh, torch.float32)
        check_places(mesh)
        check_dropout(mesh)
        check_rows(mesh)
    check_in_place(four, torch.float32)
    check_bytes(two)
    check_rest(two)
    check_fresh(four, two)
    distributed.barrier()
    distributed.destroy_process_group()


def test_ranks_with_some_detectors_each_are_one_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes, as 4, as 2 (twice), and as 2 × 2: one test, since starting them takes longer than all they do."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("transformer", "general synapses"):  # first in one process, which compiles what all need, once
        build, shape = CASES[name]
        model = build()
        learn(model, inputs(shape, torch.float32), torch.optim.SGD(model.parameters()), last=True)
    warm.spawn(work, (free_port(),), 4)

"""Detector parallelism: each rank holds some of the detectors of every LUT layer, and their outputs are summed over the ranks.

It holds some of the rows of n-gram tables, and the rows that were read are summed in the same way.

A layer is a sum over detectors, so it is cut between them: a rank has their tables, anchors, positions and synapses, with their
gradients and optimiser state, and computes what they add to the output. Everything else, activations too, is the same on all
ranks of the mesh.

    forward     y = all-reduce of what each rank's detectors add
    backward    dL/dy is known everywhere; dL/dx, and the gradients of what a layer's detectors share, are all-reduced
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from lutetia import flow
from lutetia._uncompiled import uncompiled
from lutetia.errors import ArgumentError, fail
from lutetia.lut import SCALARS, Synapses
from lutetia.nn import LUT, LUTAttention, NgramTables, draw_comparisons, ngram_tables
from lutetia.training.distributed import World, average_gradients
from lutetia.training.resharding import Spread, spread_parameters, spreads_of

DIMENSION = "detectors"
HALVES = (torch.bfloat16, torch.float16)


def shard_detectors(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Keep only this rank's share of the detectors of every LUT layer, in place; returns the model.

    All ranks of the mesh call it with the same model, on the device of the mesh; where values differ, those of the first rank are
    used. Rank r of R gets ⌈N_t/R⌉ detectors, from r·⌈N_t/R⌉ on: the last ranks may have fewer, or none. `weight` and per-detector
    `positions` become DTensors, so optimisers made afterwards hold this rank's share too; a weight with a sparse gradient, or one
    that steps in place, becomes a plain parameter of this rank's tables, of which each has some.

    A mesh of two dimensions is data × detectors: the dimension called "detectors", or else the last, is that of the detectors,
    and gradients of the shares are averaged over the other in the backward pass. For all other parameters use
    DistributedDataParallel over its group, which leaves the shares alone.

    Tables that no host can hold as a whole: make such layers with device="meta", and a seed. They get their share of fresh
    weights here, the same for any number of ranks, and anchors drawn from the seed.
    """
    across, data = _dimensions(mesh)
    layers = [module for module in model.modules() if isinstance(module, LUT)]
    ngrams = list(ngram_tables(model))
    _check(model, layers, ngrams, across)
    _agree([*model.parameters(), *model.buffers()], across)
    made: dict[int, nn.Parameter] = {}  # a parameter that two layers have in common stays common
    for layer in layers:
        _shard(layer, across, made)
    for rows in ngrams:
        _shard_rows(rows, across)
    if data is not None:
        _average_over(model, data)
    return model


def _dimensions(mesh: object) -> tuple[DeviceMesh, DeviceMesh | None]:
    """The mesh of the detectors, and that of the data where there is one: both of one dimension."""
    if not isinstance(mesh, DeviceMesh):
        fail("mesh", mesh, "a DeviceMesh, as init_device_mesh makes")
    if mesh.get_coordinate() is None:
        raise ArgumentError(f"the mesh holds the ranks {mesh.mesh.tolist()}, expected this one, {distributed.get_rank()}, too")
    if mesh.ndim == 1:
        return mesh, None
    if mesh.ndim != 2:
        fail("mesh", mesh, "one dimension, or two: data and detectors")
    names = mesh.mesh_dim_names
    if names is None:
        data, across = (DeviceMesh.from_group(mesh.get_group(dim), mesh.device_type) for dim in range(2))
        return across, data
    name = DIMENSION if DIMENSION in names else names[1]
    return mesh[name], mesh[names[1 - names.index(name)]]


def _check(model: nn.Module, layers: list[LUT], ngrams: list[NgramTables], mesh: DeviceMesh) -> None:
    if not layers and not ngrams:
        fail("model", type(model).__name__, "a model with LUT layers or n-gram tables")
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
    for rows in ngrams:
        if rows.share is not None:
            raise ArgumentError(f"{names[id(rows)]} is sharded already, expected a model that is whole")
        if len(rows.weight) < mesh.size():
            raise ArgumentError(f"{names[id(rows)]} has {len(rows.weight)} rows for {mesh.size()} ranks, expected some for each")
    for layer in layers:
        name = names[id(layer)]
        if layer.share is not None:
            raise ArgumentError(f"{name} is sharded already, expected a model that is whole")
        if layer.weight.is_meta:
            if layer.seed is None or layer.weight.dim() == 1:  # flat, as the weights of synapses are
                raise ArgumentError(f"{name} is on meta, which needs a layer without synapses, and with a seed")
            if layer.thresholds is not None and layer.compares == "given":
                raise ArgumentError(f"{name} is on meta with thresholds that were given, expected ones that a seed draws")
        elif layer.weight.device.type != mesh.device_type:
            raise ArgumentError(f"{name} is on {layer.weight.device}, expected {mesh.device_type}, the device of the mesh")
        if layer.gradient != "dense" and layer.n_detectors < mesh.size():
            raise ArgumentError(
                f"{name} has {layer.n_detectors} detectors for {mesh.size()} ranks, expected some for each: its gradient is "
                f'"{layer.gradient}"'
            )


def _bounds(layer: LUT, ranks: int) -> list[int]:
    """Where the detectors of each rank begin, and the end: as DTensor cuts, or where no DTensor asks for it evenly."""
    n_detectors, size = layer.n_detectors, -(-layer.n_detectors // ranks)
    if layer.gradient == "dense":
        return [min(rank * size, n_detectors) for rank in range(ranks + 1)]
    return [rank * n_detectors // ranks for rank in range(ranks + 1)]


@torch.no_grad()
def _agree(tensors: list[Tensor], mesh: DeviceMesh) -> None:
    """Give all ranks the values of the first."""
    for tensor in tensors:
        if tensor.numel() and not tensor.is_meta:
            sent = tensor.detach().contiguous()
            distributed.broadcast(sent.view(-1).view(torch.uint8), group_src=0, group=mesh.get_group())
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)


# ---- layers ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _shard(layer: LUT, mesh: DeviceMesh, made: dict[int, nn.Parameter]) -> None:
    """Turn a layer into this rank's part of it."""
    bounds = _bounds(layer, mesh.size())
    rank = mesh.get_local_rank()
    counts = tuple(end - begin for begin, end in pairwise(bounds))
    spreads = {"anchors": Spread(mesh, 0, counts), "weight": Spread(mesh, 0, counts)}
    fresh = layer.weight.is_meta
    if fresh:
        _draw_small(layer, mesh.device_type)
    whole = layer.describe()
    layer.anchors = spreads["anchors"].cut(whole.anchors)
    if isinstance(whole.connectivity, Synapses):
        spreads |= _shard_synapses(layer, whole.connectivity, mesh, bounds)
    if isinstance(layer, LUTAttention) and not layer.shared_positions:
        spreads["positions"] = Spread(mesh, 1, counts, padded=layer.gradient != "dense")
    for name in {"weight", "positions"} & spreads.keys():
        old = getattr(layer, name)
        if id(old) not in made:
            plain = name == "weight" and layer.gradient != "dense"  # no optimiser takes a sparse gradient of a DTensor
            if fresh and name == "weight":
                piece = _draw_tables(layer, bounds[rank], counts[rank])
            else:
                piece = spreads[name].cut(old.detach())
            made[id(old)] = nn.Parameter(piece if plain else spreads[name].distribute(piece), requires_grad=old.requires_grad)
        setattr(layer, name, made[id(old)])
    layer.share = DetectorShare(spreads, counts[rank])


def _draw_small(layer: LUT, device: str) -> None:
    """Make all of a layer on meta but its tables, as its seed says."""
    sizes = (layer.n_inputs, layer.n_detectors, layer.n_anchors, layer.seed)
    anchors, thresholds = draw_comparisons("pairs" if layer.compares == "given" else layer.compares, *sizes)
    layer.anchors = anchors.to(device)
    if layer.thresholds is not None and thresholds is not None:
        layer.thresholds = thresholds.to(device, layer.thresholds.dtype)
    for name, start in SCALARS[layer.read].items():
        setattr(layer, name, nn.Parameter(torch.full_like(getattr(layer, name), start, device=device)))
    if isinstance(layer, LUTAttention):
        layer.positions = nn.Parameter(torch.empty_like(layer.positions, device=device))
        layer._draw_positions()


def _draw_tables(layer: LUT, first: int, count: int) -> Tensor:
    """Fresh tables [count, n_rows, n_outputs], from the detector `first` on: each drawn separately, the same on any rank."""
    assert layer.seed is not None
    meta, dtype = layer.meta, layer.weight.dtype
    tables = torch.empty(count, layer.n_rows, layer.n_outputs, dtype=dtype, device=layer.anchors.device)
    work = torch.float64 if dtype == torch.float64 else torch.float32
    for number, table in enumerate(tables):
        draw = torch.Generator().manual_seed((layer.seed * 0x9E3779B97F4A7C15 + first + number + 1) % 2**63)
        numbers = torch.rand(table.shape, generator=draw, dtype=work).mul_(2).sub_(1)
        table.copy_(numbers.mul_(meta.initial_noise).add_(meta.initial_weight).clamp_(meta.min_weight, meta.max_weight))
    return tables


def _shard_synapses(layer: LUT, synapses: Synapses, mesh: DeviceMesh, bounds: list[int]) -> dict[str, Spread]:
    """Keep the synapses of this rank's detectors; how they, and the weights, are spread."""
    per_detector = synapses.n_owners // synapses.n_detectors  # owners: neurons, or detectors
    starts = synapses.owner_start.cpu()[torch.tensor(bounds) * per_detector].tolist()
    listed = tuple(end - begin for begin, end in pairwise(starts))
    owners = tuple((end - begin) * per_detector for begin, end in pairwise(bounds))
    weights = tuple(n * (synapses.n_rows if synapses.layout == "shared" else 1) for n in listed)
    spreads = {
        "synapse_start": Spread(mesh, 0, owners),
        "synapse_targets": Spread(mesh, 0, listed),
        "synapse_meta": Spread(mesh, 0, listed),
        "weight": Spread(mesh, 0, weights, padded=True),
    }
    begins = spreads["synapse_start"].cut(synapses.owner_start.diff()).cumsum(0)
    layer.synapse_start = torch.cat([begins.new_zeros(1), begins])
    layer.synapse_targets = spreads["synapse_targets"].cut(synapses.owner_targets)
    layer.synapse_meta = spreads["synapse_meta"].cut(synapses.owner_meta)
    rank = mesh.get_local_rank()
    count = bounds[rank + 1] - bounds[rank]
    layer._header = replace(synapses, n_detectors=count).header_text
    layer._n_weights = weights[rank]
    return spreads


@torch.no_grad()
def _shard_rows(layer: NgramTables, mesh: DeviceMesh) -> None:
    """Keep this rank's part of the rows of n-gram tables; of tables on meta, zeros."""
    total, ranks, rank = len(layer.weight), mesh.size(), mesh.get_local_rank()
    bounds = [part * total // ranks for part in range(ranks + 1)]
    spread = Spread(mesh, 0, tuple(end - begin for begin, end in pairwise(bounds)))
    weight = layer.weight
    if weight.is_meta:
        piece = torch.zeros(spread.sizes[rank], layer.width, dtype=weight.dtype, device=mesh.device_type)
    else:
        piece = spread.cut(weight.detach())
    layer.weight = nn.Parameter(piece, requires_grad=weight.requires_grad)
    layer.share = RowShare({"weight": spread}, bounds[rank])


class RowShare(NamedTuple):
    """This rank's rows of n-gram tables, from `first` on."""

    spreads: dict[str, Spread]
    first: int

    def rows(self, layer: NgramTables, index: Tensor) -> Tensor:
        """index [B, S, n_tables] of all rows -> rows [B, S, n_tables, width], of all ranks."""
        own = index - self.first
        inside = (own >= 0) & (own < len(layer.weight))
        # None that is another rank's, as zeros: what is read is stepped, and decays.
        read = F.embedding(own[inside], layer.weight, sparse=layer.gradient == "sparse")
        rows = read.new_zeros(*index.shape, layer.width).index_put((inside,), read)
        return _Leave.apply(self.spreads["weight"].mesh.get_group(), rows)


class DetectorShare(NamedTuple):
    """This rank's share of a layer: `n_detectors` of the layer counts those of all ranks, `n_own` those of this one.

    `spreads` says how its parameters and buffers lie on the ranks, by name; the buffers are those of this rank's detectors.
    """

    spreads: dict[str, Spread]
    n_own: int

    def own(self, layer: LUT) -> LUT:
        """This rank's detectors as an ordinary layer: of the same memory, and gradients flow through it."""
        return self._own(layer, dict(layer._parameters))

    def _own(self, layer: LUT, parameters: dict[str, Any]) -> LUT:
        own = type(layer).__new__(type(layer))
        own.__dict__.update(layer.__dict__)
        for name, parameter in parameters.items():
            parameters[name] = self.spreads[name].own(parameter) if name in self.spreads else parameter
        own.__dict__.update(_parameters=parameters, n_detectors=self.n_own, share=None)
        return own

    @uncompiled("a sharded LUT layer communicates with other ranks: compiled graphs break around it")
    def forward(self, layer: LUT, x: Tensor, *args: Any) -> Tensor:
        """x, the same on all ranks, [..., n_inputs] -> y [..., n_outputs], the sum over all ranks."""
        group = self.spreads["weight"].mesh.get_group()
        parameters = dict(layer._parameters)
        shared = [name for name, parameter in parameters.items() if parameter is not None and name not in self.spreads]
        x, *entered = _Enter.apply(group, x, *(parameters[name] for name in shared))
        own = self._own(layer, {**parameters, **dict(zip(shared, entered, strict=True))})
        with self._draws_of_its_own(own, x.device):
            y = own.forward(x, *args) if self.n_own else _nothing(own, x)
        return _Leave.apply(group, y)

    @contextmanager
    def _draws_of_its_own(self, own: LUT, device: torch.device) -> Iterator[None]:
        """Drop different tables on each rank, and leave the generators in the same state: the rest must draw the same numbers."""
        if not (own.training and own.table_dropout):
            yield
            return
        seed = int(torch.randint(2**62, ()))
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed + self.spreads["weight"].rank)
            yield


def _nothing(layer: LUT, x: Tensor) -> Tensor:
    """The output of no detectors, [..., n_outputs]: zeros with zero gradients, as every rank must take part."""
    dtype = torch.promote_types(x.dtype, layer.weight.dtype)
    y = x[..., :0].sum(-1, keepdim=True, dtype=dtype)
    for parameter in layer.parameters(recurse=False):
        y = y + parameter.flatten()[:0].sum(dtype=dtype)
    return y.expand(*x.shape[:-1], layer.n_outputs)


# ---- messages --------------------------------------------------------------------------------------------------------


class _Enter(torch.autograd.Function):
    """Tensors that all ranks hold, as each uses them for its own detectors: their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, group: distributed.ProcessGroup, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        return None, *(summed(grad, ctx.group, "gradient") if want else None for grad, want in zip(grads, wanted, strict=True))


class _Leave(torch.autograd.Function):
    """The sum over the ranks; its gradient, which all ranks know, is the gradient of every addend."""

    @staticmethod
    def forward(ctx: Any, group: distributed.ProcessGroup, y: Tensor) -> Tensor:
        return summed(y, group, "y")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


def summed(tensor: Tensor, group: distributed.ProcessGroup, name: str) -> Tensor:
    """The sum of a tensor of any shape over the ranks of a group; half-precision tensors are sent and summed as float32."""
    work = tensor.float() if tensor.dtype in HALVES else tensor.clone(memory_format=torch.contiguous_format)
    with flow.step("all_reduce", part="training", inputs={name: work}, ranks=distributed.get_world_size(group)) as step:
        distributed.all_reduce(work, group=group)
        step.outputs(sum=work)
    return work.to(tensor.dtype)


# ---- data × detectors ------------------------------------------------------------------------------------------------


def _average_over(model: nn.Module, data: DeviceMesh) -> None:
    """Average the gradients of sharded parameters over the ranks that see different data, and exclude them from
    DistributedDataParallel. An accumulated gradient is averaged each time, which leaves what was averaged before unchanged.
    """
    names = [name for name, _ in model.named_parameters() if name in spreads_of(model)]
    parameters = spread_parameters(model)
    own = [parameter for parameter in model.parameters() if id(parameter) in parameters]
    _agree([each.to_local() if hasattr(each, "to_local") else each for each in own], data)
    _agree([each for each in [*model.parameters(), *model.buffers()] if id(each) not in parameters], data)
    rank, size = data.get_local_rank(), data.size()
    world = World(torch.device(data.device_type), rank, size, 0, rank, size, data.get_group())
    for parameter in own:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda each: average_gradients([each], world))
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)

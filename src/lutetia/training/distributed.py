"""Many processes: ranks and groups, gradients averaged over ranks with different data, and numbers on which all ranks agree.

`World.data_rank` and `World.data_size` say which share of each batch this rank has, and `World.group` which ranks average their
gradients. Plain data parallel has one group of all; on a mesh with detector parallelism it is one column of the mesh.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous

from lutetia.errors import ArgumentError, RankError
from lutetia.nn import ngram_tables
from lutetia.training.watch import Watch


@dataclass(frozen=True)
class World:
    """This process among all."""

    device: torch.device
    rank: int = 0
    size: int = 1
    restarts: int = 0  # how often torchrun has restarted all processes
    data_rank: int = 0
    data_size: int = 1
    group: Any = None  # the process group over which gradients are averaged; None: all
    mesh: DeviceMesh | None = None  # of the ranks that share detectors with us
    watch: Watch | None = None  # which ranks are alive

    @property
    def detectors(self) -> int:
        """How many ranks share the detectors of each layer."""
        return 1 if self.mesh is None else self.mesh.size()

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def start(device: str | None = None, detectors: int = 1, timeout: float = 600.0) -> World:
    """Join the other processes if torchrun started this one, and choose the device: a GPU if there is one.

    `detectors` ranks in a row share the detectors of each layer, and see the same data. A rank waits for the others for up to
    `timeout` seconds in each exchange.
    """
    rank, size, local = (int(os.environ.get(name, default)) for name, default in
                         (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")))  # fmt: skip
    if size % detectors:
        raise ArgumentError(
            f"parallel.detectors is {detectors} and there are {size} processes, expected a multiple of {detectors}: "
            f"start them with torchrun --nproc-per-node {detectors}, or set parallel.detectors=1"
        )
    chosen = choose_device(device, local if size > 1 else None)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    limit, watch = timedelta(seconds=timeout), None
    if size > 1 and not distributed.is_initialized():
        # One store serves all restarts, and the addresses of the dead still lie in it: without a prefix the living call them.
        store = distributed.PrefixStore(f"restart-{restarts}", _meet(rank, size, limit))  # type: ignore[attr-defined]
        # Both: messages other than tensors go over gloo, and never make a GPU wait.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        watch = Watch(store, rank, size, timeout)
    if detectors == 1:
        return World(chosen, rank, size, restarts, rank, size, watch=watch)
    ranks = torch.arange(size).view(size // detectors, detectors)
    groups = [_group_of(rank, ranks.T, limit), _group_of(rank, ranks, limit)]
    mesh = DeviceMesh.from_group(groups, chosen.type, mesh=ranks, mesh_dim_names=("data", "detectors"))
    return World(chosen, rank, size, restarts, rank // detectors, size // detectors, groups[0], mesh["detectors"], watch)


def _meet(rank: int, size: int, limit: timedelta) -> Any:
    """The store that all ranks connect to, once all have joined."""
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
    except ValueError as error:
        raise ArgumentError(
            f"WORLD_SIZE is {size}, and {' '.join(str(error).split())}: start the processes with torchrun"
        ) from error
    except RuntimeError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RankError(
            f"rank {rank} of {size} did not meet the others at {where} within {limit.total_seconds():g} s (parallel.timeout): "
            f"{' '.join(str(error).split())}"
        ) from error
    return store


def _group_of(rank: int, lines: Tensor, limit: timedelta) -> Any:
    """The process group of the line of ranks that this one is in: lines [n, ranks], each of which becomes a group."""
    groups = [(line, distributed.new_group(line, timeout=limit)) for line in lines.tolist()]
    return next(group for line, group in groups if rank in line)


def finish(world: World) -> None:
    """Leave the process group after a run that ended well."""
    if world.size > 1 and distributed.is_initialized():
        wait_for_all(world)
        if world.watch is not None:
            world.watch.stop()
        gc.collect()  # a process group still held by a dead model would wait forever
        distributed.destroy_process_group()


def choose_device(name: str | None, local_rank: int | None = None) -> torch.device:
    """The device of that name; without one the GPU, or the CPU where there is none."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ArgumentError(f"the device is {name!r}, expected cpu, cuda, or cuda and a number, such as cuda:1") from error
    if device.type not in ("cpu", "cuda"):
        raise ArgumentError(f"the device is {name!r}, expected cpu or cuda")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = device.index if device.index is not None else (local_rank or 0)
    if not count:
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        raise ArgumentError(f"the device is {name or 'cuda'}, but {why}: expected cpu (`lutetia doctor` lists the devices)")
    if number >= count:
        last = f" to cuda:{count - 1}" if count > 1 else ", the only GPU here"
        raise ArgumentError(f"the device is cuda:{number}, expected cuda:0{last}")
    return torch.device("cuda", number)


# ---- gradients -------------------------------------------------------------------------------------------------------


def parallel(model: nn.Module, world: World) -> nn.Module:
    """The model in DistributedDataParallel, where that can average its gradients: NCCL has no sum of sparse tensors."""
    if world.data_size == 1 or averages_by_hand(model, world):
        return model
    devices = [world.device] if world.device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions of torch have another name for the last option
        return nn.parallel.DistributedDataParallel(model, device_ids=devices, process_group=world.group, broadcast_buffers=False)


def averages_by_hand(model: nn.Module, world: World) -> bool:
    """Whether `average_gradients` must do what DistributedDataParallel cannot."""
    if world.data_size == 1:
        return False
    layers = [module for module in model.modules() if getattr(module, "gradient", None) == "sparse"]
    sharded = any(getattr(module, "share", None) is not None for module in model.modules())
    # DistributedDataParallel takes all parameters of a module to have sparse gradients, or none: scalars and positions do not.
    mixed = any(len(list(layer.parameters(recurse=False))) > 1 for layer in layers)
    mixed = mixed or any(True for _ in ngram_tables(model))  # averaged alike on gloo and NCCL
    return sharded or mixed or (bool(layers) and world.device.type == "cuda")


def without_sync(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Average gradients only with the last part of an accumulated batch."""
    return model.no_sync() if not last and isinstance(model, nn.parallel.DistributedDataParallel) else nullcontext()


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Replace each gradient, dense or sparse, by its mean over the ranks that see different data."""
    waiting = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = mean_of_sparse(parameter.grad, world)
            continue
        local = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
        waiting.append((distributed.all_reduce(local, group=world.group, async_op=True), local))
    for work, local in waiting:
        work.wait()
        local.div_(world.data_size)


def mean_of_sparse(gradient: Tensor, world: World) -> Tensor:
    """The mean of sparse COO tensors of the same shape, one from each rank, coalesced."""
    gradient = gradient.coalesce()
    indices, values = gradient.indices(), gradient.values()
    count = torch.tensor([values.shape[0]], device=values.device)
    counts = [torch.empty_like(count) for _ in range(world.data_size)]
    distributed.all_gather(counts, count, group=world.group)
    sizes = [int(each) for each in counts]
    all_indices = _gather_rows(indices.T.contiguous(), sizes, world).T
    all_values = _gather_rows(values, sizes, world)
    total = torch.sparse_coo_tensor(all_indices, all_values, gradient.shape, check_invariants=False).coalesce()
    total._values().div_(world.data_size)
    return total


def _gather_rows(rows: Tensor, sizes: list[int], world: World) -> Tensor:
    """rows [n, ...] of all ranks, one after another; n differs, so messages are padded to the longest."""
    padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
    padded[: len(rows)] = rows
    found = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(found, padded, group=world.group)
    return torch.cat([each[:size] for each, size in zip(found, sizes, strict=True)])


# ---- numbers ---------------------------------------------------------------------------------------------------------


def total(numbers: Tensor, world: World) -> Tensor:
    """The sum of a tensor over the ranks that see different data."""
    if world.data_size > 1:
        distributed.all_reduce(numbers, group=world.group)
    return numbers


def largest(numbers: list[float], world: World) -> list[float]:
    """The maximum of each number over all ranks, so that all decide the same."""
    if world.size == 1:
        return numbers
    tensor = torch.tensor(numbers, dtype=torch.float64)
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
    return tensor.tolist()


def gather(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """The CPU tensors of all ranks, as "rank/name"; each has the same shape everywhere."""
    if world.size == 1:
        return {f"0/{name}": tensor for name, tensor in tensors.items()}
    gathered: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found = [torch.empty_like(tensor) for _ in range(world.size)]
        distributed.all_gather(found, tensor)
        gathered |= {f"{rank}/{name}": each for rank, each in enumerate(found)}
    return gathered


def wait_for_all(world: World) -> None:
    if world.size > 1:
        largest([0.0], world)

"""Tensors that are spread over ranks, and the whole ones that checkpoints hold.

A checkpoint never knows how many ranks wrote it: it holds whole tensors, which any number of ranks can shard again. They are
assembled in the host memory of the first rank, piece by piece, so no device holds more than one piece besides its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from lutetia.errors import DataError


@dataclass(frozen=True)
class Spread:
    """How one tensor is spread over the ranks of a mesh: one piece after another along a dimension. DTensor supports only pieces
    of one size, with a shorter last one. Other pieces, such as the flat weights of sparse connectivity, which follow their
    detectors, are padded with zeros to the longest: the DTensor is longer than the whole.
    """

    mesh: DeviceMesh
    dim: int
    sizes: tuple[int, ...]  # of the piece of each rank, along `dim`
    padded: bool = False

    @property
    def rank(self) -> int:
        return self.mesh.get_local_rank()

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def own(self, tensor: Tensor) -> Tensor:
        """This rank's piece of a DTensor, or of a plain tensor that is one, without padding; gradients flow through it."""
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        size = self.sizes[self.rank]
        return local if local.shape[self.dim] == size else local.narrow(self.dim, 0, size)

    def cut(self, whole: Tensor) -> Tensor:
        """A copy of this rank's piece of a whole tensor."""
        start = sum(self.sizes[: self.rank])
        return whole.narrow(self.dim, start, self.sizes[self.rank]).clone(memory_format=torch.contiguous_format)

    def distribute(self, piece: Tensor) -> DTensor:
        """The DTensor of which this rank holds a piece."""
        length = self.total
        if self.padded:
            longest = max(self.sizes)
            length = longest * len(self.sizes)
            if piece.shape[self.dim] < longest:
                rest = list(piece.shape)
                rest[self.dim] = longest - piece.shape[self.dim]
                piece = torch.cat([piece, piece.new_zeros(rest)], self.dim)
        shape = torch.Size([*piece.shape[: self.dim], length, *piece.shape[self.dim + 1 :]])
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(piece, self.mesh, [Shard(self.dim)], run_check=False, shape=shape, stride=stride)

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        """This rank's piece of a whole tensor, as `like` is one: a DTensor or plain."""
        piece = self.cut(whole).to(like.device)
        return self.distribute(piece) if isinstance(like, DTensor) else piece

    def gather(self, tensor: Tensor) -> Tensor:
        """The whole tensor on the CPU of the first rank, and an empty one on the others; all ranks must call this."""
        pieces = _to_first(self.own(tensor.detach()), self.dim, self.sizes, self.mesh)
        return torch.cat(pieces, self.dim) if pieces else tensor.new_empty(0, device="cpu")

    def gather_sparse(self, tensor: Tensor) -> tuple[Tensor, Tensor, bool]:
        """The same for a sparse tensor, sharded along its first dimension: indices, values, and whether they are coalesced."""
        indices, values = tensor._indices().clone(), tensor._values()
        indices[0] += sum(self.sizes[: self.rank])
        facts = torch.tensor([values.shape[0], tensor.is_coalesced()], device=values.device)
        found = [torch.empty_like(facts) for _ in self.sizes]
        distributed.all_gather(found, facts, group=self.mesh.get_group())
        sizes = tuple(int(each[0]) for each in found)
        # One after another, coalesced pieces are a coalesced whole: the first index decides, and later ranks have larger ones.
        coalesced = all(bool(each[1]) for each in found)
        gathered = [_to_first(each, dim, sizes, self.mesh) for each, dim in ((indices, 1), (values, 0))]
        if self.rank:
            return indices.new_empty(0), values.new_empty(0), coalesced
        return torch.cat(gathered[0], 1), torch.cat(gathered[1]), coalesced

    def cut_sparse(self, indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's part of the indices and values of a whole sparse tensor."""
        start = sum(self.sizes[: self.rank])
        own = (indices[0] >= start) & (indices[0] < start + self.sizes[self.rank])
        mine = indices[:, own]
        mine[0] -= start
        return mine, values[own]


def _to_first(piece: Tensor, dim: int, sizes: tuple[int, ...], mesh: DeviceMesh) -> list[Tensor]:
    """The pieces of all ranks, on the CPU of the first; [] on the others."""
    group, rank = mesh.get_group(), mesh.get_local_rank()
    if rank:
        if piece.numel():
            distributed.send(_as_bytes(piece.contiguous()), group_dst=0, group=group)
        return []
    pieces = [piece.cpu()]
    for source, size in enumerate(sizes[1:], 1):
        shape = list(piece.shape)
        shape[dim] = size
        other = piece.new_empty(shape)
        if other.numel():
            distributed.recv(_as_bytes(other), group_src=source, group=group)
        pieces.append(other.cpu())
    return pieces


def _as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor as bytes [n], in the same memory, so that messages need no types."""
    return tensor.view(-1).view(torch.uint8)


# ---- models ----------------------------------------------------------------------------------------------------------


def spreads_of(model: nn.Module) -> dict[str, Spread]:
    """How the parameters and buffers of a model are spread, by name; those that all ranks hold are not in it."""
    found = {}
    for prefix, module in model.named_modules():
        for name, spread in getattr(getattr(module, "share", None), "spreads", {}).items():
            found[f"{prefix}.{name}" if prefix else name] = spread
    return found


def spread_parameters(model: nn.Module) -> dict[int, Spread]:
    """How the parameters of a model are spread, by id."""
    spreads = spreads_of(model)
    return {id(parameter): spreads[name] for name, parameter in model.named_parameters() if name in spreads}


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that the model would have unsharded, on the CPU of the first rank of the mesh; all ranks must call this.

    On the other ranks, sharded tensors are empty. `load_full_state_dict` takes it on any number of ranks, and `load_state_dict`
    of an unsharded model.
    """
    spreads = spreads_of(model)
    state = {}
    for name, tensor in model.state_dict().items():
        spread = spreads.get(name)
        if spread is None:
            state[name] = tensor.detach().cpu()
        elif name.endswith(STARTS):
            counts = spread.gather(tensor.diff())
            state[name] = torch.cat([counts.new_zeros(1), counts.cumsum(0)]) if len(counts) else counts
        else:
            state[name] = spread.gather(tensor)
    return state


STARTS = "synapse_start"  # of each owner, and the end of the last: the one tensor that is no row of pieces


def load_full_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a whole state dict into a model; if it is sharded, each rank takes its own part."""
    spreads, own = spreads_of(model), model.state_dict()
    for name, spread in spreads.items():
        if name in state:
            _check_shape(name, state[name], own[name], spread)
    loaded: dict[str, Any] = {}
    for name, tensor in state.items():
        spread = spreads.get(name)  # type: ignore[assignment]
        if spread is None or name not in own:
            loaded[name] = tensor
        elif name.endswith(STARTS):
            counts = spread.cut(tensor.diff())
            loaded[name] = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            _check_synapses(name, loaded[name], own[name])
        else:
            loaded[name] = spread.place(tensor, own[name])
    model.load_state_dict(loaded)


def _check_shape(name: str, whole: Tensor, own: Tensor, spread: Spread) -> None:
    wanted = list(own.shape)
    wanted[spread.dim] = spread.total + name.endswith(STARTS)
    if list(whole.shape) != wanted:
        raise DataError(f"the tensor {name} has the shape {list(whole.shape)}, expected {wanted}")


def _check_synapses(name: str, starts: Tensor, own: Tensor) -> None:
    """Refuse different synapses: they would need different pieces than the model was cut into."""
    if not torch.equal(starts, own.cpu()):
        raise DataError(f"the tensor {name} holds different synapses than the sharded model: load it before shard_detectors")

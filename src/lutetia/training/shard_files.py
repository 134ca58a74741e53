"""Checkpoints of tables that no host can hold: every rank writes its own share, and any number of ranks reads them.

By `torch.distributed.checkpoint`, in safetensors: nothing is pickled. The folder has a manifest with checksums, and appears whole
or not at all. Weights with synapses, whose pieces have different sizes, pass through the first rank instead.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor

from lutetia._shared import folders
from lutetia.errors import DataError, LutetiaError
from lutetia.training.resharding import STARTS, Spread, full_state_dict, spreads_of

FORMAT = "lutetia.shards/1"


def save_shards(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write the state of a model, sharded with `shard_detectors` or whole, to a folder; every rank calls it.

    The ranks must share a file system. An earlier checkpoint of this form in the folder is replaced.
    """
    target = Path(os.path.realpath(folder))

    def begin() -> str:
        folders.check_replaceable(target, FORMAT)
        name = f".{target.name}.{secrets.token_hex(4)}.shards"
        target.with_name(name).mkdir(parents=True)
        return name

    def end() -> None:
        files: dict[str, folders.Content] = {path.name: _mover(path) for path in part.glob("*.safetensors")}
        folders.write(target, files, {"format": FORMAT, "ranks": _ranks()}, sizes=True)
        shutil.rmtree(part)

    part = target.with_name(_on_first(begin))
    writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
    state_dict_saver.save(_saved(model), storage_writer=writer, no_dist=_ranks() == 1)
    _on_first(end)


def load_shards(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Load such a folder into a model, sharded over any number of ranks or whole; every rank calls it.

    Checksums, names and shapes are checked before anything is changed.
    """
    path = Path(folder)
    _on_first(lambda: folders.verify(path, FORMAT, what="checkpoint"))
    reader = HuggingFaceStorageReader(str(path))
    spreads, own = spreads_of(model), model.state_dict()
    wanted = {name: _target(name, tensor, spreads.get(name)) for name, tensor in own.items()}
    with _reading(path):
        known = reader.read_metadata().state_dict_metadata
    for name, tensor in wanted.items():
        shape = list(getattr(known.get(name), "size", []))
        if name not in known:
            raise DataError(f"{path} has no tensor {name}, expected one of the shape {list(tensor.shape)}")
        if shape != list(tensor.shape):
            raise DataError(f"{path} has the tensor {name} of shape {shape}, expected {list(tensor.shape)}")
    with _reading(path):
        state_dict_loader.load(wanted, storage_reader=reader, no_dist=_ranks() == 1)
    with torch.no_grad():
        for name, spread in spreads.items():
            if _is_gathered(name, spread):
                own[name].copy_(_cut(name, wanted[name], spread, own[name]))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the folder where torch or safetensors refuse it; they raise nearly anything for a damaged file."""
    try:
        yield
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise DataError(f"{path} cannot be read: it is damaged, or was changed by hand ({why})") from error


def _saved(model: nn.Module) -> dict[str, Tensor]:
    """What this rank contributes to a checkpoint: its pieces, and what all ranks hold."""
    spreads = spreads_of(model)
    gathered = full_state_dict(model) if any(_is_gathered(*each) for each in spreads.items()) else {}
    state = {}
    for name, tensor in model.state_dict().items():
        spread = spreads.get(name)
        if spread is None:
            state[name] = tensor.detach()
        elif not _is_gathered(name, spread):
            state[name] = tensor.detach() if isinstance(tensor, DTensor) else spread.distribute(tensor.detach())
        elif spread.rank == 0:
            state[name] = gathered[name]
    return state


def _target(name: str, tensor: Tensor, spread: Spread | None) -> Tensor:
    """The destination of a tensor: the model itself or, where pieces differ in size, a new whole tensor."""
    if spread is None:
        return tensor.detach()
    if not _is_gathered(name, spread):
        return tensor.detach() if isinstance(tensor, DTensor) else spread.distribute(tensor.detach())
    local = spread.own(tensor)
    shape = [*local.shape]
    shape[spread.dim] = spread.total + name.endswith(STARTS)
    return torch.empty(shape, dtype=local.dtype)


def _cut(name: str, whole: Tensor, spread: Spread, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, as the model holds it."""
    if name.endswith(STARTS):
        counts = spread.cut(whole.diff())
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return spread.place(whole, like)


def _is_gathered(name: str, spread: Spread) -> bool:
    """Whether the pieces of a tensor are not those of a DTensor, equal but for the last, because they follow its synapses."""
    longest = -(-spread.total // len(spread.sizes))
    even = tuple(max(0, min(longest, spread.total - rank * longest)) for rank in range(len(spread.sizes)))
    return name.endswith(STARTS) or spread.sizes != even


def _mover(path: Path) -> Callable[[Path], object]:
    return lambda place: os.replace(path, place)


# ---- ranks -----------------------------------------------------------------------------------------------------------


def _ranks() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _on_first(do: Callable[[], Any]) -> Any:
    """Run on the first rank while the others wait; all ranks get its result or its error."""
    if _ranks() == 1:
        return do()
    said: list[Any] = [None, None]  # the error, and the answer
    if distributed.get_rank() == 0:
        try:
            said[1] = do()
        except (LutetiaError, OSError) as error:
            said[0] = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
    distributed.broadcast_object_list(said)
    if said[0] is not None:
        raise DataError(said[0])
    return said[1]

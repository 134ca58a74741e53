"""The state of optimisers and random generators as tensors and plain values, so that nothing need be pickled.

Under detector parallel a parameter, and what an optimiser remembers of it, is spread over ranks: `whole` and `placed` are the two
places where that matters. All ranks collect; one of them writes.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia.errors import DataError

PARTS = ("indices", "values")  # of a sparse tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts: that of a sharded one is gathered from all ranks."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as the sharded one that it stands for, where `like` is sharded and has its shape."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)  # type: ignore[attr-defined]


# ---- optimisers ------------------------------------------------------------------------------------------------------


def _named(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """The parameters of an optimiser in its order, with their names in the model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(names[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


def pack_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """What an optimiser remembers: tensors as "parameter/name", plain values by parameter and name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for name, parameter in _named(model, optimizer):
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                values.setdefault(name, {})[key] = value
            elif value.is_sparse:
                # As it is, coalesced or not: adding in another order would change the last bits.
                tensors[f"{name}/{key}/indices"], tensors[f"{name}/{key}/values"] = value._indices(), value._values()
                values.setdefault(name, {})[f"{key}/coalesced"] = value.is_coalesced()
            else:
                tensors[f"{name}/{key}"] = whole(value)
    return tensors, values


def unpack_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], values: dict[str, dict[str, Any]]
) -> None:
    """Give an optimiser back what `pack_optimizer` took from it; its rates and other options stay those it was made with."""
    state: dict[int, dict[str, Any]] = {}
    for number, (name, parameter) in enumerate(_named(model, optimizer)):
        own = {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}
        entry: dict[str, Any] = {}
        for key, value in values.get(name, {}).items():
            if key.endswith("/coalesced"):
                key = key.removesuffix("/coalesced")
                indices, numbers = (own.pop(f"{key}/{part}") for part in PARTS)
                shape = parameter.shape
                entry[key] = torch.sparse_coo_tensor(indices, numbers, shape, is_coalesced=value, check_invariants=False)
            else:
                entry[key] = value
        entry |= {key: placed(tensor, parameter) for key, tensor in own.items()}
        if entry:
            state[number] = entry
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


# ---- random generators -----------------------------------------------------------------------------------------------


def seed_all(seed: int) -> None:
    """Seed Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def pack_rng(device: torch.device) -> dict[str, Tensor]:
    """The states of the random generators of this process."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = np.random.get_state(legacy=False)
    packed = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *numbers], dtype=torch.int64),
        "python_gauss": _optional(gauss),
        "numpy": torch.from_numpy(state["state"]["key"].astype(np.int64)),
        "numpy_rest": torch.tensor([state["state"]["pos"], state["has_gauss"]], dtype=torch.int64),
        "numpy_gauss": torch.tensor(state["gauss"], dtype=torch.float64),
    }
    if device.type == "cuda":
        packed["cuda"] = torch.cuda.get_rng_state(device)
    return packed


def unpack_rng(packed: dict[str, Tensor], device: torch.device) -> None:
    """Put the generators back where `pack_rng` found them."""
    try:
        version, *numbers = packed["python"].tolist()
        gauss = packed["python_gauss"].tolist()
        random.setstate((version, tuple(numbers), gauss[1] if gauss[0] else None))
        position, has_gauss = packed["numpy_rest"].tolist()
        key = {"key": packed["numpy"].numpy().astype(np.uint32), "pos": position}
        legacy = {"bit_generator": "MT19937", "state": key, "has_gauss": has_gauss, "gauss": packed["numpy_gauss"].item()}
        np.random.set_state(legacy)
        torch.set_rng_state(packed["torch"])
        if device.type == "cuda" and "cuda" in packed:
            torch.cuda.set_rng_state(packed["cuda"], device)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"the states of the random generators in the checkpoint cannot be used: {error}") from error


def _optional(value: float | None) -> Tensor:
    return torch.tensor([value is not None, value or 0.0], dtype=torch.float64)

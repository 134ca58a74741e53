"""The state of optimisers and random generators as tensors and plain values, so that nothing need be pickled.

Under detector parallel a parameter, and what an optimiser remembers of it, is spread over ranks: what is packed is whole, on the
first of them, and each unpacks its own part. All ranks collect; one of them writes.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia.errors import DataError
from lutetia.training.resharding import Spread, spread_parameters

PARTS = ("indices", "values")  # of a sparse tensor


# ---- optimisers ------------------------------------------------------------------------------------------------------


def _named(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """The parameters of an optimiser in its order, with their names in the model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(names[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


def pack_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """What an optimiser remembers: tensors as "parameter/name", plain values by parameter and name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    spreads = spread_parameters(model)
    for name, parameter in _named(model, optimizer):
        spread = spreads.get(id(parameter))
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                values.setdefault(name, {})[key] = value
            elif value.is_sparse:
                # As it is, coalesced or not: adding in another order would change the last bits.
                found = (value._indices(), value._values(), value.is_coalesced())
                indices, numbers, coalesced = found if spread is None else spread.gather_sparse(value)
                tensors[f"{name}/{key}/indices"], tensors[f"{name}/{key}/values"] = indices, numbers
                values.setdefault(name, {})[f"{key}/coalesced"] = coalesced
            else:
                spread_too = spread is not None and value.shape == parameter.shape  # unlike the number of steps
                tensors[f"{name}/{key}"] = spread.gather(value) if spread_too else value.detach()  # type: ignore[union-attr]
    return tensors, values


def unpack_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], values: dict[str, dict[str, Any]]
) -> None:
    """Give an optimiser back what `pack_optimizer` took from it; its rates and other options stay those it was made with."""
    state: dict[int, dict[str, Any]] = {}
    spreads = spread_parameters(model)
    for number, (name, parameter) in enumerate(_named(model, optimizer)):
        own = {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}
        entry: dict[str, Any] = {}
        spread = spreads.get(id(parameter))
        for key, value in values.get(name, {}).items():
            if key.endswith("/coalesced"):
                key = key.removesuffix("/coalesced")
                indices, numbers = (own.pop(f"{key}/{part}") for part in PARTS)
                if spread is not None:
                    indices, numbers = spread.cut_sparse(indices, numbers)
                shape = parameter.shape
                entry[key] = torch.sparse_coo_tensor(indices, numbers, shape, is_coalesced=value, check_invariants=False)
            else:
                entry[key] = value
        entry |= {key: _placed(tensor, parameter, spread) for key, tensor in own.items()}
        if entry:
            state[number] = entry
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _placed(tensor: Tensor, parameter: nn.Parameter, spread: Spread | None) -> Tensor:
    """What is remembered of a parameter, this rank's part of it: a number, such as that of the steps, is the same everywhere."""
    return tensor if spread is None or not tensor.dim() else spread.place(tensor, parameter)


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

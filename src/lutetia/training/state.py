"""The state of optimisers and random generators as tensors and plain values, so that nothing need be pickled.

Under detector parallelism a parameter and its optimiser state are spread over ranks: packed tensors are whole, on the first rank,
and each rank unpacks its own part. All ranks collect; one of them writes.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia.errors import DataError, describe
from lutetia.training.resharding import Spread, spread_parameters

PARTS = ("indices", "values")  # of a sparse tensor
ADAM = {"step", "exp_avg", "exp_avg_sq"}
REMEMBERED = {  # of a parameter, after a step
    "AdamW": ADAM,
    "SparseAdam": ADAM,
    "SGD": {"momentum_buffer"},
    "Lion": {"exp_avg"},
    "RowAdam": {"exp_avg_sq", "count"},
}
BY_ROW = "count"  # of each row, [n_rows, 1]


# ---- optimisers ------------------------------------------------------------------------------------------------------


def _named(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """The parameters of an optimiser in its order, with their names in the model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(names[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


def pack_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """The state of an optimiser: tensors as "parameter/name", plain values by parameter and name."""
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
                each_row = (parameter.shape, by_row(parameter))  # unlike the number of steps
                spread_too = spread is not None and value.shape in each_row
                tensors[f"{name}/{key}"] = spread.gather(value) if spread_too else value.detach()  # type: ignore[union-attr]
    return tensors, values


def unpack_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], values: dict[str, dict[str, Any]]
) -> None:
    """Give an optimiser back what `pack_optimizer` took from it; its rates and other options stay as they are. State that does
    not fit the parameters is a DataError: optimisers trust their state, and would write out of bounds.
    """
    state: dict[int, dict[str, Any]] = {}
    spreads = spread_parameters(model)
    for number, (name, parameter) in enumerate(_named(model, optimizer)):
        own = {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}
        plain = values.get(name, {})
        try:
            entry = _entry(own, plain, parameter, spreads.get(id(parameter)))
        except (DataError, RuntimeError, KeyError, AttributeError, TypeError) as error:
            raise DataError(f"the state of the optimiser for {name} cannot be used: {error}") from error
        wanted = REMEMBERED.get(type(optimizer).__name__, entry.keys())
        if entry.keys() - wanted or (entry and wanted - entry.keys()):
            raise DataError(f"the optimiser holds {sorted(entry)} for {name}, expected {sorted(wanted)}")
        if entry:
            state[number] = entry
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _entry(own: dict[str, Tensor], plain: dict[str, Any], parameter: nn.Parameter, spread: Spread | None) -> dict[str, Any]:
    """What is remembered of one parameter, this rank's part of it, checked."""
    entry: dict[str, Any] = {}
    for key, value in plain.items():
        if key.endswith("/coalesced"):
            key = key.removesuffix("/coalesced")
            indices, numbers = (own.pop(f"{key}/{part}") for part in PARTS)
            entry[key] = _sparse(indices, numbers, bool(value), parameter, spread)
        elif isinstance(value, bool) or not isinstance(value, int | float) or (key == "step" and not 0 <= value < 2**63):
            raise DataError(f"{key} is {value!r}, expected a number, at least 0 for steps")
        else:
            entry[key] = value
    return entry | {key: _placed(key, tensor, parameter, spread) for key, tensor in own.items()}


def _sparse(indices: Tensor, numbers: Tensor, coalesced: bool, parameter: nn.Parameter, spread: Spread | None) -> Tensor:
    """A sparse tensor of the shape of a parameter; torch checks every index, once, here."""
    if indices.dtype != torch.int64 or indices.dim() != 2:
        raise DataError(f"the indices are {describe(indices)}, expected int64 [dimensions, n]")
    if spread is not None:
        indices, numbers = spread.cut_sparse(indices, numbers)
    return torch.sparse_coo_tensor(indices, numbers, parameter.shape, is_coalesced=coalesced, check_invariants=True)


def _placed(key: str, tensor: Tensor, parameter: nn.Parameter, spread: Spread | None) -> Tensor:
    """What is remembered of a parameter, this rank's part of it: a number, such as that of the steps, is the same everywhere."""
    if not tensor.dim():
        if key == "step" and not tensor >= 0:
            raise DataError(f"{key} is {tensor.item()}, expected a number, at least 0 for steps")
        return tensor
    placed = tensor if spread is None else spread.place(tensor, parameter)
    wanted = by_row(parameter) if key == BY_ROW else parameter.shape
    if placed.shape != wanted or not placed.is_floating_point():
        raise DataError(f"{key} is {describe(tensor)}, expected floats of shape {list(wanted)}")
    return placed


def by_row(parameter: Tensor) -> torch.Size:
    """The shape of one number for each row of a parameter."""
    return torch.Size([len(parameter) if parameter.dim() else 1, 1])


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
    """Restore the generators to the states that `pack_rng` saved."""
    try:
        version, *numbers = packed["python"].tolist()
        gauss = packed["python_gauss"].tolist()
        random.setstate((version, tuple(numbers), gauss[1] if gauss[0] else None))
        position, has_gauss = packed["numpy_rest"].tolist()
        if not 0 <= position <= packed["numpy"].numel():  # numpy does not look
            raise ValueError(f"the position of numpy's generator is {position}")
        key = {"key": packed["numpy"].numpy().astype(np.uint32), "pos": position}
        legacy = {"bit_generator": "MT19937", "state": key, "has_gauss": has_gauss, "gauss": packed["numpy_gauss"].item()}
        np.random.set_state(legacy)
        torch.set_rng_state(packed["torch"])
        if device.type == "cuda" and "cuda" in packed:
            torch.cuda.set_rng_state(packed["cuda"], device)
    except (KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise DataError(f"the states of the random generators in the checkpoint cannot be used: {error}") from error


def _optional(value: float | None) -> Tensor:
    return torch.tensor([value is not None, value or 0.0], dtype=torch.float64)

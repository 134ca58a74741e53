"""The state of optimisers and generators survives a file, bit for bit."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lutetia.errors import DataError
from lutetia.nn import LUT
from lutetia.training.config import Optimizer
from lutetia.training.optimizers import make_optimizer
from lutetia.training.state import pack_optimizer, pack_rng, seed_all, unpack_optimizer, unpack_rng

KINDS = {
    "adamw": Optimizer("adamw", lr=0.1, weight_decay=0.1),
    "sgd": Optimizer("sgd", lr=0.1, momentum=0.9),
    "sgd on sparse gradients": Optimizer("sgd", lr=0.1, momentum=0.9),
    "sparse_adam": Optimizer("sparse_adam", lr=0.1),
    "lion": Optimizer("lion", lr=0.1),
}


def model_of(sparse: bool) -> nn.Module:
    gradient = "sparse" if sparse else "dense"
    return nn.Sequential(LUT(5, 4, 6, 3, gradient=gradient, seed=0), LUT(4, 3, 5, 2, gradient=gradient, seed=1))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, n: int) -> None:
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(n))
    optimizer.zero_grad()
    (model(x) - 1).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimiser_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = model_of("sparse" in kind)
        return model, make_optimizer([{"params": list(model.parameters())}], KINDS[kind])

    model, optimizer = fresh()
    for n in range(4):
        step(model, optimizer, n)
    tensors, values = pack_optimizer(model, optimizer)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "a")
    text = json.dumps(values)
    other, twin = fresh()
    other.load_state_dict(model.state_dict())
    unpack_optimizer(other, twin, load_file(tmp_path / "a"), json.loads(text))
    for n in range(4, 8):
        step(model, optimizer, n)
        step(other, twin, n)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    again, more = pack_optimizer(other, twin)
    final, plain = pack_optimizer(model, optimizer)
    assert more == plain
    assert again.keys() == final.keys()
    assert final
    assert all(torch.equal(again[name], final[name]) for name in final)
    forgetful, without = fresh()
    forgetful.load_state_dict(model.state_dict())
    step(forgetful, without, 9)
    step(model, optimizer, 9)
    assert not torch.equal(forgetful[0].weight, model[0].weight), "the state must matter, or this test shows nothing"


TAMPERED: dict[str, tuple[str, str, Any, str]] = {  # of which optimiser, which value, with what, what is said
    "an index beyond the table": ("sgd on sparse gradients", "0.weight/momentum_buffer/indices", 10**6, "found index 1000000"),
    "a negative index": ("sgd on sparse gradients", "0.weight/momentum_buffer/indices", -1, "negative index -1"),
    "indices of another type": ("sgd on sparse gradients", "0.weight/momentum_buffer/indices", torch.int32, "expected int64"),
    "indices of no shape": ("sgd on sparse gradients", "0.weight/momentum_buffer/indices", "flat", "expected int64"),
    "values of another shape": (
        "sgd on sparse gradients",
        "0.weight/momentum_buffer/values",
        "shorter",
        "values has incorrect size",
    ),
    "no values": ("sgd on sparse gradients", "0.weight/momentum_buffer/values", None, "momentum_buffer/values"),
    "a dense state of another shape": ("adamw", "1.weight/exp_avg", "shorter", "exp_avg is float32 .*, expected floats of shape"),
    "a dense state of integers": ("adamw", "1.weight/exp_avg_sq", torch.int32, "exp_avg_sq is int32"),
    "a state that is missing": ("adamw", "1.weight/exp_avg_sq", None, r"holds \['exp_avg', 'step'\] for 1.weight, expected"),
    "a state too many": ("lion", "1.weight/more", torch.ones(()), "expected .'exp_avg'"),
}


@pytest.mark.parametrize("damage", TAMPERED)
def test_a_state_that_does_not_fit_its_parameter_is_refused(damage: str) -> None:
    """Optimisers trust their state: a sparse one with an index beyond the table would write outside of its memory."""
    kind, name, change, said = TAMPERED[damage]
    model = model_of("sparse" in kind)
    optimizer = make_optimizer([{"params": list(model.parameters())}], KINDS[kind])
    step(model, optimizer, 0)
    tensors, values = pack_optimizer(model, optimizer)
    old = tensors.get(name, torch.empty(0))
    new = {"flat": old.flatten(), "shorter": old[..., :-1]}[change] if isinstance(change, str) else change
    if isinstance(change, int):
        new = old.clone()
        new[0, -1] = change
    elif isinstance(change, torch.dtype):
        new = old.to(change)
    changed = {key: tensor for key, tensor in tensors.items() if key != name} | ({} if new is None else {name: new})
    with pytest.raises(DataError, match=said):
        unpack_optimizer(model, optimizer, changed, values)
    unpack_optimizer(model, optimizer, tensors, values)


def test_sparse_indices_out_of_order_are_not_taken_as_coalesced() -> None:
    model = model_of(True)
    optimizer = make_optimizer([{"params": list(model.parameters())}], KINDS["sgd on sparse gradients"])
    step(model, optimizer, 0)
    tensors, values = pack_optimizer(model, optimizer)
    tensors["0.weight/momentum_buffer/indices"] = tensors["0.weight/momentum_buffer/indices"].flip(1)
    values["0.weight"]["momentum_buffer/coalesced"] = True
    with pytest.raises(DataError, match="is_coalesced"):
        unpack_optimizer(model, optimizer, tensors, values)


@pytest.mark.parametrize("value", ["3", None, True, [1]])
def test_plain_values_of_an_optimiser_are_numbers(value: Any) -> None:
    model = model_of(True)
    optimizer = make_optimizer([{"params": list(model.parameters())}], KINDS["sparse_adam"])
    step(model, optimizer, 0)
    tensors, values = pack_optimizer(model, optimizer)
    values["0.weight"]["step"] = value
    with pytest.raises(DataError, match=r"0\.weight cannot be used: step is .*, expected a number"):
        unpack_optimizer(model, optimizer, tensors, values)


def test_a_position_beyond_numpys_generator_is_refused() -> None:
    packed = pack_rng(torch.device("cpu"))
    packed["numpy_rest"][0] = 10**9  # numpy would read there
    with pytest.raises(DataError, match="numpy's generator is 1000000000"):
        unpack_rng(packed, torch.device("cpu"))


def test_a_number_that_no_generator_holds_is_refused() -> None:
    packed = pack_rng(torch.device("cpu"))
    packed["python"][5] = -1  # an OverflowError of Python's
    with pytest.raises(DataError, match="the states of the random generators in the checkpoint cannot be used"):
        unpack_rng(packed, torch.device("cpu"))


def draws() -> list[Any]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]


@pytest.mark.parametrize("odd", [False, True])
def test_generators_go_on_where_they_were(odd: bool, tmp_path: Path) -> None:
    seed_all(5)
    if odd:  # leaves half of a pair of normal numbers behind, in Python and in numpy
        random.gauss(0, 1), np.random.randn()
    cpu = torch.device("cpu")
    save_file(pack_rng(cpu), tmp_path / "a")
    wanted = draws()
    seed_all(6)
    assert draws() != wanted
    unpack_rng(load_file(tmp_path / "a"), cpu)
    assert draws() == wanted
    seed_all(5)
    first = draws()
    seed_all(5)
    assert draws() == first

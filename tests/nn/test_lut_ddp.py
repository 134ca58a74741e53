"""Two processes with half of a batch each learn what one process learns from all of it."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

import warm
from lutetia.lut import growth, use_backend
from lutetia.nn import LUT

WORLD = 2
POLICIES = ("dense", "sparse")


def make_model(gradient: str) -> nn.Module:
    synapses = growth.random(7, 3, 6, 0.6, seed=0, shared=True)
    layers = LUT(6, 6, 5, 4, gradient=gradient, seed=0), LUT(6, 6, 7, 3, gradient=gradient, synapses=synapses, seed=1)
    model = nn.Sequential(*layers).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def train(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) - target).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(10, 6, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    for gradient in POLICIES:
        for synced in (False, True):
            torch.save(train_together(gradient, synced, rank), f"{folder}/{gradient}-{synced}-{rank}.pt")
    gc.collect()  # a process group that outlives its end, held by a model, may wait for ever
    distributed.destroy_process_group()


def train_together(gradient: str, synced: bool, rank: int) -> list[torch.Tensor]:
    """Whether buffers are synchronised at each step must not matter: they never change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions of torch have another name for the option
        model = nn.parallel.DistributedDataParallel(make_model(gradient), broadcast_buffers=synced)
    x, target = (tensor[rank::WORLD] for tensor in data())
    with use_backend("reference"):
        return train(model, x, target)


@pytest.mark.skipif(not distributed.is_available() or not distributed.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_learn_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    warm.spawn(work, (str(tmp_path),), WORLD)
    for gradient in POLICIES:
        with use_backend("reference"):
            want = train(make_model(gradient), *data())
        untrained = [parameter.detach() for parameter in make_model(gradient).parameters()]
        assert not any(torch.equal(mine, its) for mine, its in zip(want, untrained, strict=True))
        for synced in (False, True):
            for rank in range(WORLD):
                learned = torch.load(tmp_path / f"{gradient}-{synced}-{rank}.pt", weights_only=True)
                torch.testing.assert_close(learned, want, rtol=1e-12, atol=1e-12)

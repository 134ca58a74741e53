"""torch.utils.checkpoint around layers and models: each saved tensor may be unpacked once in a backward pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lutetia.lut.kernels import use_backend
from lutetia.models import LUTTransformer
from lutetia.nn import LUT, LUTAttention


def stepped(layer: LUT) -> LUT:
    layer.external_lr = 0.1
    return layer


MODULES: dict[str, Callable[[], nn.Module]] = {
    "hard": lambda: LUT(16, 8, 12, 4, seed=0),
    "blend": lambda: LUT(16, 8, 12, 4, read="blend", seed=0),
    "confidence2": lambda: LUT(16, 8, 12, 4, read="confidence2", seed=0),
    "sparse": lambda: LUT(16, 8, 12, 4, gradient="sparse", seed=0),
    "in place": lambda: stepped(LUT(16, 8, 12, 4, gradient="in_place", seed=0)),
    "fixed": lambda: LUT(16, 8, 12, 4, sums="fixed", seed=0),
    "attention": lambda: LUTAttention(16, 8, 4, 3, positional_dim=2, max_length=16, seed=0),
    "sparse attention": lambda: LUTAttention(16, 8, 4, 3, positional_dim=2, max_length=16, gradient="sparse", seed=0),
    "tables": lambda: LUTTransformer(context=16, width=16, n_layers=1, n_heads=2, n_detectors=4, ff_detectors=8, seed=0),
}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("kind", MODULES)
def test_gradients_are_those_without_checkpointing(kind: str, backend: str) -> None:
    torch.manual_seed(0)
    x = torch.randint(256, (2, 10)) if kind == "tables" else torch.randn(2, 10, 16, requires_grad=True)
    results = []
    with use_backend(backend):
        for wrapped in (False, True):
            module = MODULES[kind]()
            x.grad = None
            y = checkpoint(module, x, use_reentrant=False) if wrapped else module(x)
            y.square().sum().backward()
            found = [module.weight.detach() if kind == "in place" else p.grad.to_dense() for p in module.parameters()]
            results.append([*found, *([] if x.grad is None else [x.grad])])
    for plain, checkpointed in zip(*results, strict=True):
        torch.testing.assert_close(checkpointed, plain)

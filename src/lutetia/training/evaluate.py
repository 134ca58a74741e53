"""How good a model is on a split: what training reports at its end, and `lutetia evaluate` later."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lutetia.training.task import sums_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """The context that computes in `precision`, a value of train.precision, on a type of device."""
    dtype = DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device, dtype)


@torch.no_grad()
def evaluation_sums(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, precision: str) -> Tensor:
    """The sums of an evaluation over batches of inputs and targets, float64 [3]: see `task.sums_of`. Leaves the model in eval
    mode.
    """
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for x, target in batches:
        with autocast(device.type, precision):
            scores = model(x)
        sums += sums_of(scores, target)
    return sums

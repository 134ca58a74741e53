"""`fit`: train any module of classes on arrays, from Python and without a config file."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.errors import check_range, fail
from lutetia.models import Tabular
from lutetia.training.batches import generator
from lutetia.training.config import Optimizer, OptimizersConfig, Schedule
from lutetia.training.data import Data, Samples
from lutetia.training.optimizers import make_optimizers
from lutetia.training.schedule import factor

Pair: TypeAlias = Any  # Data, Samples, or (x, y) or (x, y, weight) of arrays or tensors
Each: TypeAlias = Callable[[int, dict[str, float]], None]
EVALUATED_AT_ONCE = 4096


def fit(
    model: nn.Module,
    data: Pair,
    *,
    valid: Pair | None = None,
    epochs: int = 20,
    batch_size: int = 64,
    lr: float = 1e-2,
    optimizer: OptimizersConfig | None = None,
    schedule: Schedule | None = None,
    patience: int | None = None,
    seed: int = 0,
    each: Each | None = None,
    before_step: Callable[[float], Any] | None = None,
    after_step: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Train a model that scores classes, or with one output predicts a number, in place; returns the losses of each epoch.

    `data` is (x, y), (x, y, weight), or what `open_data` gives, whose validation split is then used. The rates follow `schedule`,
    a cosine by default. With `valid` the weights of the best epoch are kept, and `patience` epochs without an improvement end the
    run. `each(epoch, losses)` is called after every epoch, `before_step(done)` before every step with the part of the run that
    is over, `after_step()` after it.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        check_range(name, value, 1)
    if isinstance(model, Tabular) and model.config.core == "tables":
        fail("model", model, "a module to train by gradient: lutetia.training.fit_tabular fits a Tabular")
    if isinstance(data, Data):
        valid = valid if valid is not None else data.splits.get("valid")
        data = data.splits["train"]
    x, y, weight = _tensors(model, data)
    held = None if valid is None else _tensors(model, valid)
    optimizers = make_optimizers(model, optimizer or OptimizersConfig(Optimizer(lr=lr), Optimizer(lr=lr)))
    schedule = schedule or Schedule()
    batch_size = min(batch_size, len(x))
    per_epoch = math.ceil(len(x) / batch_size)
    losses: dict[str, list[float]] = {"train": [], "valid": []}
    best: tuple[float, dict[str, Tensor] | None] = (math.inf, None)
    waited = epoch = 0
    for epoch in range(1, epochs + 1):
        model.train()
        order = torch.randperm(len(x), generator=generator(seed, "order", epoch)).to(x.device)
        total = 0.0
        for index, chosen in enumerate(order.split(batch_size)):
            done = ((epoch - 1) * per_epoch + index) / (epochs * per_epoch)
            if before_step is not None:
                before_step(done)
            optimizers.set_rates(factor(schedule, done, 1 / (epochs * per_epoch)))
            scores = model(x[chosen])
            if epoch == 1 and index == 0:
                _check_classes(y, scores.shape[1:])
            loss = _loss(scores, y[chosen], weight[chosen])
            with torch.autograd.set_multithreading_enabled(False):  # as in `loop`
                loss.backward()
            for one in optimizers.by_name.values():
                one.step()
            optimizers.zero_grad()
            if after_step is not None:
                after_step()
            total += float(loss.detach()) * len(chosen)
        now = {"train": total / len(x)}
        if held is not None:
            now["valid"] = _evaluate(model, *held)
            waited = 0 if now["valid"] < best[0] else waited + 1
            if not waited:
                best = (now["valid"], copy.deepcopy(model.state_dict()))
        for name, one_loss in now.items():
            losses[name].append(one_loss)
        if each is not None:
            each(epoch, now)
        if patience is not None and waited >= patience:
            break
    if best[1] is not None:
        model.load_state_dict(best[1])
    model.eval()
    return {"epochs": epoch, "losses": losses}


def _tensors(model: nn.Module, data: Pair) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and weights [n] on the device of the model; whole numbers are classes."""
    first = next(model.parameters())
    parts = (data.x, data.y) if isinstance(data, Samples) else tuple(data)
    if len(parts) not in (2, 3) or any(len(part) != len(parts[0]) for part in parts):
        fail("data", [tuple(np.shape(part)) for part in parts], "(x, y) or (x, y, weight) of one length")
    x, y, *more = map(_tensor, ("x", "y", "weight"), parts)
    if not len(x):
        fail("data", "empty", "at least one sample")
    if y.dtype.is_floating_point and not y.isfinite().all():
        fail("y", y, "finite numbers")
    x = x.to(first.dtype) if x.dtype.is_floating_point else x
    weight = more[0] if more else torch.ones(len(x))
    y = y.to(torch.float32) if y.dtype.is_floating_point else y.to(torch.int64)
    return x.to(first.device), y.to(first.device), weight.to(first.device, torch.float32)


def _check_classes(y: Tensor, outputs: Sequence[int]) -> None:
    if not y.dtype.is_floating_point and not (outputs and int(y.min()) >= 0 and int(y.max()) < outputs[0]):
        fail("y", f"{int(y.min())} to {int(y.max())}", f"classes from 0 to {(outputs or [0])[0] - 1}, as the model has outputs")


def _tensor(name: str, part: object) -> Tensor:
    if isinstance(part, Tensor):
        return part
    array = np.array(part)
    if array.dtype.kind not in "iufb":
        fail(name, array.dtype, "numbers; classes are numbered from 0")
    return torch.from_numpy(array)


def _loss(scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The mean of cross-entropies in nats, or of squared errors where the target is a number, by weight: []."""
    if target.dtype.is_floating_point:
        each = (scores.flatten(1)[:, 0].float() - target) ** 2
    else:
        each = F.cross_entropy(scores.float(), target, reduction="none")
    return (each * weight).sum() / weight.sum().clamp(min=1e-12)


@torch.no_grad()
def _evaluate(model: nn.Module, x: Tensor, y: Tensor, weight: Tensor) -> float:
    model.eval()
    parts = [
        _loss(model(a), b, w) * w.sum() for a, b, w in zip(*(t.split(EVALUATED_AT_ONCE) for t in (x, y, weight)), strict=True)
    ]
    return float(torch.stack(parts).sum() / weight.sum())

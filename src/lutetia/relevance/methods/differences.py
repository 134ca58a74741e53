"""DeepLIFT: differences of the output to that of a baseline, passed back by the differences that each step made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lutetia.errors import ArgumentError
from lutetia.relevance.methods.case import Case, Model
from lutetia.relevance.rules.elementwise import is_elementwise

MISSED = 1e-3  # of the contributions, beyond which they do not add up
SMALL = 1e-9  # differences of a function's input, relative to the largest, below which its slope counts


def deeplift(model: Model, inputs: Any, target: object = None, *, baseline: Any = 0.0) -> Any:
    """DeepLIFT by its Rescale rule: a function passes on what its output changed for its input (Shrikumar et al. 2017).

    It takes one run of the model, for x and the baseline side by side, and one backward pass. Rows add up to the score of x minus
    that of the baseline. Linear steps, functions of one number and max pools have this property; a model of others, such as
    attention, is an error. `baseline`: a number, a tensor that broadcasts to x, or one for each of several inputs.
    """
    case = Case(model, inputs, target, baseline)
    blanks = case.blanks(baseline)
    with torch.inference_mode(False), torch.enable_grad():
        pairs = [torch.cat([x, blank]).requires_grad_() for x, blank in zip(case.parts, blanks, strict=True)]
        with _Steps() as steps:
            here, there = case.scores(pairs)
        handles = [fn.register_hook(hook) for fn, hook in steps.hooks]
        try:
            slopes = torch.autograd.grad(here.sum(), pairs, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
    found = []
    for x, blank, slope in zip(case.parts, blanks, slopes, strict=True):
        found.append(torch.zeros_like(x) if slope is None else slope[: len(x)] * (x - blank))
    _check(found, (here - there).detach())
    return case.result(found)


def _check(found: Sequence[Tensor], difference: Tensor) -> None:
    """Refuse contributions that do not add up to the difference [B] of the scores."""
    rows = torch.cat([part.flatten(1) for part in found], 1).double()
    missed = (rows.sum(1) - difference).abs()
    if bool((missed > MISSED * rows.abs().sum(1).maximum(difference.abs())).any()):
        row = int(missed.argmax())
        raise ArgumentError(
            f"the contributions of row {row} miss {float(missed[row]):.3g} of {float(difference[row]):.3g}: the model has steps "
            "that are neither linear nor functions of one number; integrated, shapley and kernel_shap add up for every model"
        )


class _Steps(TorchFunctionMode):
    """Notes the steps that are not linear: their nodes, and what passes gradients on there."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[tuple[Any, Callable[..., Any]]] = []

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        x = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("input")
        before = x.detach().clone() if isinstance(x, Tensor) and x.requires_grad else None  # which it may overwrite
        result = func(*args, **kwargs)
        fn = result.grad_fn if isinstance(result, Tensor) else None
        if fn is not None and before is not None and before.dim() and len(before) % 2 == 0:
            name = fn.name()
            if "MaxPool" in name:
                self.hooks.append((fn, partial(_of_pool, fn, before, result.detach().clone())))
            elif is_elementwise(name) and result.shape == before.shape:
                self.hooks.append((fn, partial(_rescaled, before, result.detach().clone())))
        return result


def _rescaled(x: Tensor, y: Tensor, given: Any, arrived: Any) -> Any:
    """Gradients of a function of one number: what y changed for x, in place of the slope; x and y: of input and baseline."""
    change = _change(x)
    few = change.abs() <= SMALL * x.abs().max()
    ratio = torch.where(few, torch.zeros_like(change), _change(y) / torch.where(few, torch.ones_like(change), change))
    here = torch.where(few, given[0].chunk(2)[0], arrived[0].chunk(2)[0] * ratio)
    return (_both(here), *given[1:])


def _of_pool(fn: Any, x: Tensor, y: Tensor, given: Any, arrived: Any) -> Any:
    """Gradients of a max pool: what the maximum rose goes where it is in the input, what it fell where it was in the baseline."""
    (here, there), change = y.chunk(2), _change(x)
    highest, slope = here.maximum(there), arrived[0].chunk(2)[0]
    parts = fn(torch.cat([slope * (highest - there), slope * (here - highest)]))
    moved = sum((parts[0] if isinstance(parts, tuple) else parts).chunk(2))
    return (_both(torch.where(moved == 0, torch.zeros_like(change), moved / change)), *given[1:])


def _change(pair: Tensor) -> Tensor:
    """The first half minus the second."""
    here, there = pair.chunk(2)
    return here - there


def _both(here: Tensor) -> Tensor:
    """A gradient of the input alone; the baseline gets none."""
    return torch.cat([here, torch.zeros_like(here)])

"""`RowAdam`: Adam for tables of which a step reads few rows. Only these are stepped, and only these decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from lutetia._shared.threads import spread
from lutetia._uncompiled import uncompiled
from lutetia.errors import ArgumentError, check_range, check_tensor, describe
from lutetia.lut import backend_name


class RowAdam(torch.optim.Optimizer):
    """Adam without a first moment, for parameters [n_rows, width] with sparse gradients, such as those of `nn.NgramTables`.

    For each row that a step read, with g the sum of its gradients and n how often it was stepped:

        v ← beta · v + (1 - beta) · g²
        w ← w · (1 - lr · weight_decay) - lr · g / (√(v / (1 - betaⁿ)) + eps)

    On CUDA gradients are summed with atomics, so their last bits may differ from run to run.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        *,
        beta: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if isinstance(lr, Tensor):
            check_tensor("lr", lr, [], (torch.float32, torch.float64))
        for name, value in (("lr", lr.item() if isinstance(lr, Tensor) else lr), ("eps", eps), ("weight_decay", weight_decay)):
            check_range(name, value, 0)
        check_range("beta", beta, 0, 1)
        if beta == 1:
            raise ArgumentError("beta is 1, expected less: the squares would never be updated")
        try:
            super().__init__(params, {"lr": lr, "beta": beta, "eps": eps, "weight_decay": weight_decay})
        except (TypeError, ValueError, LookupError) as error:  # of torch, which says what is wrong with params
            raise ArgumentError(f"params is {describe(params)}, expected parameters or groups of them: {error}") from error
        self._scratch: dict[Tensor, tuple[Tensor, Tensor, Tensor]] = {}  # of CUDA parameters; zeros between steps, so not saved

    @torch.no_grad()
    @uncompiled("steps of rows run in their own kernels")
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step the rows that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)
        return loss

    def _step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if not gradient.is_sparse or gradient.sparse_dim() != 1 or parameter.dim() != 2:
            raise ArgumentError("RowAdam was given a parameter with a dense gradient, expected a sparse one of rows [n, width]")
        state = self.state[parameter]
        if not state:
            state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["count"] = torch.zeros(len(parameter), 1, dtype=torch.float32, device=parameter.device)
        rows, values = gradient._indices()[0], gradient._values().to(parameter.dtype).contiguous()
        if not len(rows):
            return
        backend = backend_name(parameter)
        if backend == "triton":
            self._step_triton(parameter, rows, values, group)
        elif backend == "cpu":
            _step_cpu(parameter, rows, values, state, group)
        else:
            step_reference(parameter, rows, values, state, group)

    def _step_triton(self, parameter: Tensor, rows: Tensor, values: Tensor, group: dict[str, Any]) -> None:
        from lutetia.nn.ngram import kernels

        state, device = self.state[parameter], parameter.device
        if parameter not in self._scratch:
            stamps = torch.zeros(len(parameter), dtype=torch.int32, device=device)
            self._scratch[parameter] = torch.zeros_like(parameter), stamps, torch.zeros((), dtype=torch.int32, device=device)
        sums, stamps, now = self._scratch[parameter]
        now += 1
        lr = group["lr"]
        rate = lr if isinstance(lr, Tensor) else torch.full((), lr, dtype=torch.float32, device=device)
        numbers = (group["beta"], group["eps"], group["weight_decay"])
        memory = (parameter, state["exp_avg_sq"], state["count"], sums, stamps, now, rate)
        kernels.step_rows(rows.contiguous(), values, memory, numbers)


def step_reference(parameter: Tensor, rows: Tensor, values: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """The definition, in plain torch: rows int64 [n] may repeat, values [n, width] are their gradients."""
    read, where = rows.unique(return_inverse=True)
    gradient = values.new_zeros(len(read), values.shape[1]).index_add_(0, where, values)
    square, count, beta = state["exp_avg_sq"], state["count"], group["beta"]
    count[read] += 1
    square[read] = beta * square[read] + (1 - beta) * gradient.square()
    unbiased = 1 - beta ** count[read].to(parameter.dtype)
    change = gradient / ((square[read] / unbiased).sqrt() + group["eps"])
    lr = group["lr"]
    parameter[read] = parameter[read] * (1 - lr * group["weight_decay"]) - lr * change


def _step_cpu(parameter: Tensor, rows: Tensor, values: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """In compiled loops, with a thread for some of the rows: each adds its gradients in order."""
    from lutetia.nn.ngram import loops

    ordered, order = rows.sort(stable=True)
    for row in (int(ordered[0]), int(ordered[-1])):
        if not 0 <= row < len(parameter):
            raise ArgumentError(f"a gradient names row {row}, expected 0 to {len(parameter) - 1}")
    read, counts = ordered.unique_consecutive(return_counts=True)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tensors = (parameter.detach(), state["exp_avg_sq"], state["count"], order, starts, read, values)
    numbers = (float(group["lr"]), float(group["beta"]), float(group["eps"]), float(group["weight_decay"]))
    spread(torch.get_num_threads(), len(read), loops.step_rows, *(each.numpy() for each in tensors), *numbers)

"""Separate optimisers for tables and for the rest; rates, clipping, and steps inside the backward pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from lutetia.errors import ArgumentError, require
from lutetia.nn import LUT, RowAdam, ngram_tables, table_parameters
from lutetia.training import config as settings

BETAS = {"adamw": (0.9, 0.95), "sparse_adam": (0.9, 0.95), "lion": (0.9, 0.95), "row_adam": (0.0, 0.99)}


@dataclass
class Optimizers:
    """What steps a model: the optimisers of the tables, of n-gram tables and of the rest, where there are such parameters."""

    by_name: dict[str, torch.optim.Optimizer]  # "tables", "ngrams", "rest"
    peaks: dict[str, float]  # their rates before the schedule
    in_place: list[nn.Module]  # layers that step in their backward pass, at the rate of the tables

    def set_rates(self, factor: float) -> None:
        """Give every optimiser, and every layer that steps in place, its rate times the factor of the schedule."""
        for name, optimizer in self.by_name.items():
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):  # a captured step reads it there
                    group["lr"].fill_(self.peaks[name] * factor)
                else:
                    group["lr"] = self.peaks[name] * factor
        for layer in self.in_place:
            layer.external_lr = self.peaks["tables"] * factor  # type: ignore[assignment]

    def zero_grad(self) -> None:
        for optimizer in self.by_name.values():
            optimizer.zero_grad(set_to_none=True)

    def parameters(self) -> list[nn.Parameter]:
        return [p for optimizer in self.by_name.values() for group in optimizer.param_groups for p in group["params"]]

    def clipped(self) -> list[nn.Parameter]:
        """The parameters that are clipped: not rows of n-gram tables, each of which is stepped by its own size."""
        alone = {id(p) for group in getattr(self.by_name.get("ngrams"), "param_groups", []) for p in group["params"]}
        return [p for p in self.parameters() if id(p) not in alone]

    def keep_rates_on_device(self) -> None:
        """Keep the rates as tensors on the device, so that a captured step can use new ones."""
        for optimizer in self.by_name.values():
            for group in optimizer.param_groups:
                group["capturable"] = True
                group["lr"] = torch.full((), float(group["lr"]), device=group["params"][0].device)


def make_optimizers(model: nn.Module, wanted: settings.OptimizersConfig) -> Optimizers:
    """The optimisers of a model, each of its parameters in exactly one."""
    in_place = [module for module in model.modules() if getattr(module, "gradient", None) == "in_place"]
    stepped = {id(layer.weight) for layer in in_place}
    tables = [p for p in table_parameters(model) if p.requires_grad]
    ngrams = [layer.weight for layer in ngram_tables(model) if layer.weight.requires_grad]
    known = {id(p) for p in [*tables, *ngrams]}
    rest = [(name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) not in known]
    groups = {
        "tables": [{"params": [p for p in tables if id(p) not in stepped], "weight_decay": wanted.tables.weight_decay}],
        "ngrams": [{"params": ngrams, "weight_decay": wanted.ngrams.weight_decay}],
        "rest": decay_groups(rest, wanted.rest.weight_decay),
    }
    _check_sparse(model, wanted)
    made = {}
    for name, members in groups.items():
        members = [group for group in members if group["params"]]
        if members:
            made[name] = make_optimizer(members, getattr(wanted, name))
    return Optimizers(made, {name: getattr(wanted, name).lr for name in groups}, in_place)


def decay_groups(named: Iterable[tuple[str, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; norms, biases, learned scalars and the positions of LUT attention, whose signs are read, do not."""
    decays: list[nn.Parameter] = []
    stays: list[nn.Parameter] = []
    for name, parameter in named:
        matrix = parameter.dim() >= 2 and name.rpartition(".")[2] != "positions"
        (decays if matrix else stays).append(parameter)
    return [{"params": decays, "weight_decay": weight_decay}, {"params": stays, "weight_decay": 0.0}]


def make_optimizer(groups: list[dict[str, Any]], wanted: settings.Optimizer) -> torch.optim.Optimizer:
    betas = wanted.betas or BETAS.get(wanted.kind, (0.0, 0.0))
    if wanted.kind == "adamw":
        # What is spread over ranks, as DTensors, and what is not cannot be in one launch.
        fused = all(p.is_cuda and not isinstance(p, DTensor) for group in groups for p in group["params"])
        return torch.optim.AdamW(groups, lr=wanted.lr, betas=betas, eps=wanted.eps, fused=fused or None)
    if wanted.kind == "sgd":
        return torch.optim.SGD(groups, lr=wanted.lr, momentum=wanted.momentum)
    if wanted.kind == "sparse_adam":
        plain = [{"params": group["params"]} for group in groups]
        return torch.optim.SparseAdam(plain, lr=wanted.lr, betas=betas, eps=wanted.eps)
    if wanted.kind == "row_adam":
        return RowAdam(groups, lr=wanted.lr, beta=betas[1], eps=wanted.eps)
    return require("lion_pytorch", 'optimizer.kind = "lion"', "lion-pytorch").Lion(groups, lr=wanted.lr, betas=betas)


def _check_sparse(model: nn.Module, wanted: settings.OptimizersConfig) -> None:
    sparse = any(isinstance(module, LUT) and module.gradient == "sparse" for module in model.modules())
    if sparse and wanted.tables.kind not in ("sparse_adam", "sgd"):
        kind = wanted.tables.kind
        raise ArgumentError(
            f'optimizer.tables.kind is {kind!r}, expected "sparse_adam" or "sgd" for tables with gradient = "sparse"'
        )
    if not sparse and wanted.tables.kind == "sparse_adam" and any(True for _ in table_parameters(model)):
        raise ArgumentError('optimizer.tables.kind is "sparse_adam", expected gradient = "sparse" in [model] as well')
    if wanted.rest.kind in ("sparse_adam", "row_adam"):
        raise ArgumentError(f'optimizer.rest.kind is "{wanted.rest.kind}", expected another: only tables have sparse gradients')
    if wanted.tables.kind == "row_adam":
        raise ArgumentError('optimizer.tables.kind is "row_adam", expected another: it is for n-gram tables, [optimizer.ngrams]')
    if wanted.ngrams.kind not in ("row_adam", "sparse_adam", "sgd"):
        raise ArgumentError(
            f'optimizer.ngrams.kind is "{wanted.ngrams.kind}", expected "row_adam", "sparse_adam" or "sgd": gradients are sparse'
        )


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients that exist, each as one dense tensor that may be changed: the values of a sparse one, this rank's part of one
    that is spread over ranks.
    """
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            found.append(parameter.grad._values())
        else:
            found.append(parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad)
    return found


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, spread: Collection[int] = (), group: Any = None) -> Tensor:
    """Scale all gradients, sparse ones too, so that their norm together is at most `limit`; returns the norm they had, [].

    `spread` holds the ids of the parameters that are spread over the ranks of `group`, whose norms are of all parts.
    """
    members = list(parameters)
    found = gradients(members)
    if not found:
        return torch.zeros(())
    if spread:
        apart = gradients(parameter for parameter in members if id(parameter) in spread)
        alike = gradients(parameter for parameter in members if id(parameter) not in spread)
        squares = torch.nn.utils.get_total_norm(apart).square().to(found[0].device)
        distributed.all_reduce(squares, group=group)
        norm = (squares + torch.nn.utils.get_total_norm(alike).square().to(squares.device)).sqrt()
    else:
        norm = torch.nn.utils.get_total_norm(found)
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for device in {gradient.device for gradient in found}:
        there = [gradient for gradient in found if gradient.device == device]
        torch._foreach_mul_(there, scale.to(device))  # always, and not only where it is too long: to ask would wait for the GPU
    return norm

"""A small residual net, nets of given weights, and numbers for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Three residual blocks of one shared layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5)) for _ in range(3))
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def data(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def tensor(*values: Any) -> Tensor:
    """These numbers in float64."""
    return torch.tensor(values, dtype=torch.float64)


def net(*layers: tuple[list[list[float]], list[float] | None]) -> nn.Sequential:
    """Linear layers with these weights and biases, with ReLUs between them."""
    modules: list[nn.Module] = []
    for weight, bias in layers:
        layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None).double()
        layer.weight.data = torch.tensor(weight, dtype=torch.float64)
        if bias is not None:
            layer.bias.data = torch.tensor(bias, dtype=torch.float64)
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1])

"""Frames one after the other, with stalls on both sides: the order of samples is all that counts, and nothing ever stops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from elastic import simulate
from nets import random_case
from torch import Tensor, nn

from lutetia.precompute import Graph, Int, Quantise, Stream, UInt, trace
from lutetia.precompute.ir.stream import Register


def run_frames(net: Graph, x: Tensor, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What the slow model and the interpreter make of frames [n, channels, *shape], as samples in order."""
    samples = list(x.flatten(2).transpose(1, 2).flatten(0, 1).numpy()) if x.dim() > 2 else list(x.numpy())
    y = net(x)
    expected = (y.flatten(2).transpose(1, 2).flatten(0, 1) if y.dim() > 2 else y).numpy()
    found = simulate(net, samples, len(expected), seed, limit=60 * (len(samples) + len(expected)) + 2000)
    return np.array(found), expected


@pytest.mark.parametrize("seed", range(40))
def test_random_networks_stall_and_go_on(seed: int) -> None:
    case = random_case(seed)
    if case.stream.length is None and case.x.dim() == 3:
        case.stream = replace(case.stream, length=case.x.shape[2])
    net = trace(case.model, input=case.stream).precompute(max_bits=case.max_bits)
    found, expected = run_frames(net.dedupe() if seed % 2 else net, case.x[:2], seed)
    assert np.array_equal(found, expected)


class Residual(nn.Module):
    """x + layer(x), quantised."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.inner, self.outer = layer, Quantise(Int(2)), Quantise(UInt(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x + self.inner(self.layer(x)))


@pytest.mark.parametrize("rank", [1, 2])
def test_a_queue_that_is_too_short_stops_the_network(rank: int) -> None:
    layer = nn.Conv1d(1, 1, 7, padding=3) if rank == 1 else nn.Conv2d(1, 1, 3, padding=1)
    stream = Stream(1, UInt(2), length=12) if rank == 1 else Stream(1, UInt(2), height=4, width=5)
    x = torch.randint(0, 4, (2, 1, 12) if rank == 1 else (2, 1, 4, 5))
    net = trace(Residual(layer), input=stream).precompute()
    found, expected = run_frames(net, x)
    assert np.array_equal(found, expected)
    needed = 3 if rank == 1 else 6  # what the window is ahead by: three samples; a row of five, and one
    for depth, stops in ((needed, False), (needed - 1, True)):
        nodes = [replace(node, depth=depth) if isinstance(node, Register) and node.balance else node for node in net.nodes]
        found, expected = run_frames(net.replaced(nodes, net.output), x)
        assert (len(found) < len(expected)) == stops

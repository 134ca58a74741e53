"""The integer interpreter against PyTorch in float64, bit for bit, on a thousand random networks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from nets import DOMAINS, random_case
from torch import Tensor, nn

from lutetia.precompute import Quantise, trace
from lutetia.precompute.ir.stream import Table

BATCH = 50
COUNTED = 300  # of which each kind is known to occur; the others are for `make test-slow`
FIRSTS = [pytest.param(first, marks=pytest.mark.slow if first >= COUNTED else ()) for first in range(0, 1000, BATCH)]


@pytest.mark.parametrize("first", FIRSTS)
def test_the_graph_computes_what_pytorch_computes(first: int) -> None:
    for seed in range(first, first + BATCH):
        case = random_case(seed)
        with torch.no_grad():
            expected = case.model.double()(case.x.double())
        net = trace(case.model, input=case.stream).precompute(max_bits=case.max_bits)
        assert torch.equal(net.real(case.x), expected), seed
        if seed % 2:
            assert torch.equal(net.dedupe().fuse(budget=10).real(case.x), expected), seed


def test_the_networks_are_of_every_kind() -> None:
    """What they are for does occur among the first few hundred, ties included."""
    seen: Counter[str] = Counter()

    def ties(quantiser: Quantise, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        steps = inputs[0] / quantiser.scale
        seen["ties"] += bool((steps == 0).any() if quantiser.domain.step == 2 else ((steps - steps.floor()) == 0.5).any())

    for seed in range(COUNTED):
        case = random_case(seed)
        seen.update({f"input {domain}" for domain in map(str, case.stream.dtype)})  # type: ignore[arg-type]
        for module in case.model.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                seen["images" if isinstance(module, nn.Conv2d) else "sequences"] += 1
                seen["grouped"] += module.groups > 1
                seen["strided"] += module.stride[0] > 1
                seen["dilated"] += module.dilation[0] > 1 and module.kernel_size[0] > 1
                seen["padded"] += bool(module.padding[0])
                seen["several channels and taps"] += module.in_channels > module.groups and module.kernel_size[0] > 1
            elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                seen["negative scales"] += bool((module.weight < 0).any())
            elif isinstance(module, Quantise):
                module.register_forward_hook(ties)
            seen["skipped"] += getattr(module, "join", None) is not None
            seen[type(module).__name__] += 1
        case.model.double()(case.x.double())
    wanted = {"images", "sequences", "grouped", "strided", "dilated", "padded", "several channels and taps", "negative scales"}
    wanted |= {"ties", "skipped", "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d", "_Blocks"}
    wanted |= {f"input {domain}" for domain in DOMAINS}
    assert {kind for kind in wanted if seen[kind] < 8} == set()


def test_one_wrong_row_is_noticed() -> None:
    case = random_case(1)
    net = trace(case.model, input=case.stream).precompute()
    number = net.of_kind(Table)[-1]
    node = net.nodes[number]
    assert isinstance(node, Table)
    wrong = [replace(table, contents=table.contents ^ 1) for table in node.tables]
    broken = net.replaced([replace(node, tables=tuple(wrong)) if each is node else each for each in net.nodes])
    assert not torch.equal(broken(case.x), net(case.x))

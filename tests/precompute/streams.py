"""The random networks as graphs that can be hardware, and samples that follow each other without a reset."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from nets import random_case
from torch import Tensor

from lutetia.precompute import Graph, trace
from lutetia.precompute.tools.hardware import Hardware


def hardware_case(seed: int, budget: int = 9) -> tuple[Graph, Tensor]:
    """The graph of a seed, and at least two sequences for it that no reset parts.

    An endless stream has no frames: there two sequences are one long one. Padding needs an end, so padded streams get a length.
    """
    case = random_case(seed)
    stream, x = case.stream, case.x
    padded = any(getattr(module, "padding", 0) not in (0, (0,), (0, 0)) for module in case.model.modules())
    if x.dim() == 3 and stream.length is None:
        if padded:
            stream = replace(stream, length=x.shape[-1])
        else:
            x = torch.cat([torch.cat([x[0], x[1]], -1)[None], torch.cat([x[2], x[3]], -1)[None]])
    net = trace(case.model, input=stream).precompute(max_bits=case.max_bits).dedupe()
    return (net.fuse(budget=budget) if budget else net), x


def plant(hardware: Hardware) -> str:
    """Change one row of the first table that is written as a constant; the name of its module."""
    for name, text in hardware.files.items():
        found = re.search(r"module (\w+_t\d+) \([^;]*;\s*localparam \S+ Y0 = (\d+)'h([0-9a-f]+);", text)
        if found:
            changed = f"{found[2]}'h{int(found[3], 16) ^ 1:x};"
            hardware.files[name] = text[: found.start(2)] + changed + text[found.end() :]
            return found[1]
    raise AssertionError("no table to change")

"""Samples as the payloads of questions, and the payloads of answers as numbers. Of several bytes the lowest comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia.precompute.front.samples import bus_bits, values_of
from lutetia.precompute.hdl.axi import padded
from lutetia.precompute.integer.verilog_core import Core
from lutetia.precompute.integer.verilog_language import words
from lutetia.precompute.integer.verilog_patches import PatchCore
from lutetia.precompute.integer.verilog_signals import SignalCore
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.stream import StreamEdge


def circuit_questions(graph: Graph, x: Tensor) -> list[bytes]:
    """What a circuit takes, int64 [n, channels], as payloads."""
    return _packed(graph.input_edge, x)


def circuit_replies(graph: Graph, y: Tensor) -> list[bytes]:
    """The same of what it gives; a single signed number fills its bytes with its sign."""
    edge = graph.output_edge
    if edge.channels == 1 and edge.domains[0].signed:
        return [signed_bytes(value, edge.width) for value in y[:, 0].tolist()]
    return _packed(edge, y)


def circuit_answers(graph: Graph, replies: Sequence[bytes]) -> Tensor:
    """What a circuit gave: int64 [n, channels]."""
    edge = graph.output_edge
    bits = np.unpackbits(np.frombuffer(b"".join(replies), np.uint8).reshape(len(replies), -1), axis=1, bitorder="little")
    return values_of(edge, bits[:, : edge.width], len(replies), ())


def _packed(edge: StreamEdge, values: Tensor) -> list[bytes]:
    return [row.tobytes() for row in np.packbits(bus_bits(edge, values), axis=1, bitorder="little")]


def core_questions(core: Core, x: Any) -> list[bytes]:
    """Images, or windows of whole numbers [n, samples, signals], as payloads."""
    if isinstance(core, PatchCore):
        return [row.tobytes() for row in core.pixels(x).transpose(0, 2, 1).astype(np.uint8)]
    assert isinstance(core, SignalCore)
    bits = core.program.sizes["BITS"]
    size = padded(bits * core.program.sizes["SIGNALS"]) // 8
    return [b"".join(word.to_bytes(size, "little") for word in words(np.asarray(window), bits)) for window in x]


def core_replies(core: Core, answers: Tensor) -> list[bytes]:
    """Answers, int64 [n], as payloads."""
    return [signed_bytes(answer, core.out_bits) for answer in answers.tolist()]


def core_answers(core: Core, replies: Sequence[bytes]) -> Tensor:
    """What a core gave: int64 [n]."""
    return torch.tensor([int.from_bytes(each, "little", signed=core.model.n_outputs == 1) for each in replies], dtype=torch.int64)


def signed_bytes(value: int, bits: int) -> bytes:
    """A number of so many bits in whole bytes."""
    size = padded(bits)
    return (value & (1 << size) - 1).to_bytes(size // 8, "little")

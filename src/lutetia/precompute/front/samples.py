"""Samples as the words on a bus, and back: what test benches read and simulators write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lutetia.precompute.ir.interpret import encode
from lutetia.precompute.ir.stream import StreamEdge, Window

if TYPE_CHECKING:
    from lutetia.precompute.ir.graph import Graph


def bus_bits(edge: StreamEdge, x: Tensor) -> np.ndarray:
    """Values in PyTorch's layout, [batch, channels, *shape] -> the bits of each sample in order: uint8 [samples, width]."""
    values = np.moveaxis(x.detach().cpu().to(torch.int64).numpy(), 1, -1).reshape(-1, edge.channels)
    codes = encode(edge, values)
    bits = np.empty((len(codes), edge.width), dtype=np.uint8)
    for channel, (low, high) in enumerate(zip(edge.offsets[:-1], edge.offsets[1:], strict=True)):
        for bit in range(int(high - low)):
            bits[:, low + bit] = codes[:, channel] >> bit & 1
    return bits


def values_of(edge: StreamEdge, bits: np.ndarray, batch: int, shape: tuple[int, ...]) -> Tensor:
    """The inverse, for frames of a shape: uint8 [samples, width] -> int64 [batch, channels, *shape]."""
    codes = np.zeros((len(bits), edge.channels), dtype=np.int64)
    for channel, (low, high) in enumerate(zip(edge.offsets[:-1], edge.offsets[1:], strict=True)):
        for bit in range(int(high - low)):
            codes[:, channel] |= bits[:, low + bit].astype(np.int64) << bit
    columns = [domain.decode(torch.from_numpy(codes[:, channel])) for channel, domain in enumerate(edge.domains)]
    return torch.stack(columns, 1).reshape(batch, *shape, edge.channels).movedim(-1, 1).contiguous()


def to_hex(bits: np.ndarray) -> list[str]:
    """Each row as hexadecimal digits, bit 0 the lowest: uint8 [n, width]."""
    digits = (bits.shape[1] + 3) // 4
    packed = np.packbits(bits, axis=1, bitorder="little")[:, ::-1]
    return [row.tobytes().hex()[-digits:].rjust(digits, "0") for row in packed]


def from_hex(lines: list[str], width: int) -> np.ndarray:
    """The inverse of `to_hex`; non-numeric digits, such as x, raise ValueError."""
    size = (width + 7) // 8
    raw = b"".join(bytes.fromhex(line.strip().rjust(2 * size, "0"))[::-1] for line in lines)
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, size)
    return np.unpackbits(rows, axis=1, bitorder="little")[:, :width]


def to_binary(bits: np.ndarray) -> list[str]:
    """Each row as 0 and 1, the highest bit first."""
    return ["".join(map(str, row)) for row in bits[:, ::-1].tolist()]


def from_binary(lines: list[str]) -> np.ndarray:
    """The inverse of `to_binary`."""
    rows = [[int(each) for each in reversed(line.strip())] for line in lines]
    return np.array(rows, dtype=np.uint8)


def random_input(graph: Graph, batch: int, seed: int) -> Tensor:
    """Samples drawn from the domains of the input: int64 [batch, channels, *shape]; an endless stream is cut to a length well
    beyond its windows.
    """
    edge = graph.input_edge
    shape = (_long(graph),) if None in edge.shape else edge.shape
    generator = torch.Generator().manual_seed(seed)
    columns = [
        domain.values()[torch.randint(domain.radix, (batch, *shape), generator=generator)]  # type: ignore[arg-type]
        if domain.bits <= 16
        else torch.randint(domain.low, domain.high + 1, (batch, *shape), generator=generator)  # type: ignore[arg-type]
        for domain in edge.domains
    ]
    return torch.stack(columns, 1)


def _long(graph: Graph) -> int:
    """Samples that fill every window several times over."""
    stride, field = 1, 1
    for node in graph.nodes:
        if isinstance(node, Window):
            field += (node.kernel[-1] - 1) * node.dilation[-1] * stride
            stride *= node.stride[-1]
    return 2 * field + 8 * stride

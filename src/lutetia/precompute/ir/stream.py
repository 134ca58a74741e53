"""The stream graph: what flows between tables, and through which nodes.

# Graph schema

A graph is a tuple of nodes in topological order; node 0 is the `Input`, `graph.output` is the number of the last one. Every node
has `sources` (numbers of earlier nodes) and one output `edge`. A node that several others read is a fork; only a `Wire` may join.

## Edges
An edge is a stream of samples; a sample is a vector of `channels` integers, one `Domain` per channel.

    bus         channel 0 lies in the lowest bits: channel c occupies bits offset[c] to offset[c] + domains[c].bits - 1, its least
                significant bit first, offset[c] = Σ of the bits of the channels before it. `width` is the total.
    code        what the wires carry: two's complement when `signed`, else plain binary; for step 2 (±1) code 0 is low, 1 is high.
    layout      "vector" (independent samples), "sequence" (frames of `shape = (length,)`), "image" (frames of
                `shape = (height, width)`, in raster order). A length of None is an endless stream: no frames, and no padding.
    rate        samples of this edge per sample of the input; exact per frame where the shape is known.
    phase       how many input samples a frame must have delivered before the first sample of this edge can be there, minus one.
    scale       the real value of one step, per channel: value · scale is what PyTorch computes. Not hardware.

Taps and channels: a window of C channels and K taps has channel c · K + t for tap t of channel c, t = 0 the oldest sample, rows
of an image before columns: PyTorch's own order of weights.

## Nodes
    Input                                      the samples as they arrive
    Wire(index)                                output channel i = channel index[i] of all sources side by side (source 0 first)
    Table(tables, lookups)                     a bank of lookup tables. Lookup u puts bits `inputs` of the source bus together,
                                               the first one most significant, flips the bits of `flip` (xor), reads row address
                                               of tables[table], and writes its codes to the output channels `outputs`. contents
                                               [2**k, n_outputs] are codes; where care[address] is False any code will do.
    Compare(left, right, constant)             lane i: 1 when x[left[i]] > x[right[i]], or > constant[i] where right[i] is -1;
                                               numbers, not codes, so signed where the domain is
    Sum(start, index, coefficient, bias)       output o = bias[o] + Σ coefficient[j] · x[index[j]], j from start[o] to start[o +
                                               1]; exact: the domain of the output is the proven range
    Pool(taps)                                 output c = max of channels c · taps .. c · taps + taps - 1; numbers, or the codes
                                               of a ±1 channel, which have the same order
    Argmax()                                   the number of the greatest channel, the first of equals
    Window(kernel, stride, dilation, padding)  see below; `fill` has the value of padding for each channel; `after` is the padding
                                               behind each axis where it is not that in front
    Register(depth)                            the same samples; a queue of up to `depth` of them
    Unpack(parts)                              a wide vector as a sequence of `parts` samples: channel c of sample t is channel
                                               c · parts + t of the vector
    Layer(block)                               a PyTorch block that is not a table yet; `precompute` replaces it, no hardware

All but `Window`, `Register` and `Unpack` are combinational: latency 0, one sample out for one sample in. `Compare`, `Sum` and
`Argmax` never read a ±1 channel (step 2): a table translates it first. A `Window` over a whole frame makes a "vector" of it.

## Ready and valid
Each edge has data, valid (from the producer) and ready (from the consumer); a sample is accepted in a cycle in which both are
high. Producers keep valid and data until then and never wait for ready before raising valid. What counts is the order of accepted
samples, never the cycle: stalls on either side change nothing. After the last sample of a frame the next frame begins with the
next accepted sample, without a reset.

    combinational   valid, data forward; ready back. A join is valid when all its sources are, and accepts from all at once; a
                    fork hands each sample to every reader exactly once, in any order.
    Register        a queue of `depth` samples, latency 1: empty after reset. In a row of registers nothing waits before its end:
                    ready passes through them, the first one takes a sample that is accepted, the middle ones what comes, and
                    each hands it on a cycle later, ready or not. The last one is a queue two deeper than the row before it is
                    long. It is ready while it holds fewer than two samples, so that all that are under way have room.
    Window          walks over the padded frame, [height + p + q, width + p + q] in raster order, one place per step. At a place
                    inside the frame it accepts one input sample, at a place of padding it takes `fill` and accepts nothing.
                    After the place (y, x) it emits the window whose last tap lies there, when y - (kh - 1) · dh and
                    x - (kw - 1) · dw are not negative and multiples of the strides (so a stride counts accepted samples and
                    padding only). It does not step while an emitted window waits. After the last place it starts again. A
                    sequence is an image of one row.
                    Latency 1.
    Unpack          offers one part after the other, and accepts its sample with the last one. It holds no data. Latency 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.precompute.front.block import LayerBlock
from lutetia.precompute.tables.domains import MAX_CHANNELS, Domain, DomainLike, as_domains, check_whole

Layout: TypeAlias = Literal["vector", "sequence", "image"]


@dataclass(frozen=True)
class Stream:
    """What enters a network: samples of `channels` values of a domain (one for all, or one per channel).

    With `height` and `width` frames are images, samples their pixels in raster order; with `length` frames are sequences. Without
    any of them, samples are independent or, if the model has layers for sequences, form one endless sequence.
    """

    channels: int
    dtype: DomainLike | Sequence[DomainLike]
    length: int | None = None
    height: int | None = None
    width: int | None = None
    scale: float = 1.0  # the real value of 1

    def __post_init__(self) -> None:
        check_whole("channels", self.channels, 1, MAX_CHANNELS)
        for name in ("length", "height", "width"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        if (self.height is None) != (self.width is None):
            raise ArgumentError(f"height is {self.height} and width is {self.width}, expected both or neither")
        if self.height is not None and self.length is not None:
            raise ArgumentError(f"length is {self.length} and height is {self.height}, expected a sequence or an image")
        object.__setattr__(self, "dtype", as_domains("dtype", self.dtype, self.channels))

    def edge(self, layout: Layout) -> StreamEdge:
        """The edge of the input, in the layout that the model needs."""
        shape = {"vector": (), "sequence": (self.length,), "image": (self.height, self.width)}[layout]
        return StreamEdge(self.dtype, layout, shape, scale=(self.scale,) * self.channels)  # type: ignore[arg-type]


@dataclass(frozen=True)
class StreamEdge:
    """The type of a stream."""

    domains: tuple[Domain, ...]
    layout: Layout = "vector"
    shape: tuple[int | None, ...] = ()
    rate: Fraction = Fraction(1)
    phase: int = 0
    scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.scale:
            object.__setattr__(self, "scale", (1.0,) * len(self.domains))

    @property
    def channels(self) -> int:
        return len(self.domains)

    @cached_property
    def offsets(self) -> np.ndarray:
        """The lowest bit of each channel on the bus, and at the end the width: int64 [channels + 1]."""
        return np.concatenate([[0], np.cumsum([domain.bits for domain in self.domains], dtype=np.int64)]).astype(np.int64)

    @property
    def width(self) -> int:
        """Bits of the bus."""
        return int(self.offsets[-1])

    @property
    def samples(self) -> int | None:
        """Samples of one frame; None for an endless stream."""
        return None if None in self.shape else math.prod(self.shape)  # type: ignore[arg-type]

    def bits_of(self, channel: int) -> list[int]:
        """The bits of a channel on the bus, the most significant one first."""
        first = int(self.offsets[channel])
        return list(range(first + self.domains[channel].bits - 1, first - 1, -1))

    def carrying(self, domains: Sequence[Domain], scale: Sequence[float] | None = None) -> StreamEdge:
        """The same frames with other channels."""
        return replace(self, domains=tuple(domains), scale=tuple(scale) if scale is not None else (1.0,) * len(domains))


@dataclass(frozen=True, eq=False)
class TableData:
    """One lookup table: contents [2**k, n_outputs], integers of any size: codes; k address bits, `bits` of each output."""

    contents: np.ndarray
    bits: tuple[int, ...]
    care: np.ndarray | None = None  # bool [2**k]; None: every row counts
    form: Any = None  # how `minimise` would build it

    @property
    def k(self) -> int:
        """Address bits."""
        return len(self.contents).bit_length() - 1

    @property
    def out_bits(self) -> int:
        return sum(self.bits)

    @cached_property
    def words(self) -> np.ndarray:
        """Each row as one number, output 0 in the lowest bits: int64 [2**k]."""
        word = np.zeros(len(self.contents), dtype=np.int64)
        for column in reversed(range(len(self.bits))):
            word = (word << self.bits[column]) | self.contents[:, column].astype(np.int64)
        return word

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for tables that are the same."""
        care = b"" if self.care is None else np.packbits(self.care).tobytes()
        return self.bits, np.ascontiguousarray(self.contents).tobytes(), care


@dataclass(frozen=True, slots=True)
class Lookup:
    """One use of a table."""

    table: int
    inputs: tuple[int, ...]  # bits of the source bus, most significant address bit first
    outputs: tuple[int, ...]  # output channels
    flip: int = 0  # xor of the address


@dataclass(frozen=True, eq=False)
class StreamNode:
    """A node with its sources and its output edge."""

    sources: tuple[int, ...]
    edge: StreamEdge
    name: str = field(default="", kw_only=True)  # the layer it came from

    kind: ClassVar[str] = "node"
    latency: ClassVar[int] = 0  # clock cycles from an accepted input to its output, when nothing stalls

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()

    @property
    def source(self) -> int:
        """The only source."""
        (only,) = self.sources
        return only


@dataclass(frozen=True, eq=False)
class Input(StreamNode):
    """The samples as they arrive."""


@dataclass(frozen=True, eq=False)
class Wire(StreamNode):
    """Output channel i is channel index[i] of all sources side by side: int64 [channels]."""

    index: np.ndarray


@dataclass(frozen=True, eq=False)
class Table(StreamNode):
    """A bank of lookup tables that read one bus; every output channel is written by one lookup."""

    tables: tuple[TableData, ...]
    lookups: tuple[Lookup, ...]


@dataclass(frozen=True, eq=False)
class Compare(StreamNode):
    """Lane i: x[left[i]] > x[right[i]], or > constant[i] where right[i] is -1: int64 [lanes] each."""

    left: np.ndarray
    right: np.ndarray
    constant: np.ndarray


@dataclass(frozen=True, eq=False)
class Sum(StreamNode):
    """Output o = bias[o] + Σ_j coefficient[j] · x[index[j]] for j from start[o] to start[o + 1]: int64 arrays."""

    start: np.ndarray
    index: np.ndarray
    coefficient: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True, eq=False)
class Pool(StreamNode):
    """The maximum over the `taps` of each channel."""

    taps: int


@dataclass(frozen=True, eq=False)
class Argmax(StreamNode):
    """The number of the greatest channel, the first of equals; one channel."""


@dataclass(frozen=True, eq=False)
class Window(StreamNode):
    """Sliding windows over the samples of a frame; one number per axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    fill: tuple[int, ...]  # the value of padding, per source channel
    after: tuple[int, ...] | None = field(default=None, kw_only=True)  # padding behind; None: as much as in front
    latency: ClassVar[int] = 1

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def ends(self) -> tuple[int, ...]:
        """The padding after each axis."""
        return self.padding if self.after is None else self.after

    @property
    def pads(self) -> bool:
        """Whether there is any padding."""
        return any(self.padding) or any(self.ends)


Row: TypeAlias = Literal["", "first", "middle", "last"]
ROWS: tuple[Row, ...] = ("", "first", "middle", "last")  # as the circuits number them


@dataclass(frozen=True, eq=False)
class Register(StreamNode):
    """A queue: `depth` 1 is a pipeline register, more of them let a short path wait for a long one."""

    depth: int = 1
    balance: bool = False  # inserted for a join, and replaced by passes
    row: Row = ""  # its place in a row of registers that have no enable: no `ready` is on their longest path
    latency: ClassVar[int] = 1


@dataclass(frozen=True, eq=False)
class Unpack(StreamNode):
    """A vector as a sequence: channel c of sample t is channel c · parts + t."""

    parts: int


@dataclass(frozen=True, eq=False)
class Layer(StreamNode):
    """A PyTorch block that has not become tables yet; its edge says which values it takes."""

    block: LayerBlock


def window_edge(
    edge: StreamEdge,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    after: Sequence[int] | None = None,
) -> StreamEdge:
    """The edge after a window, with the frames that PyTorch's own formula gives."""
    taps = math.prod(kernel)
    shape: list[int | None] = []
    ends = padding if after is None else after
    for size, k, s, d, p, q in zip(edge.shape, kernel, stride, dilation, padding, ends, strict=True):
        if size is not None and size + p + q < (k - 1) * d + 1:
            raise ArgumentError(f"a window of {k} taps {d} apart does not fit into {size} samples padded by {p} and {q}")
        shape.append(None if size is None else (size + p + q - (k - 1) * d - 1) // s + 1)
    domains = [domain for domain in edge.domains for _ in range(taps)]
    scale = [each for each in edge.scale for _ in range(taps)]
    made = replace(edge, domains=tuple(domains), scale=tuple(scale), shape=tuple(shape))
    return replace(made, rate=_rate(edge, made, stride), phase=edge.phase + _first(edge, kernel, dilation, padding))


def _rate(edge: StreamEdge, made: StreamEdge, stride: Sequence[int]) -> Fraction:
    if made.samples is None or edge.samples is None:
        return edge.rate / math.prod(stride)
    return edge.rate * Fraction(made.samples, edge.samples)


def _first(edge: StreamEdge, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int]) -> int:
    """Samples of the edge, but one, that the first window needs; in input samples this is a bound where the rate is not one."""
    last = [max((k - 1) * d - p, 0) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    place = last[0] if len(last) == 1 else last[0] * (edge.shape[1] or 0) + last[1]
    return math.ceil(place / edge.rate) if edge.rate else place

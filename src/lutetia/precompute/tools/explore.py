"""Registers, windows and forks: visit every reachable control state, with data as tokens.

Each circuit is compared with its contract (see "Ready and valid" in `ir.stream`) in every reachable state, for every combination
of valid and ready, and for all samples at once, because a token stands for any bit. Nothing is bounded: the states are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from lutetia.precompute.hdl.design import bus_word
from lutetia.precompute.ir.stream import StreamEdge, Window
from lutetia.precompute.tools.find import check_time
from lutetia.precompute.tools.symbolic import FIRST_TOKEN, UNKNOWN, SymbolicModule

WIDEST_FORK = 8  # readers: each takes a factor of four


class Fault(NamedTuple):
    """How a circuit breaks its contract, and after which inputs, one per cycle."""

    what: str
    inputs: tuple[str, ...]


class After(NamedTuple):
    """A contract's next state, and where each token goes: tokens [n] -> tokens, applied to the registers of the circuit."""

    state: Any
    renamed: Callable[[np.ndarray], np.ndarray]


class Contract(Protocol):
    """What a circuit must do; states are hashable."""

    @property
    def start(self) -> Any:
        """The state after a reset."""

    def cases(self, state: Any) -> Iterator[dict[str, np.ndarray]]:
        """Every input that the contract allows in a state: bits [n] by port."""

    def check(self, state: Any, given: dict[str, np.ndarray], seen: dict[str, np.ndarray]) -> str | After:
        """What is wrong with the outputs, or the state behind the clock edge."""


@dataclass
class _Visit:
    state: Any
    registers: np.ndarray
    path: tuple[Any, ...] | None  # (the path before, the inputs of the last cycle)


def explore(module: SymbolicModule, contract: Contract) -> Fault | None:
    """Visit every reachable state; the first fault, or None where the contract holds."""
    unknown = np.full((len(module.q), 1), UNKNOWN, dtype=np.int32)
    zero = {"rst": np.ones((1, 1), dtype=np.int32)}
    first = module.settle(unknown, zero)[module.d][:, 0]
    known = {(contract.start, first.tobytes())}
    layer = [_Visit(contract.start, first, None)]
    while layer:
        check_time("the proof of a circuit with state")
        cases = [(visit, given) for visit in layer for given in contract.cases(visit.state)]
        values = _settled(module, cases)
        layer = []
        for case, (visit, given) in enumerate(cases):
            seen = {name: values[places, case] for name, places in module.ports.items()}
            after = contract.check(visit.state, given, seen)
            if isinstance(after, str):
                return Fault(after, _inputs((visit.path, given)))
            registers = after.renamed(values[module.d, case])
            key = after.state, registers.tobytes()
            if key not in known:
                known.add(key)
                layer.append(_Visit(after.state, registers, (visit.path, given)))
    return None


def _settled(module: SymbolicModule, cases: list[tuple[_Visit, dict[str, np.ndarray]]]) -> np.ndarray:
    state = np.stack([visit.registers for visit, _ in cases], 1)
    inputs = {name: np.stack([given[name] for _, given in cases], 1) for name in cases[0][1]}
    inputs["rst"] = np.zeros((1, len(cases)), dtype=np.int32)
    return module.settle(state, inputs)


def _inputs(path: tuple[Any, ...] | None) -> tuple[str, ...]:
    listed = []
    while path is not None:
        path, given = path[0], path[1]
        control = {name: "".join(map(str, bits[::-1])) for name, bits in given.items() if name != "in_data"}
        listed.append(", ".join(f"{name} = {bits}" for name, bits in control.items()))
    return tuple(reversed(listed))


def bit(value: int) -> np.ndarray:
    """A single bit as a port has it."""
    return np.array([value], dtype=np.int32)


def sample(width: int, place: int) -> np.ndarray:
    """The tokens of a sample: place counts samples of the same circuit."""
    return np.arange(width, dtype=np.int32) + FIRST_TOKEN + place * width


def _handshakes(data: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """All of valid and ready; data is noise while it is not valid."""
    for valid, ready in product((0, 1), (0, 1)):
        shown = data if valid else np.full_like(data, UNKNOWN)
        yield {"in_data": shown, "in_valid": bit(valid), "out_ready": bit(ready)}


def wrong_data(found: np.ndarray, wanted: np.ndarray) -> str | None:
    """Which bit of out_data is another one than wanted; None where all are right."""
    differs = np.flatnonzero(found != wanted)
    if not len(differs):
        return None
    return f"bit {differs[0]} of out_data is not the bit of the sample that belongs there"


@dataclass(frozen=True)
class QueueContract:
    """A queue of up to `depth` samples, in order; a state is how many it holds. The oldest one has the lowest tokens.

    One that is the `last` of a row is ready while it holds fewer than two, and takes what comes, which is never more than fits.
    """

    width: int
    depth: int
    last: bool = False
    start: int = 0

    def cases(self, state: int) -> Iterator[dict[str, np.ndarray]]:
        full = self.last and state == self.depth
        for given in _handshakes(sample(self.width, state)):
            if not (full and given["in_valid"][0]):
                yield given

    def check(self, state: int, given: dict[str, np.ndarray], seen: dict[str, np.ndarray]) -> str | After:
        valid, ready = int(seen["out_valid"][0]), int(seen["in_ready"][0])
        if valid != int(state > 0):
            return f"out_valid is {valid} with {state} samples in the queue"
        wrong = wrong_data(seen["out_data"], sample(self.width, 0)) if valid else None
        if wrong:
            return wrong
        popped = int(valid and given["out_ready"][0])
        room = state < (2 if self.last else self.depth)
        if ready not in (0, 1) or (not ready and room) or (ready and self.last and not room):
            return f"in_ready is {ready} with {state} of {self.depth} samples in the queue"
        pushed = int((ready or self.last) and given["in_valid"][0])
        if state - popped + pushed > self.depth:
            return f"it accepts a sample with {state} of {self.depth} in the queue"
        held = state - popped + pushed  # what was offered and not accepted stands for nothing
        return After(held, lambda tokens: _aged(tokens, -popped * self.width, FIRST_TOKEN + held * self.width))


@dataclass(frozen=True)
class RowContract:
    """A register of a row: it hands on what it took, whether anyone is ready or not, and `ready` passes through it.

    The `first` of the row takes a sample that is accepted, the others each that comes. A state is whether it holds one.
    """

    width: int
    first: bool
    start: int = 0

    def cases(self, state: int) -> Iterator[dict[str, np.ndarray]]:
        yield from _handshakes(sample(self.width, 1))

    def check(self, state: int, given: dict[str, np.ndarray], seen: dict[str, np.ndarray]) -> str | After:
        valid, ready, asked = int(seen["out_valid"][0]), int(seen["in_ready"][0]), int(given["out_ready"][0])
        if valid != state:
            return f"out_valid is {valid}, expected {state}"
        wrong = wrong_data(seen["out_data"], sample(self.width, 0)) if valid else None
        if wrong:
            return wrong
        if ready != asked:
            return f"in_ready is {ready} where out_ready is {asked}"
        held = int(given["in_valid"][0] and (asked or not self.first))
        return After(held, lambda tokens: _aged(tokens, -self.width, FIRST_TOKEN + held * self.width))


def _aged(tokens: np.ndarray, by: int, beyond: int) -> np.ndarray:
    """Tokens moved by a number; those that leave the range no longer stand for anything."""
    moved = np.where(tokens >= FIRST_TOKEN, tokens + by, tokens)
    gone = (tokens >= FIRST_TOKEN) & ((moved < FIRST_TOKEN) | (moved >= beyond))
    return np.where(gone, UNKNOWN, moved)


@dataclass(frozen=True)
class ForkContract:
    """Each sample to every reader once; a state is who has it already, and whether the producer must keep it valid."""

    readers: int
    start: tuple[int, bool] = (0, False)

    def cases(self, state: tuple[int, bool]) -> Iterator[dict[str, np.ndarray]]:
        for valid in (1,) if state[1] else (0, 1):
            for ready in range(2**self.readers):
                yield {"in_valid": bit(valid), "out_ready": self._bits(ready)}

    def _bits(self, word: int) -> np.ndarray:
        return np.array([word >> reader & 1 for reader in range(self.readers)], dtype=np.int32)

    def check(self, state: tuple[int, bool], given: dict[str, np.ndarray], seen: dict[str, np.ndarray]) -> str | After:
        has, everyone = state[0], 2**self.readers - 1
        valid = int(given["in_valid"][0])
        offered = self._bits((everyone & ~has) if valid else 0)
        if not np.array_equal(seen["out_valid"], offered):
            return f"out_valid is {seen['out_valid'].tolist()}, expected {offered.tolist()}"
        taken = sum(int(bit) << reader for reader, bit in enumerate(given["out_ready"] & offered))
        done = valid and has | taken == everyone
        if valid and int(seen["in_ready"][0]) != int(done):
            return f"in_ready is {seen['in_ready'][0]}, expected {int(done)}"
        return After((0, False) if done or not valid else (has | taken, True), lambda tokens: tokens)


class WindowContract:
    """Windows as `ir.stream` defines them; a state is the place of the walk and whether a window waits.

    The sample of the newest step has the lowest tokens. The places of an endless row repeat with the stride.
    """

    def __init__(self, node: Window, edge: StreamEdge) -> None:
        rank = len(node.kernel)
        self.node, self.edge = node, edge
        self.frame: tuple[int | None, ...] = (1,) * (2 - rank) + tuple(edge.shape)
        one = (1,) * (2 - rank)
        self.kernel, self.stride = one + tuple(node.kernel), one + tuple(node.stride)
        self.dilation = one + tuple(node.dilation)
        self.padding = (0,) * (2 - rank) + tuple(node.padding)
        self.ends = (0,) * (2 - rank) + tuple(node.ends)
        self.field = tuple((k - 1) * d for k, d in zip(self.kernel, self.dilation, strict=True))
        word = bus_word(edge, node.fill)
        self.fill = np.array([word >> bit & 1 for bit in range(edge.width)], dtype=np.int32)
        self.start = (0, 0, False)

    @property
    def columns(self) -> int | None:
        width = self.frame[1]
        return None if width is None else width + self.padding[1] + self.ends[1]

    @property
    def rows(self) -> int:
        return (self.frame[0] or 1) + self.padding[0] + self.ends[0]

    @property
    def ages(self) -> int:
        """How many steps back the oldest tap lies, and one."""
        return self.field[0] * (self.columns or 0) + self.field[1] + 1

    def inside(self, y: int, x: int) -> bool:
        """Whether a place is of the frame, not of its padding."""
        places = zip((y, x), self.padding, self.frame, strict=True)
        return all(side <= place and (size is None or place < side + size) for place, side, size in places)

    def cases(self, state: tuple[int, int, bool]) -> Iterator[dict[str, np.ndarray]]:
        yield from _handshakes(sample(self.edge.width, self.ages))  # beyond all ages until it is accepted

    def check(self, state: tuple[int, int, bool], given: dict[str, np.ndarray], seen: dict[str, np.ndarray]) -> str | After:
        y, x, waits = state
        valid, ready = int(seen["out_valid"][0]), int(seen["in_ready"][0])
        if valid != int(waits):
            return f"out_valid is {valid} at place ({y}, {x}), expected {int(waits)}"
        wrong = wrong_data(seen["out_data"], self.expected(*self.before(y, x))) if waits else None
        if wrong:
            return wrong
        free = not waits or bool(given["out_ready"][0])
        if ready != int(free and self.inside(y, x)):
            return f"in_ready is {ready} at place ({y}, {x}), expected {int(free and self.inside(y, x))}"
        beyond = FIRST_TOKEN + self.ages * self.edge.width
        if not (free and (given["in_valid"][0] or not self.inside(y, x))):
            return After((y, x, waits and not free), lambda tokens: _aged(tokens, 0, beyond))
        return After((*self.following(y, x), self.due(y, x)), self._stepped)

    def _stepped(self, tokens: np.ndarray) -> np.ndarray:
        """Everything is one step older, and what was offered is the newest sample."""
        width, beyond = self.edge.width, FIRST_TOKEN + self.ages * self.edge.width
        return np.where(tokens >= beyond, tokens - self.ages * width, _aged(tokens, width, beyond))

    def due(self, y: int, x: int) -> bool:
        """Whether a window's last tap lies at a place."""
        steps = zip((y, x), self.field, self.stride, strict=True)
        return all(place >= field and (place - field) % stride == 0 for place, field, stride in steps)

    def following(self, y: int, x: int) -> tuple[int, int]:
        if self.columns is None:  # places beyond the first window repeat
            return 0, x + 1 if x < self.field[1] else self.field[1] + (x + 1 - self.field[1]) % self.stride[1]
        if x + 1 < self.columns:
            return y, x + 1
        return (y + 1) % self.rows, 0

    def before(self, y: int, x: int) -> tuple[int, int]:
        """The place of the step before: that of the window which waits."""
        if self.columns is None:
            return 0, x + self.field[1] + self.stride[1]  # any place whose taps all lie in the row
        if x:
            return y, x - 1
        return (y - 1) % self.rows, self.columns - 1

    def expected(self, y: int, x: int) -> np.ndarray:
        """The bus of the window whose last tap lies at a place: channel c · K + t."""
        taps = []
        for i, j in product(range(self.kernel[0]), range(self.kernel[1])):
            back_y, back_x = (self.kernel[0] - 1 - i) * self.dilation[0], (self.kernel[1] - 1 - j) * self.dilation[1]
            age = back_y * (self.columns or 0) + back_x
            taps.append(sample(self.edge.width, age) if self.inside(y - back_y, x - back_x) else self.fill)
        bounds = self.edge.offsets.tolist()
        channels = range(self.edge.channels)
        return np.concatenate([tap[bounds[channel] : bounds[channel + 1]] for channel in channels for tap in taps])

"""Contracts for `explore` that count: an `Unpack` offers each part of a word once, and a marker goes with the last of a frame."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from lutetia.precompute.ir.stream import StreamEdge, Unpack
from lutetia.precompute.tools.explore import After, bit, sample, wrong_data
from lutetia.precompute.tools.symbolic import UNKNOWN


class UnpackContract:
    """A state is the number of the part, and whether the producer must keep its word valid."""

    start = (0, False)

    def __init__(self, node: Unpack, edge: StreamEdge) -> None:
        self.node, self.edge = node, edge
        self.word = sample(edge.width, 0)

    def cases(self, state: tuple[int, bool]) -> Iterator[dict[str, np.ndarray]]:
        for valid in (1,) if state[1] else (0, 1):
            shown = self.word if valid else np.full_like(self.word, UNKNOWN)
            for ready in (0, 1):
                yield {"in_data": shown, "in_valid": bit(valid), "out_ready": bit(ready)}

    def check(self, state: tuple[int, bool], given: dict[str, np.ndarray], seen: dict[str, np.ndarray]) -> str | After:
        part, parts = state[0], self.node.parts
        valid, ready = int(given["in_valid"][0]), int(given["out_ready"][0])
        if int(seen["out_valid"][0]) != valid:
            return f"out_valid is {seen['out_valid'][0]} at part {part}, expected {valid}"
        wrong = wrong_data(seen["out_data"], self.expected(part)) if valid else None
        if wrong:
            return wrong
        last = part == parts - 1
        if valid and int(seen["in_ready"][0]) != int(ready and last):
            return f"in_ready is {seen['in_ready'][0]} at part {part} of {parts}, expected {int(ready and last)}"
        moved = (part + 1) % parts if valid and ready else part
        return After((moved, bool(valid and not (ready and last))), lambda tokens: tokens)

    def expected(self, part: int) -> np.ndarray:
        """The tokens of one part: channel c is channel c · parts + part of the word."""
        offsets = self.edge.offsets.tolist()
        own = range(part, self.edge.channels, self.node.parts)
        return np.concatenate([self.word[offsets[channel] : offsets[channel + 1]] for channel in own])


class LastContract:
    """High beside the last of every `samples` samples; a state is how many of a frame are gone."""

    start = 0

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def cases(self, state: int) -> Iterator[dict[str, np.ndarray]]:
        for valid, ready in product((0, 1), (0, 1)):
            yield {"valid": bit(valid), "ready": bit(ready)}

    def check(self, state: int, given: dict[str, np.ndarray], seen: dict[str, np.ndarray]) -> str | After:
        wanted = int(state == self.samples - 1)
        if given["valid"][0] and int(seen["last"][0]) != wanted:
            return f"last is {seen['last'][0]} beside answer {state} of {self.samples}, expected {wanted}"
        moved = int(given["valid"][0] and given["ready"][0])
        return After((state + moved) % self.samples, lambda tokens: tokens)

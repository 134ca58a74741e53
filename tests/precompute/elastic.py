"""A slow model of the hardware: ready and valid, cycle by cycle, one sample at a time, with stalls on both sides.

It follows the contract in `lutetia.precompute.ir.stream`: nodes without storage pass valid forward and ready back, forks hand a
sample to each reader once, joins accept from all sources at once, windows walk over the padded frame. Combinational nodes are
evaluated by the interpreter; windows and queues, which is what stalls and frames can break, are written here a second time.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np

from lutetia.precompute import Graph
from lutetia.precompute.ir.interpret import evaluate
from lutetia.precompute.ir.stream import Input, Register, Window


class WalkingWindow:
    """One `Window`: where it stands in the padded frame, what it has seen of it, and the window that waits to be taken."""

    def __init__(self, node: Window, shape: tuple[int, ...]) -> None:
        self.node, self.shape = node, shape
        self.padded = tuple(size + 2 * side for size, side in zip(shape, node.padding, strict=True))
        self.at, self.seen, self.waiting = 0, {}, None  # type: ignore[var-annotated]

    def place(self) -> tuple[int, ...]:
        return tuple(int(axis) for axis in np.unravel_index(self.at, self.padded))

    def inside(self) -> bool:
        return all(p <= at < p + size for at, p, size in zip(self.place(), self.node.padding, self.shape, strict=True))

    def step(self, sample: np.ndarray) -> None:
        place, node = self.place(), self.node
        self.seen[place] = sample
        first = [at - (k - 1) * d for at, k, d in zip(place, node.kernel, node.dilation, strict=True)]
        if all(at >= 0 and at % s == 0 for at, s in zip(first, node.stride, strict=True)):
            taps = [
                tuple(a + t * d for a, t, d in zip(first, tap, node.dilation, strict=True)) for tap in np.ndindex(*node.kernel)
            ]
            self.waiting = np.stack([self.seen[tap] for tap in taps], 1).reshape(-1)  # channel by channel, tap by tap
        self.at += 1
        if self.at == int(np.prod(self.padded)):
            self.at, self.seen = 0, {}


def simulate(graph: Graph, samples: list[np.ndarray], n_outputs: int, seed: int, limit: int) -> list[np.ndarray]:
    """Feed samples [channels], collect `n_outputs` results; fewer come back when the network stops before `limit` cycles."""
    rng = random.Random(seed)
    nodes, readers = graph.nodes, graph.readers()
    readers[graph.output] = [*readers[graph.output], -1]
    source, results, offered = deque(samples), [], False
    queues = {number: deque() for number in graph.of_kind(Register)}  # type: ignore[var-annotated]
    walks = {number: WalkingWindow(nodes[number], nodes[nodes[number].source].edge.shape) for number in graph.of_kind(Window)}  # type: ignore[arg-type]
    done: set[tuple[int, int]] = set()
    for _ in range(limit):
        offered = bool(source) and (offered or rng.random() < 0.7)  # once raised, valid stays
        sink = rng.random() < 0.6
        value: dict[int, Any] = {}
        for number, node in enumerate(nodes):
            if isinstance(node, Input):
                value[number] = source[0] if offered else None
            elif number in queues:
                value[number] = queues[number][0] if queues[number] else None
            elif number in walks:
                value[number] = walks[number].waiting
            else:
                given = [None if (each, number) in done else value[each] for each in node.sources]
                ready_made = not any(each is None for each in given)
                edges = [nodes[each].edge for each in node.sources]
                value[number] = evaluate(node, [each[None] for each in given], edges)[0] if ready_made else None
        accepts: dict[int, bool] = {}  # whether a node would take its inputs now
        taken: dict[int, bool] = {}  # whether all readers of a node have, or now get, its sample
        for number in reversed(range(len(nodes))):
            taken[number] = value[number] is not None and all(
                (number, reader) in done or (sink if reader < 0 else accepts[reader]) for reader in readers[number]
            )
            if number in queues:
                room = len(queues[number]) < nodes[number].depth  # type: ignore[attr-defined]
                accepts[number] = room
            elif number in walks:
                accepts[number] = walks[number].waiting is None and walks[number].inside()
            else:
                accepts[number] = value[number] is not None and taken[number]
        fired = [
            (number, reader)
            for number in range(len(nodes))
            for reader in readers[number]
            if value[number] is not None and (number, reader) not in done and (sink if reader < 0 else accepts[reader])
        ]
        for number, reader in fired:
            done.add((number, reader))
            if reader < 0:
                results.append(value[number])
        for number in range(len(nodes)):
            if taken[number]:
                done -= {(number, reader) for reader in readers[number]}
                if number == 0:
                    source.popleft()
                    offered = False
                elif number in queues:
                    queues[number].popleft()
                elif number in walks:
                    walks[number].waiting = None
        for number, reader in fired:
            if reader in queues:
                queues[reader].append(value[number])
            elif reader in walks:
                walks[reader].step(value[number])
        moved = {reader for _, reader in fired}
        for number, walk in walks.items():
            if walk.waiting is None and not walk.inside() and number not in moved:
                walk.step(np.array(walk.node.fill))
        if len(results) == n_outputs:
            break
    return results

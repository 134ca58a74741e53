"""How many clock cycles a network takes when nothing stalls: to its first answer, and for each frame after that.

The count comes from a model of the handshake, without data: what each stage holds, and which samples move in each cycle.
`hardware.cycles()` takes the same numbers from a simulation of the Verilog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lutetia.errors import ArgumentError
from lutetia.precompute.hdl.design import Design, design, walk
from lutetia.precompute.ir.stream import Input, Register, StreamEdge, Unpack, Window
from lutetia.precompute.tools.find import check_time

if TYPE_CHECKING:
    from lutetia.precompute.ir.graph import Graph

FRAMES = 4  # the first ones fill the pipeline, the last one counts
PATIENCE = 1000  # cycles without a sample at either end, beyond those of padding
Branches: TypeAlias = list[list[bool]]


@dataclass(frozen=True)
class Cycles:
    """Clock cycles without stalls.

    first      from the first sample that is offered, to a circuit at rest, to the first answer; 0 where there is no register
    per_frame  from one frame to the next, at full speed; None for an endless stream
    """

    first: int
    per_frame: int | None

    def __str__(self) -> str:
        frame = "" if self.per_frame is None else f", then a frame every {_cycles(self.per_frame)}"
        return f"first answer after {_cycles(self.first)}{frame}"


def _cycles(count: int) -> str:
    return "1 cycle" if count == 1 else f"{count} cycles"


def counted(offered: int, answered: Sequence[int], frames: int | None) -> Cycles:
    """The `Cycles` of this many frames, from the cycle that offered the first sample and the cycles that gave answers."""
    if not answered:
        raise ArgumentError("the network gives no answer to these samples, so there are no cycles to count")
    size = len(answered) // frames if frames else 0
    return Cycles(max(answered[0] - offered, 0), answered[-1] - answered[-1 - size] if frames and frames > 1 else None)


def count_cycles(graph: Graph) -> Cycles:
    """The cycles of a graph, by the model."""
    plan = design(graph, "net")
    samples, frames = graph.input_edge.samples, FRAMES
    if samples is None:  # endless: until there is an answer
        machine = _Machine(plan, 2**31)
        machine.run(lambda: bool(machine.answered))
        return counted(machine.rest, machine.answered, None)
    wanted = frames * (graph.output_edge.samples or 1)
    machine = _Machine(plan, frames * samples)
    machine.run(lambda: len(machine.answered) == wanted)
    return counted(machine.rest, machine.answered, frames)


def rest_of(graph: Graph) -> int:
    """Cycles without a sample after which every window has walked over the padding in front of its frame."""
    windows = [(node, graph.nodes[node.source].edge) for node in graph.nodes if isinstance(node, Window)]
    return sum(plan.rows * plan.columns for plan in (walk(node, edge) for node, edge in windows)) + 1


class _Walker:
    """Where a window stands in its padded frame, and which of the places take a sample and complete a window."""

    def __init__(self, node: Window, edge: StreamEdge) -> None:
        plan = walk(node, edge)
        self.at, self.full = 0, False
        self.endless = plan.width is None
        self.field, self.stride = plan.field_x, plan.stride_x
        rows = [(plan.pad_y <= y < plan.pad_y + plan.height, _due(y, plan.field_y, plan.stride_y)) for y in range(plan.rows)]
        width = plan.width or 0
        columns = [(plan.pad_x <= x < plan.pad_x + width, _due(x, plan.field_x, plan.stride_x)) for x in range(plan.columns)]
        self.places = [(row[0] and column[0], row[1] and column[1]) for row in rows for column in columns]

    def place(self) -> tuple[bool, bool]:
        """Whether the place takes a sample, and whether a window ends there."""
        return (True, _due(self.at, self.field, self.stride)) if self.endless else self.places[self.at]

    def step(self) -> None:
        self.at = self.at + 1 if self.endless or self.at + 1 < len(self.places) else 0


def _due(at: int, field: int, stride: int) -> bool:
    return at >= field and (at - field) % stride == 0


class _Machine:
    """A network as its handshake: which stages hold a sample."""

    def __init__(self, plan: Design, samples: int) -> None:
        self.plan, self.nodes, self.left, self.samples = plan, plan.graph.nodes, 0, samples
        self.held = {number: 0 for number, node in enumerate(self.nodes) if isinstance(node, Register)}
        windows = {number: node for number, node in enumerate(self.nodes) if isinstance(node, Window)}
        self.walkers = {number: _Walker(node, plan.edges(node)[0]) for number, node in windows.items()}
        self.parts = {number: 0 for number, node in enumerate(self.nodes) if isinstance(node, Unpack)}
        self.done: Branches = [[False] * count for count in plan.branches]  # which readers of a fork have the present sample
        self.answered: list[int] = []
        self.rest = rest_of(plan.graph)
        self.patience = PATIENCE + 2 * self.rest

    def run(self, finished: Callable[[], bool]) -> None:
        """Step until it is finished; ArgumentError where nothing moves any more."""
        cycle = last = 0
        while not finished():
            self.left = self.samples if cycle == self.rest else self.left
            before = self.left, len(self.answered)
            self._step(cycle)
            last = cycle if (self.left, len(self.answered)) != before else last
            cycle += 1
            if cycle - last > self.patience:
                raise ArgumentError(f"the network stops after {len(self.answered)} answers: a queue is too short for a join")
            if cycle % 1024 == 0:
                check_time("the count of cycles")

    def _step(self, cycle: int) -> None:
        valid = self._valid()
        gone, ready = self._ready(valid)
        for number, node in enumerate(self.nodes):
            given = all(self._given(valid, *reader) for reader in self._sources(number))
            if isinstance(node, Input):
                self.left -= valid[number] and gone[number]
            elif number in self.held:
                row = self._row(number)
                taken = given and (row in ("middle", "last") or self._room(number, gone))
                self.held[number] += int(taken) - int(valid[number] and (gone[number] or row in ("first", "middle")))
            elif number in self.walkers:
                self._walk(number, given, gone[number])
            elif isinstance(node, Unpack) and given and gone[number]:
                self.parts[number] = (self.parts[number] + 1) % node.parts
        output = self.plan.graph.output
        if self._given(valid, output, self.plan.branches[output] - 1):
            self.answered.append(cycle)
        for number, own in enumerate(self.done):
            if len(own) > 1:
                through = not valid[number] or gone[number]
                self.done[number] = [not through and (done or now) for done, now in zip(own, ready[number], strict=True)]

    def _sources(self, number: int) -> list[tuple[int, int]]:
        return [(reader.source, reader.branch) for reader in self.plan.readers[number]]

    def _given(self, valid: list[bool], source: int, branch: int) -> bool:
        """Whether a reader of a node sees a sample."""
        return valid[source] and not (len(self.done[source]) > 1 and self.done[source][branch])

    def _valid(self) -> list[bool]:
        valid: list[bool] = []
        for number, node in enumerate(self.nodes):
            if isinstance(node, Input):
                valid.append(self.left > 0)
            elif number in self.held:
                valid.append(self.held[number] > 0)
            elif number in self.walkers:
                valid.append(self.walkers[number].full)
            else:
                valid.append(all(self._given(valid, *reader) for reader in self._sources(number)))
        return valid

    def _ready(self, valid: list[bool]) -> tuple[list[bool], Branches]:
        """Whether each node's sample goes on in this cycle, and which of its readers are ready; the end always is."""
        ready: Branches = [[True] * count for count in self.plan.branches]
        gone = [True] * len(self.nodes)
        for number in reversed(range(len(self.nodes))):
            own, done = ready[number], self.done[number]
            gone[number] = own[0] if len(own) == 1 else all(map(any, zip(own, done, strict=True)))
            accepts = self._accepts(number, valid, gone)
            for source, branch in self._sources(number):
                ready[source][branch] = accepts
        return gone, ready

    def _accepts(self, number: int, valid: list[bool], gone: list[bool]) -> bool:
        if number in self.held:
            return self._room(number, gone)
        if number in self.walkers:
            walker = self.walkers[number]
            return (not walker.full or gone[number]) and walker.place()[0]
        node = self.nodes[number]
        if isinstance(node, Unpack):
            return gone[number] and self.parts[number] == node.parts - 1
        return gone[number] and (valid[number] or len(self.nodes[number].sources) < 2)

    def _row(self, number: int) -> str:
        node = self.nodes[number]
        assert isinstance(node, Register)
        return node.row

    def _room(self, number: int, gone: list[bool]) -> bool:
        node = self.nodes[number]
        assert isinstance(node, Register)
        if node.row:
            return self.held[number] < 2 if node.row == "last" else gone[number]
        return self.held[number] < node.depth or gone[number]

    def _walk(self, number: int, given: bool, gone: bool) -> None:
        walker = self.walkers[number]
        inside, due = walker.place()
        move = (not walker.full or gone) and (given or not inside)
        walker.full = (move and due) or (walker.full and not gone)
        if move:
            walker.step()

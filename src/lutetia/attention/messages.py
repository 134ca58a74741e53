"""How cores communicate: `sendrecv` as a checked rendezvous, and the collective that N cores build from it.

A core is a coroutine. To communicate it yields a `Sendrecv`, which names the core it sends to, the core it receives from, the
shape and dtype it expects, and a tag. `rendezvous` runs all cores until each waits, and delivers where both sides are waiting and
agree. Nothing is buffered and nothing can hang: if no core can continue, an error says where each one is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from lutetia import flow
from lutetia.attention.scratch import ScratchManager
from lutetia.errors import LutetiaError, describe
from lutetia.flow import Reporter

Result = TypeVar("Result")


class MessageError(LutetiaError):
    """A message between cores was missing, duplicated, or not what the other side expected."""

    kind = "message"


@dataclass
class Core:
    """A core: its number, and its place in the program."""

    index: int
    cores: int = 1
    scratch: ScratchManager = field(default_factory=ScratchManager)
    clock: int = 0  # steps so far; a message sets the clocks of all it joins to the latest of them
    tile: int | None = None
    places: list[str] = field(default_factory=list)  # the steps it is inside of

    @property
    def name(self) -> str:
        """core 0, core 1, …"""
        return f"core {self.index}"

    @property
    def position(self) -> str:
        """Where it is, for errors: `fa_tile 1, cascaded_max_reduce`."""
        tile = [] if self.tile is None else [f"fa_tile {self.tile}"]
        return ", ".join([*tile, *self.places]) or "its beginning"

    @contextmanager
    def step(self, name: str, /, inputs: Mapping[str, Any] | None = None, **notes: Any) -> Iterator[Reporter]:
        """One step of this core: recorded in the core's lane, and one tick of its clock."""
        began = self.clock
        if self.tile is not None:
            notes["tile"] = self.tile
        self.places.append(name)
        try:
            with flow.step(name, part="attention", inputs=inputs, lane=self.name, at=began, **notes) as report:
                yield report
        finally:
            self.places.pop()
        if self.clock == began:  # a step made of steps takes the time of those
            self.clock += 1


class Sendrecv(NamedTuple):
    """One side of an exchange: the message that a core offers, and the one it expects."""

    core: int
    to: int
    source: int
    payload: Tensor
    shape: tuple[int, ...]  # of what it expects
    dtype: torch.dtype
    tag: str
    round: int  # of the collective it belongs to
    place: str  # where the core is
    clock: int

    def __str__(self) -> str:
        peers = f"core {self.to}" if self.to == self.source else f"core {self.to} and from core {self.source}"
        return f"core {self.core} (at {self.place}: sendrecv {self.what} with {peers})"

    @property
    def what(self) -> str:
        """The tag, and the round where there are several."""
        return f"{self.tag!r}, round {self.round}" if self.round else repr(self.tag)


class Delivery(NamedTuple):
    """What the core receives in return."""

    received: Tensor
    original: Tensor  # the sender's tensor, of which `received` is a copy
    at: int  # the tick at which all sides were there


class Message(NamedTuple):
    """One message that was delivered."""

    sender: int
    receiver: int
    tag: str  # the same for all messages of one exchange, and for no other
    round: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    at: int  # tick
    place: str  # the step of the sender


class Exchange(NamedTuple):
    """Every core gives its part, and gets the parts of all, in core order."""

    payload: Tensor
    shapes: Sequence[tuple[int, ...]]  # of the part of each core
    tag: str


Program = Generator[Exchange, list[Tensor], Result]
Talking = Generator[Sendrecv, Delivery, Result]


def sendrecv(
    core: Core, payload: Tensor, *, to: int, source: int, shape: Sequence[int], tag: str, round: int = 0
) -> Talking[Tensor]:
    """Send payload (any shape) to one core, and receive a tensor of `shape` from one, which may be the same."""
    delivery = yield Sendrecv(core.index, to, source, payload, tuple(shape), payload.dtype, tag, round, core.position, core.clock)
    core.clock = delivery.at
    inputs = {"sent": payload, f"from_core_{source}": delivery.original}
    size, got = nbytes(payload), nbytes(delivery.received)
    with core.step("sendrecv", inputs, tag=tag, round=round, to=to, source=source, bytes=size, received_bytes=got) as step:
        step.outputs(received=delivery.received)
    return delivery.received


def ring(core: Core, exchange: Exchange) -> Talking[list[Tensor]]:
    """An exchange as N - 1 rounds of `sendrecv`: each core passes on to the next what it got last (a ring all-gather).

    For two cores that is one `sendrecv`. In round r core c sends the part of core c - r to core c + 1.
    """
    me, n = core.index, core.cores
    parts = {me: exchange.payload}
    for turn in range(n - 1):
        sent, got = (me - turn) % n, (me - turn - 1) % n
        parts[got] = yield from sendrecv(
            core, parts[sent], to=(me + 1) % n, source=(me - 1) % n, shape=exchange.shapes[got], tag=exchange.tag, round=turn
        )
    return [parts[each] for each in range(n)]


def on_ring(core: Core, program: Program[Result]) -> Talking[Result]:
    """Turn a program that exchanges into one that sends and receives."""
    try:
        exchange = next(program)
        while True:
            exchange = program.send((yield from ring(core, exchange)))
    except StopIteration as done:
        return done.value
    finally:
        program.close()


# ---- the rendezvous --------------------------------------------------------------------------------------------------


def rendezvous(programs: Sequence[Talking[Result]]) -> tuple[list[Result], list[Message]]:
    """Run cores to their ends: what each returned, and every message in order of delivery.

    MessageError when two cores exchange messages that do not match, or when no core can continue.
    """
    results: dict[int, Result] = {}
    waiting: dict[int, Sendrecv] = {}
    messages: list[Message] = []
    ready: dict[int, Delivery | None] = dict.fromkeys(range(len(programs)))
    try:
        while ready:
            for core, delivery in sorted(ready.items()):
                try:
                    call = next(programs[core]) if delivery is None else programs[core].send(delivery)
                    _check_peers(call, core, len(programs))
                    waiting[core] = call
                except StopIteration as done:
                    results[core] = done.value
            ready = _deliver(waiting, messages)
    finally:
        for program in programs:
            program.close()
    if waiting:
        _stuck(waiting)
    return [results[core] for core in range(len(programs))], messages


def _deliver(waiting: dict[int, Sendrecv], messages: list[Message]) -> dict[int, Delivery | None]:
    """Deliver to every cycle of cores that send to each other and are all waiting; they then stop waiting."""
    ready: dict[int, Delivery | None] = {}
    for core in sorted(waiting):
        circle = _circle(waiting, core) if core in waiting else []
        at = max((call.clock for call in circle), default=0)
        for sender, receiver in zip(circle, circle[1:] + circle[:1], strict=True):
            place = sender.place
            size = nbytes(sender.payload)
            messages.append(
                Message(sender.core, receiver.core, sender.tag, sender.round, receiver.shape, receiver.dtype, size, at, place)
            )
            ready[receiver.core] = Delivery(sender.payload.clone(), sender.payload, at)
        for call in circle:
            del waiting[call.core]
    return ready


def _circle(waiting: Mapping[int, Sendrecv], core: int) -> list[Sendrecv]:
    """The calls of a cycle, starting with this core's: each sends to the next, the last to the first; empty if one is missing."""
    circle = [waiting[core]]
    while True:
        sender = circle[-1]
        receiver = waiting.get(sender.to)
        if receiver is None or receiver.source != sender.core:
            return []
        _check_agreement(sender, receiver)
        if receiver.core == core:
            return circle
        circle.append(receiver)


def _check_peers(call: Sendrecv, core: int, n: int) -> None:
    for peer in (call.to, call.source):
        if not 0 <= peer < n or peer == core:
            raise MessageError(f"{call} names core {peer}, expected another core from 0 to {n - 1}")


def _check_agreement(sender: Sendrecv, receiver: Sendrecv) -> None:
    if (sender.tag, sender.round) != (receiver.tag, receiver.round):
        raise MessageError(
            f"{sender} sends {sender.what}, but {receiver} expects {receiver.what}: a message was dropped or duplicated"
        )
    if tuple(sender.payload.shape) != receiver.shape or sender.payload.dtype != receiver.dtype:
        wanted = f"{str(receiver.dtype).removeprefix('torch.')} {list(receiver.shape)}"
        raise MessageError(f"{sender} sends {describe(sender.payload)}, but {receiver} expects {wanted}")


def _stuck(waiting: Mapping[int, Sendrecv]) -> NoReturn:
    """Every core waits or has finished: raise the error of the first that waits for a core that will not come."""

    def missing(call: Sendrecv) -> int:
        there = waiting.get(call.to)
        return call.source if there is not None and there.source == call.core else call.to

    call = next((call for call in waiting.values() if missing(call) not in waiting), next(iter(waiting.values())))
    partner = missing(call)
    where = f"{waiting[partner]} waits too" if partner in waiting else f"core {partner} has finished"
    others = [str(other) for other in waiting.values() if other.core not in (call.core, partner)]
    rest = f"; so do {', '.join(others)}" if others else ""
    raise MessageError(f"{call} waits for core {partner}, but {where}: no partner for this message{rest}")


def nbytes(tensor: Tensor) -> int:
    """Bytes of the elements of a tensor."""
    return tensor.numel() * tensor.element_size()

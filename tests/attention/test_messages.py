"""The rendezvous of cores: what is delivered, and what is said when two do not meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia.attention.messages import Core, Exchange, MessageError, Program, Talking, on_ring, rendezvous, ring, sendrecv


def talk(core: Core, *calls: dict[str, Any]) -> Talking[list[Tensor]]:
    """Send and receive as told."""
    got = []
    for call in calls:
        with core.step(call.pop("place", "talk")):
            got.append((yield from sendrecv(core, call.pop("payload", torch.zeros(2)), **{"shape": (2,), "tag": "x", **call})))
    return got


def pair(*calls: tuple[dict[str, Any], ...]) -> list[Talking[list[Tensor]]]:
    return [talk(Core(index, len(calls)), *own) for index, own in enumerate(calls)]


def to(peer: int, **rest: Any) -> dict[str, Any]:
    return {"to": peer, "source": peer, **rest}


def test_two_cores_swap() -> None:
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])
    results, log = rendezvous(pair((to(1, payload=one, shape=(1, 1)),), (to(0, payload=two),)))
    assert torch.equal(results[0][0], two)
    assert torch.equal(results[1][0], one)
    assert [(m.sender, m.receiver, m.tag, m.shape, m.bytes, m.place) for m in log] == [
        (0, 1, "x", (2,), 8, "talk"),
        (1, 0, "x", (1, 1), 4, "talk"),
    ]


def test_what_is_received_is_a_copy() -> None:
    mine = torch.zeros(2)
    results, _ = rendezvous(pair((to(1, payload=mine),), (to(0),)))
    mine.fill_(7)
    assert (results[1][0] == 0).all()


def test_clocks_meet_at_a_message() -> None:
    cores = [Core(0, 2), Core(1, 2, clock=5)]
    _, log = rendezvous([talk(core, to(1 - core.index), to(1 - core.index)) for core in cores])
    assert [message.at for message in log] == [5, 5, 6, 6]
    assert [core.clock for core in cores] == [7, 7]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
def test_a_ring_gathers_parts_of_any_shape(n: int) -> None:
    shapes = [(core % 3, 2) for core in range(n)]  # empty ones too
    parts = [torch.full(shape, float(core)) for core, shape in enumerate(shapes)]
    results, log = rendezvous([ring(Core(c, n), Exchange(parts[c], shapes, "part")) for c in range(n)])
    for found in results:
        assert all(torch.equal(one, other) for one, other in zip(found, parts, strict=True))
    assert len(log) == n * (n - 1)
    assert all(message.receiver == (message.sender + 1) % n for message in log)
    assert sum(message.bytes for message in log) == (n - 1) * sum(part.numel() * 4 for part in parts)
    for turn in range(n - 1):  # all cores at once
        assert len({message.at for message in log if message.round == turn}) == 1


def test_a_program_that_exchanges() -> None:
    def program(value: float) -> Program[float]:
        parts = yield Exchange(torch.tensor([value]), [(1,)] * 3, "first")
        parts = yield Exchange(sum(parts, torch.zeros(1)) * (1 + value), [(1,)] * 3, "second")
        return float(sum(parts))

    results, log = rendezvous([on_ring(Core(c, 3), program(float(c))) for c in range(3)])
    assert results == [3.0 * (1 + 2 + 3)] * 3
    assert [m.tag for m in log] == ["first"] * 6 + ["second"] * 6


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (
            ((to(1, tag="a", place="here"),), (to(0, tag="b", place="there"),)),
            r"core 0 \(at here: sendrecv 'a' with core 1\) sends 'a', but core 1 \(at there: .*\) expects 'b'",
        ),
        (
            ((to(1, round=1),), (to(0),)),
            r"core 0 .* sends 'x', round 1, but core 1 .* expects 'x': a message was dropped or duplicated",
        ),
        (
            ((to(1, payload=torch.zeros(3)),), (to(0),)),
            r"core 0 .* sends float32 \[3\] on cpu, but core 1 .* expects float32 \[2\]",
        ),
        (((to(1),), (to(0, payload=torch.zeros(2).half()),)), r"sends float32 \[2\] on cpu, but core 1 .* expects float16 \[2\]"),
        (((to(1),), ()), r"core 0 \(at talk: .*\) waits for core 1, but core 1 has finished: no partner for this message"),
        (((to(1), to(1)), (to(0),)), "core 0 .* waits for core 1, but core 1 has finished"),
        (
            ((to(1),), (to(2),), (to(0),)),
            r"core 0 .* waits for core 1, but core 1 \(.* with core 2\) waits too: .*; so do core 2",
        ),
        (((to(5),), ()), "names core 5, expected another core from 0 to 1"),
        (((to(0),), ()), "names core 0, expected another core from 0 to 1"),
    ],
)
def test_who_does_not_meet(calls: Any, message: str) -> None:
    calls = tuple(tuple(dict(call) for call in own) for own in calls)
    with pytest.raises(MessageError, match=message):
        rendezvous(pair(*calls))


def test_others_go_on_while_one_pair_waits() -> None:
    """Cores 0 and 1 meet twice before core 1 comes to core 2."""
    results, log = rendezvous(pair((to(1), to(1)), (to(0), to(0), to(2)), (to(1),)))
    assert [len(found) for found in results] == [2, 3, 1]
    assert [(m.sender, m.receiver) for m in log] == [(0, 1), (1, 0), (0, 1), (1, 0), (1, 2), (2, 1)]


def test_an_error_in_a_core_ends_all() -> None:
    ended = []

    def failing(core: Core) -> Talking[None]:
        yield from sendrecv(core, torch.zeros(1), to=1, source=1, shape=(1,), tag="x")
        raise KeyError("mine")

    def waiting(core: Core) -> Talking[None]:
        try:
            yield from sendrecv(core, torch.zeros(1), to=0, source=0, shape=(1,), tag="x")
            yield from sendrecv(core, torch.zeros(1), to=0, source=0, shape=(1,), tag="y")
        finally:
            ended.append(core.index)

    with pytest.raises(KeyError, match="mine"):
        rendezvous([failing(Core(0, 2)), waiting(Core(1, 2))])
    assert ended == [1]

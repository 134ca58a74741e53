"""Launches in a row: the driver is played by functions of C that write down what they are given."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from lutetia._shared import driver, replay
from lutetia._shared.replay import Replayed
from lutetia._shared.steps import Make, Parameter, Shot, Step, Zeros, function_of
from lutetia._shared.volley import LINE, Room, Volley, share
from lutetia.errors import LutetiaError

STREAM = 0x7123456789AB
ADDRESS = ctypes.POINTER(ctypes.c_void_p)
Launch = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ADDRESS, ctypes.c_void_p)
Memset = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_uint64, ctypes.c_void_p)


class Driver:
    """The driver's two functions. A kernel here is the number of its parameters; the results of calls are given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.results: list[int] = []
        self.contexts = 0
        self.functions = {"cuLaunchKernel": Launch(self.launch), "cuMemsetD8Async": Memset(self.memset)}

    def launch(self, function: int | None, *rest: Any) -> int:
        function = function or 0
        *shape, stream, pointers, extra = rest
        assert (stream, extra) == (STREAM, None)
        given = [ctypes.c_uint64.from_address(pointers[k]).value for k in range(function)]
        self.calls.append((function, tuple(shape), given))
        return self.results.pop(0) if self.results else 0

    def memset(self, address: int, value: int, n_bytes: int, stream: int) -> int:
        assert (value, stream) == (0, STREAM)
        self.calls.append((address, n_bytes))
        return self.results.pop(0) if self.results else 0

    def address_of(self, name: str) -> int:
        return ctypes.cast(self.functions[name], ctypes.c_void_p).value or 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.contexts += 1
        return 0

    def cuGetErrorString(self, result: int, text: Any) -> int:
        text._obj.value = f"error {result}".encode()
        return 0


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Driver:
    play = Driver()
    monkeypatch.setattr(driver, "driver", lambda: play)
    monkeypatch.setattr(driver, "address_of", play.address_of)
    monkeypatch.setattr(driver, "_context", lambda device: device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    return play


ITEMS: list[Any] = [
    Zeros("b", 96),
    Shot(3, (7, 5, 2), 64, 1000, (Parameter("a", 8), 2**64 - 3, Parameter("b", 0))),
    Zeros("nothing", 0),
    Shot(1, (1, 1, 1), 1024, 0, (41,)),
    Shot(1, (5, 0, 1), 32, 0, (42,)),  # no blocks: Triton launches nothing, and the driver would refuse
    Shot(0, (2**31 - 1, 1, 1), 32, 0, ()),
]
PLACES = {"a": (1, 0), "b": (0, 512), "nothing": (0, 0)}
CALLS = [
    (2**40 + 512, 96),
    (3, (7, 5, 2, 64, 1, 1, 1000), [2**63 + 8, 2**64 - 3, 2**40 + 512]),
    (1, (1, 1, 1, 1024, 1, 1, 0), [41]),
    (0, (2**31 - 1, 1, 1, 32, 1, 1, 0), []),
]


def test_every_launch_is_given_its_addresses_and_numbers(played: Driver) -> None:
    Volley(ITEMS, PLACES)(2**40, 2**63 - 2**64)  # an address is 64 bits, here one whose highest is set
    assert played.calls == CALLS


@pytest.mark.parametrize("place", range(4))
def test_a_thread_without_a_context_goes_on_where_it_was(played: Driver, place: int) -> None:
    played.results = [0] * place + [driver.INVALID_CONTEXT]
    Volley(ITEMS, PLACES)(2**40, 2**63 - 2**64)
    assert played.calls == [*CALLS[: place + 1], *CALLS[place:]]
    assert played.contexts == 1


@pytest.mark.parametrize(("results", "message"), [([0, 7], "error 7"), ([driver.INVALID_CONTEXT] * 2, "error 201")])
def test_an_error_is_told(played: Driver, results: list[int], message: str) -> None:
    played.results = list(results)
    with pytest.raises(LutetiaError, match=f"launching kernels failed: {message}"):
        Volley(ITEMS, PLACES)(2**40, 0)
    assert len(played.calls) == 2


def test_rooms_that_are_needed_at_the_same_time_do_not_overlap() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        drawn = torch.randint(0, 12, (9, 3), generator=generator).tolist()
        rooms = {f"t{k}": Room(700 * size, first, first + length) for k, (size, first, length) in enumerate(drawn)}
        places, total = share(rooms)
        assert all(begin % LINE == 0 and begin + rooms[name].n_bytes <= total for name, begin in places.items())
        for one in rooms:
            for other in rooms:
                apart = rooms[one].last < rooms[other].first or rooms[other].last < rooms[one].first
                behind = places[one] + rooms[one].n_bytes <= places[other] or places[other] + rooms[other].n_bytes <= places[one]
                assert one == other or apart or behind
        most = max(sum(-(-r.n_bytes // LINE) * LINE for r in rooms.values() if r.first <= t <= r.last) for t in range(24))
        assert most <= total <= 1.35 * most  # what is needed at one time at least, and little more


def test_a_function_of_launches_allocates_once_and_keeps_what_others_need(played: Driver) -> None:
    def empty(size: Any, stride: Any, dtype: Any) -> torch.Tensor:
        made.append((size, dtype))
        return torch.empty_strided(size, stride, dtype=dtype)

    made: list[Any] = []
    steps = [
        Step("t0 = empty((4,), (1,), c)", Make("t0", 16)),
        Step("t1 = empty((900,), (1,), c)", Make("t1", 3600)),
        Step("t1.zero_()", Zeros("t1", 3600)),
        Step("one", Shot(2, (1, 1, 1), 32, 0, (Parameter("a0", 4), Parameter("t1", 8)))),
        Step("t2 = empty((900,), (1,), c)", Make("t2", 3600)),
        Step("two", Shot(2, (2, 1, 1), 32, 0, (Parameter("t2", 0), Parameter("t0", 0)))),
        Step("t0.fill_(5)"),
        Step("three", Shot(1, (3, 1, 1), 32, 0, (Parameter("t0", 0),))),
        Step("return t0"),
    ]
    run = function_of(["a0"], steps, {"t0", "t1", "t2"}, {"empty": empty, "c": torch.float32})
    given = torch.zeros(3)
    got = run(given)
    assert torch.equal(got, torch.full((4,), 5.0))
    assert made == [((4,), torch.float32), ((4096,), torch.uint8)]  # t1 is not needed any more when t2 is
    (room, n_bytes), (_, first, (x, one)), (_, second, (two, out)), (_, third, (last,)) = played.calls
    assert n_bytes == 3600
    assert (x, one, two) == (given.data_ptr() + 4, room + 8, room)
    assert out == last == got.data_ptr()
    assert [shape[0] for shape in (first, second, third)] == [1, 2, 3]


class PlayedLaunch:
    """A launch of a compiled kernel, which the driver makes when it is replayed."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor, n: int) -> None:
        pass

    def ready(self) -> bool:
        return True

    def shot(self, x: torch.Tensor, out: torch.Tensor, n: int) -> Shot:
        return Shot(3, (1, 1, 1), 32, 0, (x, out, n))


def test_what_was_recorded_is_launched_in_a_row(played: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "on_cpu", True)
    launch = PlayedLaunch()

    def run(x: torch.Tensor) -> torch.Tensor:
        between, out = x.new_empty(8), x.new_empty(8)
        for given, to in ((x[2:], between), (between[4:], out)):
            if replay.current.recorder is not None:
                replay.current.recorder.add_launch(launch, (given, to), (9,))
        return out[1:]

    call = Replayed(run, (), lambda: False)
    for _ in range(3):
        call(torch.zeros(10))
    assert not played.calls
    x = torch.zeros(10)
    got = call(x)
    (_, _, (from_x, between, n)), (_, _, (from_between, out, _)) = played.calls
    assert (from_x, n, from_between, out) == (x.data_ptr() + 8, 9, between + 16, got.data_ptr() - 4)

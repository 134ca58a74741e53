"""Recorded calls: what is replayed gives what the function gives, and what cannot be replayed is not."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lutetia._shared import replay
from lutetia._shared.dtypes import without_rounding
from lutetia._shared.replay import Replayed


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "on_cpu", True)


class Counted:
    """A function that counts how often it runs, as one that is replayed."""

    def __init__(self, run: Callable[..., Any], constants: tuple[int, ...] = ()) -> None:
        self.runs, self.run = 0, run
        self.watched = False
        self.call = Replayed(self._count, constants, lambda: self.watched)

    def _count(self, *arguments: Any) -> Any:
        self.runs += 1
        return self.run(*arguments)

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)


def many_steps(x: Tensor, y: Tensor, factor: float, size: list[int], other: Tensor | None) -> tuple[Any, ...]:
    total = x.new_zeros(size)
    total[1:] += (x.t() @ y)[1:]
    left, right = total.split(1)
    scratch = torch.empty_like(total).copy_(total).mul_(factor)
    joined = torch.cat([left, right, scratch])
    return Pair(joined.contiguous(), other), scratch.sum(0), 3, (total[:], None)


def test_the_same_results_from_the_fourth_call_on() -> None:
    function = Counted(many_steps)
    results = []
    for number in range(7):
        x, y = torch.randn(3, 2), torch.randn(3, 5)
        got, want = function(x, y, 0.5, [2, 5], None), many_steps(x, y, 0.5, [2, 5], None)
        results.append(got)
        assert function.runs == min(number + 1, 3)
        assert isinstance(got[0], Pair)
        assert got[0].second is None
        assert got[2] == 3
        assert got[3][1] is None
        for mine, wanted in ((got[0].first, want[0].first), (got[1], want[1]), (got[3][0], want[3][0])):
            assert torch.equal(mine, wanted)
            assert mine.stride() == wanted.stride()
    assert len({result[1].data_ptr() for result in results}) == 7  # each has memory of its own


def test_steps_are_taken_below_autocast() -> None:
    """What it would round was rounded by a step of its own, or not at all."""

    def run(x: Tensor) -> Tensor:
        with without_rounding():
            return x @ x

    function, x = Counted(run), torch.randn(3, 3)
    for _ in range(3):
        function(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = function(x)
    assert function.runs == 3
    assert torch.equal(got, x @ x)


class Allocator:
    """Counts the tensors that live."""

    def __init__(self) -> None:
        self.alive, self.most, self.make = weakref.WeakSet[Tensor](), 0, replay.allocator(torch.zeros(1))

    def __call__(self, *size: Any) -> Tensor:
        tensor = self.make(*size)
        self.alive.add(tensor)
        self.most = max(self.most, len(self.alive))
        return tensor

    def tensor_at(self, address: int) -> Tensor:
        return next(each for each in self.alive if each.data_ptr() == address)


class AddressLaunch:
    """A launch that copies, and once it is compiled takes addresses."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator

    def __call__(self, given: tuple[Tensor, None], out: Tensor) -> None:
        out.copy_(given[0])

    def again(self, given: tuple[int, None], out: int) -> None:
        self(tuple(map(self.allocator.tensor_at, given[:1])) + given[1:], self.allocator.tensor_at(out))  # type: ignore[arg-type]

    def ready(self) -> bool:
        return True

    def shot(self, *arguments: Any) -> None:
        """It must be made as it is."""


@pytest.mark.parametrize("launched", [False, True])
def test_memory_is_given_back_as_soon_as_it_is_not_needed(monkeypatch: pytest.MonkeyPatch, launched: bool) -> None:
    """A function that cuts its work into parts to save memory takes no more of it when it is replayed."""
    allocator = Allocator()
    launch = AddressLaunch(allocator)

    def in_parts(x: Tensor) -> Tensor:
        total, part = x.new_zeros(x.shape), x.new_empty(x.shape).copy_(x)
        for _ in range(5):
            following = x.new_empty(x.shape)
            if launched and replay.current.recorder is not None:
                replay.current.recorder.add_launch(launch, ((part, None), following), ())
            else:
                following.copy_(part)
            before, part = weakref.ref(part), following
            assert before() is None  # nor does whoever records keep it
            total += part
        return total

    monkeypatch.setattr(replay, "allocator", lambda like: allocator)
    function, x = Counted(in_parts), torch.randn(3)
    for _ in range(4):
        assert torch.equal(function(x), in_parts(x))
    assert function.runs == 3
    assert allocator.most == 3


class AddressKernel:
    """A kernel of CUDA C++ that copies four floats between addresses, one by one."""

    def __init__(self) -> None:
        self.launches = 0

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        bits = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
        self.launch(grid, bits)
        if replay.current.recorder is not None:
            replay.current.recorder.add_kernel(self, grid, arguments, bits)

    def shot(self, grid: tuple[int, int, int], given: tuple[Any, ...]) -> None:
        """It must be made as it is."""

    def launch(self, grid: tuple[int, int, int], bits: list[int]) -> None:
        self.launches += 1
        source, step, out, out_step = bits
        for number in range(4):
            ctypes.memmove(out + 4 * number * out_step, source + 4 * number * step, 4)


def test_a_view_is_an_address_until_somebody_needs_the_tensor() -> None:
    kernel, whole = AddressKernel(), torch.arange(24.0).view(4, 6)

    def run(x: Tensor) -> tuple[Tensor, ...]:
        first, second = x.new_zeros(2, 4).unbind()
        kernel((1, 1, 1), x.t()[2:].t()[:, 1], 6, first, 1)  # column 3, by a view of a view of a view
        kernel((1, 1, 1), whole[1:].detach()[:, 2:], 1, second, 1)  # of a constant
        twice = second[:] * 2  # a tensor from here on
        copy = x.new_zeros(10)
        kernel((1, 1, 1), twice[:], 1, copy[3:], 2)
        kernel((1, 1, 1), second[0], 0, copy.view(5, 2).t()[0, 1:], 2)
        return first, second[1:], x[1:, 2:], copy, copy.view(5, 2).t()[1], x.detach()

    function = Counted(run)
    for number in range(6):
        x = torch.randn(64)[8 * number :][:24].view(4, 6)  # aligned alike, wherever it begins
        got = function(x)
        assert function.runs == min(number + 1, 3)
        assert torch.equal(got[0], x[:, 3])
        assert torch.equal(got[3][2:], torch.tensor([8.0, 16, 8, 18, 8, 20, 8, 22]))
        for mine, want in zip(got, run(x), strict=True):
            assert mine.stride() == want.stride()
            assert torch.equal(mine, want)
    assert got[5] is x
    (kind,) = function.call.kinds.values()
    ops = {each for each in kind.steps.__globals__.values() if isinstance(each, torch._ops.OpOverload)}
    assert ops == {torch.ops.aten.mul.Tensor}


def test_calls_of_another_kind_are_recorded_apart() -> None:
    function = Counted(lambda x, factor: x * factor + x.new_zeros(x.shape))
    x = torch.randn(4, 6)
    kinds = [(x, 2), (x, 3), (x[:3], 2), (x.t().contiguous().t(), 2), (x.double(), 2), (torch.randn(25)[1:].view(4, 6), 2)]
    for number, (given, factor) in enumerate(kinds):
        for _ in range(5):
            assert torch.equal(function(given, factor), given * factor)
        assert function.runs == 3 * (number + 1)


def test_a_tensor_that_is_given_twice() -> None:
    function, x, y = Counted(lambda x, y: x - 2 * y), torch.randn(3), torch.randn(3)
    for one, other in [(x, x)] * 5 + [(x, y)] * 5 + [(y, y)]:
        assert torch.equal(function(one, other), one - 2 * other)
    assert function.runs == 6


def test_constants_are_the_same_tensors_unchanged() -> None:
    def run(x: Tensor, scale: Tensor) -> Tensor:
        return x * float(scale_of[id(scale), scale._version])

    constant = torch.tensor(2.0)
    scale_of = {(id(constant), constant._version): 2.0}
    function, x = Counted(run, (1,)), torch.randn(3)
    for _ in range(5):
        assert torch.equal(function(x, constant), 2 * x)
    constant.mul_(2)
    scale_of[id(constant), constant._version] = 4.0
    for _ in range(5):
        assert torch.equal(function(x, constant), 4 * x)
    assert function.runs == 6
    other = torch.tensor(8.0)
    scale_of[id(other), other._version] = 8.0
    assert torch.equal(function(x, other), 8 * x)
    assert len(function.call.kinds) == 3
    del constant, other
    gc.collect()
    assert not function.call.kinds  # nothing is kept of tensors that are gone


def hidden_memory(x: Tensor) -> Tensor:
    out = torch._C._dynamo.guards._empty_strided_cpu((3,), (1,), torch.float32)
    return out.copy_(x)


def alternating(x: Tensor, calls: list[int] = []) -> Tensor:  # noqa: B006
    calls.append(0)
    return x * len(calls)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x * x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        hidden_memory,
        alternating,
        lambda x: x * torch.tensor([1.0, 2.0, 3.0]),  # a new tensor each time
        lambda x: torch.ops.lutetia_test_replay.twice(x),
        lambda x: x + len(x.to("meta")),
        lambda x: x + len(torch.empty(3, device="meta").copy_(x)),
    ],
    ids=[
        *("a number", "a mask", "places", "hidden memory", "a counter", "a fresh constant", "an op of others"),
        *("a copy elsewhere", "a copy into memory elsewhere"),
    ],
)
def test_what_is_not_replayed(run: Callable[..., Tensor]) -> None:
    library = torch.library.Library("lutetia_test_replay", "FRAGMENT")
    if not hasattr(torch.ops.lutetia_test_replay, "twice"):
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CPU")
    function = Counted(run)
    for number in range(6):
        x = torch.randn(3)
        got = function(x)
        if run is not alternating:
            assert torch.equal(got, run(x))
        assert function.runs == number + 1
    assert all(kind.refused for kind in function.call.kinds.values())


def test_memory_elsewhere_stays_there() -> None:
    function = Counted(lambda x: (x + 1, torch.zeros(3, device="meta"), torch.empty(2, device="meta")))
    for _ in range(5):
        assert [each.device.type for each in function(torch.randn(3))] == ["cpu", "meta", "meta"]
    assert function.runs == 3


def test_a_kept_constant_is_replayed() -> None:
    kept = torch.tensor([1.0, 2.0, 3.0])
    function = Counted(lambda x: x * kept)
    for _ in range(5):
        x = torch.randn(3)
        assert torch.equal(function(x), x * kept)
    assert function.runs == 3


def test_a_call_like_the_last_ones_is_known_by_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where calls of a kind take turns that torch's guards tell apart; what is of another kind is not taken for it."""
    keys, key_of = [], replay._key
    monkeypatch.setattr(replay, "_key", lambda *given: keys.append(key := key_of(*given)) or key)
    function, constant = Counted(lambda x, constant, factor: x * factor + constant, (1,)), torch.ones(3)
    learned = torch.nn.Parameter(torch.randn(3))
    for _ in range(8):
        for x in (torch.randn(3), learned.detach(), learned):
            with torch.no_grad():
                assert torch.equal(function(x, constant, 2), x * 2 + 1)
    assert len(keys) == 5  # a run, two recordings, and a guard each for tensors and parameters
    odd, longer = torch.randn(4)[1:], torch.randn(6)[::2]
    for x, factor in ((torch.randn(3), 3), (odd, 2), (longer, 2), (torch.randn(3).double(), 2), (torch.randn(4)[:1], 2)):
        before = len(keys)
        assert torch.equal(function(x, constant, factor), x * factor + constant)
        assert len(keys) == before + 1
    constant.mul_(5)
    assert torch.equal(function(odd.clone(), constant, 2), odd * 2 + 5)
    assert len(keys) == 11


def test_arguments_that_are_left_out() -> None:
    """An op is not handed those that have their default."""
    scale = torch.tensor([1.0, 2.0, 3.0])
    function = Counted(lambda x, factor=2.0, other=None: x * factor if other is None else x * factor * other, (2,))
    x = torch.randn(3)
    for _ in range(5):
        for rest in ((), (3.0,), (3.0, scale), (), (2.0, None)):
            assert torch.equal(function(x, *rest), function.run(x, *rest))
    assert function.runs == 12


def test_whoever_watches_sees_the_function_run() -> None:
    function, x = Counted(lambda x: x + 1), torch.randn(3)
    for _ in range(4):
        function(x)
    assert function.runs == 3
    function.watched = True
    function(x)
    assert function.runs == 4
    function.watched = False
    with torch.profiler.profile():
        function(x)
    assert function.runs == 5
    function(torch.nn.Parameter(x))  # of the same kind
    with torch.inference_mode():
        assert function(torch.randn(3)).is_inference()
    assert function.runs == 5


def test_too_little_memory_for_the_recorded_steps() -> None:
    made: list[Any] = []

    def run(x: Tensor) -> Tensor:
        assert not any(each() is not None for each in made)  # or this would lack the same memory
        return x + 1

    function, x = Counted(run), torch.randn(3)
    for _ in range(4):
        function(x)
    (kind,) = function.call.kinds.values()

    def fails(*arguments: Any) -> Any:
        large = torch.randn(9)
        made.append(weakref.ref(large))
        raise torch.OutOfMemoryError

    kind.steps = fails
    assert torch.equal(function(x), x + 1)
    assert function.runs == 4
    assert len(made) == 1
    assert not function.call.kinds


def test_an_error_is_passed_on_and_nothing_is_kept() -> None:
    broken = [False]

    def run(x: Tensor) -> Tensor:
        if broken[0]:
            raise ValueError("no")
        return x + 1

    function, x = Counted(run), torch.randn(3)
    function(x)
    broken[0] = True
    with pytest.raises(ValueError, match="no"):
        function(x)
    assert replay.current.recorder is None
    broken[0] = False
    for _ in range(4):
        assert torch.equal(function(x), x + 1)


def test_only_so_many_kinds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MOST", 3)
    function = Counted(lambda x: x + 1)
    for size in range(1, 9):
        function(torch.zeros(size))
        assert len(function.call.kinds) <= 3

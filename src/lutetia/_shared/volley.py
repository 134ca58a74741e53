"""Several launches as one call: a list of numbers says what to launch, and a compiled loop goes through it.

A launch from Python takes four to eight microseconds, most of them around the driver's own two. A `Volley` asks the driver in a
row. Memory that nobody but its launches needs is one allocation, in which what is needed at different times may share a place.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia._shared import driver
from lutetia._shared.compiled import data_of, ir, numba
from lutetia._shared.loops import entry, extending
from lutetia._shared.steps import MOST_PARAMETERS, Parameter, Shot, Zeros

LAUNCH, CLEAR = 0, 1  # how an item of the list begins
HEAD = 8  # numbers of a launch before its parameters: LAUNCH, how many there are, function, grid (3), threads, shared
CONSTANT = -1  # in the place of an address, where a parameter is a number
ERROR = 0xFFFFFFFF
LINE = 512  # bytes to which memory is aligned, as torch's allocator does
INT, SHORT, BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)
POINTER = BYTE.as_pointer()
LAUNCH_KERNEL = ir.FunctionType(SHORT, [POINTER, *[SHORT] * 7, POINTER, POINTER, POINTER])
MEMSET = ir.FunctionType(SHORT, [INT, BYTE, INT, POINTER])


class Room(NamedTuple):
    """Memory that is needed from one item of a volley to another, both included."""

    n_bytes: int
    first: int
    last: int


def share(rooms: dict[str, Room]) -> tuple[dict[str, int], int]:
    """Where each room begins in one allocation, and how large that is: no two that are needed at the same time overlap."""
    places: dict[str, int] = {}
    for name, room in sorted(rooms.items(), key=lambda each: (-each[1].n_bytes, each[1].first, each[0])):
        beside = [other for other in places if rooms[other].first <= room.last and room.first <= rooms[other].last]
        begin = 0
        for other in sorted(beside, key=places.__getitem__):
            if begin + _lines(room.n_bytes) <= places[other]:
                break
            begin = max(begin, places[other] + _lines(rooms[other].n_bytes))
        places[name] = begin
    return places, max((places[name] + _lines(rooms[name].n_bytes) for name in places), default=0)


def _lines(n_bytes: int) -> int:
    return (n_bytes + LINE - 1) // LINE * LINE


class Volley:
    """Launches and zeros, in their order. `places`: where each name begins, by the number of an address and bytes after it."""

    def __init__(self, items: list[Shot | Zeros], places: dict[str, tuple[int, int]]) -> None:
        numbers: list[int] = []
        for item in items:
            if isinstance(item, Shot):
                if 0 in item.grid:  # nothing to do, which the driver would call an error
                    continue
                numbers += LAUNCH, len(item.given), item.function, *item.grid, item.threads, item.shared
                for each in item.given:
                    if isinstance(each, Parameter):
                        base, begin = places[each.name]
                        numbers += base, begin + each.n_bytes
                    else:
                        numbers += CONSTANT, each
            elif item.n_bytes:
                numbers += CLEAR, *places[item.name], item.n_bytes
        self.numbers = np.array([number & 0xFFFFFFFFFFFFFFFF for number in numbers], np.uint64).view(np.int64)

    def __call__(self, *addresses: int) -> None:
        """Launch everything on the current stream."""
        stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
        rest = (np.array(addresses, np.int64), stream, driver.address_of("cuLaunchKernel"), driver.address_of("cuMemsetD8Async"))
        failed = fire(self.numbers, 0, *rest)
        if failed:
            driver.recover(failed & ERROR, "launching kernels")
            driver.check(fire(self.numbers, failed >> 32, *rest) & ERROR, "launching kernels")


# ---- the loop --------------------------------------------------------------------------------------------------------


@extending.intrinsic
def launch_kernel(typing: Any, launch: Any, numbers: Any, at: Any, stream: Any, pointers: Any) -> Any:
    """The driver's function at the address `launch`, of the item that begins at numbers[at]; its result."""
    int64 = numba.types.int64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, array, place, on, given = args
        data = data_of(context, builder, signature.args[1], array)

        def number(k: int) -> Any:
            return builder.load(builder.gep(data, [builder.add(place, INT(k))]))

        sizes = [builder.trunc(number(k), SHORT) for k in (3, 4, 5, 6)]  # the grid, and threads along one of three axes
        shape = [*sizes, SHORT(1), SHORT(1), builder.trunc(number(7), SHORT)]
        called = builder.inttoptr(address, LAUNCH_KERNEL.as_pointer())
        pointed = [builder.inttoptr(each, POINTER) for each in (number(2), on, given)]
        result = builder.call(called, [pointed[0], *shape, pointed[1], pointed[2], POINTER(None)])
        return builder.zext(result, INT)

    return int64(int64, numbers, int64, int64, int64), generate


@extending.intrinsic
def set_zero(typing: Any, memset: Any, address: Any, n_bytes: Any, stream: Any) -> Any:
    """The driver's function at the address `memset`, for so many bytes; its result."""
    int64 = numba.types.int64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        called = builder.inttoptr(args[0], MEMSET.as_pointer())
        return builder.zext(builder.call(called, [args[1], BYTE(0), args[2], builder.inttoptr(args[3], POINTER)]), INT)

    return int64(int64, int64, int64, int64), generate


@entry
def fire(numbers, begin, bases, stream, launch, memset):
    """Go through a list from `begin` on; 0, or the driver's error and, 32 bits higher, the item at which it stopped.

    numbers [n]: items as `Volley` writes them; bases [m]: addresses; stream, launch, memset: the driver's.
    """
    values, pointers = np.empty(MOST_PARAMETERS, np.int64), np.empty(MOST_PARAMETERS, np.int64)
    for k in range(MOST_PARAMETERS):
        pointers[k] = values.ctypes.data + 8 * k
    at = begin
    while at < len(numbers):
        if numbers[at] == CLEAR:
            failed = set_zero(memset, bases[numbers[at + 1]] + numbers[at + 2], numbers[at + 3], stream)
            following = at + 4
        else:
            n = numbers[at + 1]
            for k in range(n):
                base, number = numbers[at + HEAD + 2 * k], numbers[at + HEAD + 2 * k + 1]
                values[k] = number if base == CONSTANT else bases[base] + number
            failed = launch_kernel(launch, numbers, at, stream, pointers.ctypes.data)
            following = at + HEAD + 2 * n
        if failed != 0:
            return failed | (at << 32)
        at = following
    return 0

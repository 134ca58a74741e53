"""Domains: which integers a channel may carry, and how bits encode them.

A domain is a run of integers `low, low + step, .., high` and a number of bits. Its *codes* are what a wire carries:

    step 1    the value in two's complement (signed) or plain binary (unsigned): -1 in `Int(2)` is 0b11
    step 2    the place in the run: `PlusMinus` has code 0 for -1 and code 1 for +1

Domains are enumerated in the order of their codes: 0, 1, -2, -1 for `Int(2)`; 0, 1, -1 for `Ternary`. Several channels together
are enumerated like numbers of mixed radix, written from left to right: the first channel is the most significant digit and the
last one runs fastest. Where every domain uses all its codes, the number of a row is therefore the concatenation of the codes, the
first channel in the most significant bits.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_range, check_tensor, fail

MAX_CHANNELS = 2**24
MAX_BITS = 53  # integers up to here are exact in float64, which PyTorch computes in


NUMBERS = (
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
)


def check_whole(name: str, value: object, low: int | None = None, high: int | None = None) -> None:
    """Check a whole number, of Python or numpy."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        fail(name, value, "a whole number")
    check_range(name, value, low, high)


@dataclass(frozen=True)
class Domain:
    """Integers from `low` to `high` in steps of `step`, carried by `bits` wires. Make one with `Binary()`, `UInt(4)`, ..."""

    bits: int
    signed: bool
    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or not 1 <= self.bits <= MAX_BITS:
            fail("bits", self.bits, f"an integer from 1 to {MAX_BITS}")
        if not isinstance(self.signed, bool):
            fail("signed", self.signed, "True or False")
        for name in ("low", "high", "step"):
            check_whole(name, getattr(self, name))
        if self.step < 1 or (self.high - self.low) % self.step:
            fail("step", self.step, "a number of at least 1 that divides the range")
        first, last = _limits(self.bits, self.signed) if self.step == 1 else (self.low, self.low + self.step * (2**self.bits - 1))
        if not first <= self.low <= self.high <= last:
            fail("the range of a domain", (self.low, self.high), f"a range within {first} to {last}, what {self.bits} bits hold")

    @property
    def radix(self) -> int:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    @property
    def is_full(self) -> bool:
        """Whether every code has a value."""
        return self.radix == 2**self.bits

    def encode(self, values: Tensor) -> Tensor:
        """Values of the domain -> their codes: int64, any shape."""
        values = values.to(torch.int64)
        if self.step != 1:
            return (values - self.low) // self.step
        return values & (2**self.bits - 1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes -> values: int64, any shape. A code without a value gives the number that its bits read as."""
        codes = codes.to(torch.int64)
        if self.step != 1:
            return codes * self.step + self.low
        if not self.signed:
            return codes
        half = 2 ** (self.bits - 1)
        return (codes ^ half) - half

    def values(self) -> Tensor:
        """All values in the order of their codes: int64 [radix]."""
        if self.step != 1:
            return torch.arange(self.low, self.high + 1, self.step)
        run = torch.arange(self.low, self.high + 1)
        return torch.cat([run[run >= 0], run[run < 0]])

    def holds(self, values: Tensor) -> Tensor:
        """Which of the values belong to the domain: bool, any shape."""
        values = values.long() if values.dtype == torch.bool else values
        return (values >= self.low) & (values <= self.high) & ((values - self.low) % self.step == 0)

    def within(self, low: int, high: int) -> Domain:
        """The same wires with a narrower range: the codes outside will not occur."""
        return Domain(self.bits, self.signed, low, high, self.step)

    def check(self, name: str, values: Tensor) -> None:
        """Refuse values outside the domain: integers of any shape."""
        check_tensor(name, values, dtype=NUMBERS)
        wrong = ~self.holds(values)
        if wrong.any():
            raise ArgumentError(f"{name} holds {values[wrong][0].item():g}, expected values of {self}")

    def __str__(self) -> str:
        if self.step != 1:
            return "PlusMinus" if (self.low, self.high) == (-1, 1) else f"{self.low}, {self.low + self.step} .. {self.high}"
        if (self.bits, self.signed, self.low, self.high) == (2, True, -1, 1):
            return "Ternary"
        name = f"{'Int' if self.signed else 'UInt'}({self.bits})" if self.bits > 1 or self.signed else "Binary"
        full = _limits(self.bits, self.signed)
        return name if (self.low, self.high) == full else f"{name} from {self.low} to {self.high}"


DomainLike: TypeAlias = Domain | Callable[[], Domain]


def Binary() -> Domain:
    """0 and 1, one bit."""
    return Domain(1, False, 0, 1)


def PlusMinus() -> Domain:
    """-1 and +1, one bit: code 0 is -1, code 1 is +1."""
    return Domain(1, False, -1, 1, 2)


def Ternary() -> Domain:
    """-1, 0 and 1 in two bits of two's complement; the code 0b10 does not occur."""
    return Domain(2, True, -1, 1)


def Int(bits: int, signed: bool = True) -> Domain:
    """All integers of this many bits: two's complement, or plain binary when not signed."""
    if not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= MAX_BITS:
        fail("bits", bits, f"an integer from 1 to {MAX_BITS}")
    return Domain(bits, bool(signed), *_limits(bits, signed))


def UInt(bits: int) -> Domain:
    """0 to 2**bits - 1."""
    return Int(bits, signed=False)


def _limits(bits: int, signed: bool) -> tuple[int, int]:
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def domain_for(low: int, high: int) -> Domain:
    """The narrowest two's complement (or, without negative numbers, plain binary) that holds low to high, with that range."""
    signed = low < 0
    bits = max((-low - 1).bit_length() if low < 0 else 0, high.bit_length() if high > 0 else 0) + signed
    if bits > MAX_BITS:
        raise ArgumentError(f"the range {low} to {high} needs {bits} bits, expected at most {MAX_BITS}: quantise more coarsely")
    return Domain(max(bits, 1), signed, low, high)


def infer_domain(values: Tensor) -> Domain:
    """The domain of the fewest values that holds all of these: integers of any shape."""
    if not values.numel():
        return Binary()
    candidates = [Binary(), PlusMinus(), Int(1), Ternary()]
    candidates += [make for bits in range(2, MAX_BITS + 1) for make in (UInt(bits), Int(bits))]
    for domain in candidates:
        if bool(domain.holds(values).all()):
            return domain
    raise ArgumentError(f"the values reach from {values.min()} to {values.max()}, expected at most {MAX_BITS} bits")


def as_domain(name: str, value: object) -> Domain:
    """A domain, also when `Binary` was written for `Binary()`."""
    if value in (Binary, PlusMinus, Ternary):
        return value()
    if not isinstance(value, Domain):
        fail(name, value, "a domain such as Binary(), PlusMinus(), Ternary(), Int(4) or UInt(4)")
    return value


def as_domains(name: str, value: object, n_channels: int | None) -> tuple[Domain, ...]:
    """One domain per channel: from one domain for all (their number must be known) or a sequence."""
    if n_channels is not None:
        check_whole("the number of channels", n_channels, 0, MAX_CHANNELS)
    if isinstance(value, Sequence) and not isinstance(value, str):
        domains = tuple(as_domain(f"{name}[{place}]", each) for place, each in enumerate(value))
        if n_channels is not None and len(domains) != n_channels:
            raise ArgumentError(f"{name} has {len(domains)} domains, expected {n_channels}, one per channel")
        return domains
    domain = as_domain(name, value)
    if n_channels is None:
        raise ArgumentError(f"{name} is one domain, {domain}, expected one per input where the number of inputs is not known")
    return (domain,) * n_channels


def n_rows(domains: Sequence[Domain]) -> int:
    """How many rows an enumeration has."""
    return math.prod(domain.radix for domain in domains)


def enumerate_rows(domains: Sequence[Domain], begin: int = 0, end: int | None = None, dtype: torch.dtype = torch.int64) -> Tensor:
    """Rows begin to end of the enumeration of all channels together: values [end - begin, n_channels]."""
    domains = as_domains("domains", domains, None)
    end = n_rows(domains) if end is None else end
    check_whole("begin", begin, 0)
    check_whole("end", end, int(begin), n_rows(domains))
    if dtype not in NUMBERS:
        fail("dtype", dtype, "the dtype of integers or floats")
    return rows_at(domains, torch.arange(begin, end), dtype)


def rows_at(domains: Sequence[Domain], number: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
    """Rows of the enumeration by their places: int64 [n] -> values [n, n_channels]."""
    count, columns = len(number), []
    for domain in reversed(domains):
        columns.append(domain.values().to(dtype)[number % domain.radix])
        number = number // domain.radix
    return torch.stack(columns[::-1], 1) if columns else torch.zeros(count, 0, dtype=dtype)


def row_numbers(domains: Sequence[Domain], rows: Tensor) -> Tensor:
    """The place of each row in the enumeration: values of the domains [..., n_channels] -> int64 [...]."""
    number = torch.zeros(rows.shape[:-1], dtype=torch.int64)
    for channel, domain in enumerate(domains):
        value = rows[..., channel].to(torch.int64)
        if domain.step == 1:
            negative = max(-domain.low, 0)  # how many values below zero: they come last
            place = torch.where(value >= 0, value - max(domain.low, 0), domain.radix - negative + value - domain.low)
            place = place if domain.high >= 0 else value - domain.low
        else:
            place = (value - domain.low) // domain.step
        number = number * domain.radix + place
    return number


def pack(domains: Sequence[Domain], rows: Tensor) -> Tensor:
    """Concatenate the codes, the first channel in the most significant bits: values [..., n_channels] -> int64 [...]."""
    domains = as_domains("domains", domains, None)
    check_tensor("rows", rows, ["...", len(domains)], NUMBERS)
    word = torch.zeros(rows.shape[:-1], dtype=torch.int64)
    for channel, domain in enumerate(domains):
        word = (word << domain.bits) | domain.encode(rows[..., channel])
    return word


def unpack(domains: Sequence[Domain], words: Tensor) -> Tensor:
    """The inverse of `pack`: int64 [...] -> values [..., n_channels]."""
    columns = []
    for domain in reversed(domains):
        columns.append(domain.decode(words & (2**domain.bits - 1)))
        words = words >> domain.bits
    return torch.stack(columns[::-1], -1) if columns else words.new_zeros((*words.shape, 0))

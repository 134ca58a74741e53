"""Readings: how a column of numbers reaches a circuit, as a whole number of some bits with a step and a zero of its own.

    value = zero + step · number        temp=-40+0.0625*u12: -40 to 215.9375 in steps of 1/16, from a converter of 12 bits

A circuit compares the numbers. It is the model on every value that a reading has: a threshold of the model becomes the greatest
number whose value, as the nearest float64, is not above it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.errors import ArgumentError, did_you_mean, fail

if TYPE_CHECKING:
    from lutetia.precompute import Domain

Array = np.ndarray[Any, Any]
MOST_BITS = 32
EXACT_BITS = 24  # of a column that is found as fine as its decimals
ROUNDED_BITS = 16  # of one whose decimals would take more
FINEST = 2**50  # steps up to the largest value: more, and neighbours would be the same float64
AUTO = "auto"  # in place of a reading: those that the data asks for
DECIMAL = r"(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][-+]?\d{1,2})?"
NUMBER = rf"{DECIMAL}(?:\s*/\s*{DECIMAL})?"
FORMULA = re.compile(
    rf"\s*(?:(?P<zero>-?\s*{NUMBER})\s*\+\s*)?(?:(?P<step>{NUMBER})\s*\*\s*)?(?P<kind>[us])(?P<bits>\d{{1,2}})\s*"
)
EXPECTED = "ZERO+STEP*uBITS such as -40+0.0625*u12, 3.3/4096*u12 or s16: u is unsigned, s signed"


@dataclass(frozen=True)
class Reading:
    """Whole numbers of `bits` bits that stand for zero + step · number; `text` is how that is written."""

    bits: int
    signed: bool = False
    step: Fraction = Fraction(1)
    zero: Fraction = Fraction(0)
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not (1 + self.signed <= self.bits <= MOST_BITS):
            raise ArgumentError(f"a reading has {self.bits} bits, expected {1 + self.signed} to {MOST_BITS}")
        if self.step <= 0:
            raise ArgumentError("the step of a reading is 0, expected more")
        if (largest := max(map(abs, self.ends))) > FINEST * self.step:
            raise ArgumentError(f"steps of {float(self.step):g} are too fine for values up to {float(largest):g}")
        if not self.text:
            zero = f"{_decimal(self.zero)}+" if self.zero else ""
            step = f"{_decimal(self.step)}*" if self.step != 1 else ""
            object.__setattr__(self, "text", f"{zero}{step}{'s' if self.signed else 'u'}{self.bits}")

    @property
    def domain(self) -> Domain:
        """The numbers that there are."""
        from lutetia.precompute import Int

        return Int(self.bits, self.signed)

    @property
    def ends(self) -> tuple[Fraction, Fraction]:
        """The smallest and the largest value."""
        low, high = (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1) if self.signed else (0, 2**self.bits - 1)
        return self.zero + self.step * low, self.zero + self.step * high

    def numbers(self, values: Array) -> Array:
        """Values float64 [n] -> the nearest numbers int64 [n], the ends for what is beyond them, 0 for what is missing."""
        domain = self.domain
        places = np.rint((np.nan_to_num(values, nan=float(self.zero)) - float(self.zero)) / float(self.step))
        return np.clip(places, domain.low, domain.high).astype(np.int64)

    def last(self, edge: float) -> int:
        """The greatest number whose value is not above an edge; one less than the least where all are above it."""
        low, high = self.domain.low - 1, self.domain.high
        while low < high:
            middle = (low + high + 1) // 2
            if float(self.zero + self.step * middle) <= edge:
                low = middle
            else:
                high = middle - 1
        return low


def parse_reading(text: str) -> Reading:
    """A reading as people write it: -40+0.0625*u12."""
    match = FORMULA.fullmatch(text)
    if match is None:
        raise ArgumentError(f"{text[:60]!r} is no reading, expected {EXPECTED}")
    try:
        zero, step = (_fraction(match[part]) if match[part] else whole for part, whole in (("zero", 0), ("step", 1)))
        return Reading(int(match["bits"]), match["kind"] == "s", Fraction(step), Fraction(zero), re.sub(r"\s", "", text))
    except (ArgumentError, ZeroDivisionError) as error:
        told = "it divides by 0" if isinstance(error, ZeroDivisionError) else error
        raise ArgumentError(f"{text[:60]!r}: {told}") from error


def parse_readings(texts: Sequence[str]) -> dict[str, Reading]:
    """Readings by the names of their columns, NAME=READING each; one without a name is for all others, and has the name ""."""
    known: dict[str, Reading] = {}
    for text in texts:
        name, _, formula = text.rpartition("=")
        if text.strip() == AUTO:
            continue
        if name in known:
            raise ArgumentError(f"{f'column {name!r}' if name else 'every column'} is given two readings, expected one")
        known[name] = parse_reading(formula)
    return known


def as_readings(readings: str | Mapping[str, str] | None) -> dict[str, Reading]:
    """Readings by the names of columns, from texts by these names, or from one text for all columns."""
    if readings is None or isinstance(readings, str):
        return parse_readings([AUTO if readings is None else readings])
    if not isinstance(readings, Mapping) or not all(isinstance(each, str) for pair in readings.items() for each in pair):
        fail("readings", readings, f"{AUTO!r}, a reading, {EXPECTED}, or a dict of these by the names of columns")
    return {name: parse_reading(text) for name, text in readings.items()}


def find_readings(
    names: Sequence[str], metadata: Mapping[str, Any], bits: int | None, given: Mapping[str, Reading]
) -> list[Reading | None]:
    """The reading of each column of a model; None for categories. Those that are not given are as fine as the decimals of the
    data if `bits`, or by default 24, hold them; else they have the finest step of 1, 2 or 5 times a power of ten that fits."""
    low, high = (metadata.get(key) for key in ("input_low", "input_high"))
    if low is None or high is None:
        raise ArgumentError("the model does not say what its columns range over, expected one of lutetia train or an estimator")
    categories = metadata.get("categories", {})
    for name in filter(None, given):
        if name not in names:
            raise ArgumentError(f"there is no column {name!r}: {did_you_mean(name, names)}")
        if str(names.index(name)) in categories:
            raise ArgumentError(f"column {name!r} holds categories, which a circuit takes by their numbers: give it no reading")
    found: list[Reading | None] = []
    for column, name in enumerate(names):
        span = float(low[column]), float(high[column])
        if str(column) in metadata.get("dates", {}):
            raise ArgumentError(
                f"column {name!r} holds dates, which a circuit does not take: train on numbers instead, such as the days or the "
                "seconds since a start"
            )
        own = given.get(name, given.get(""))
        if str(column) in categories:
            found.append(None)
        elif own is not None:
            found.append(_checked(own, name, span))
        elif "decimals" not in metadata:
            raise ArgumentError(f"the model does not say how fine column {name!r} is: train it again, or give its reading")
        else:
            found.append(_found(name, span, metadata["decimals"].get(str(column)), bits))
    return found


def _checked(reading: Reading, name: str, span: tuple[float, float]) -> Reading:
    """A reading that tells the values of a column apart, at least the smallest from the largest."""
    low, high = reading.numbers(np.array(span))
    if low == high and span[0] < span[1]:
        ends = " to ".join(f"{float(each):.6g}" for each in reading.ends)
        raise ArgumentError(
            f"column {name!r} goes from {span[0]:.6g} to {span[1]:.6g}, and its reading {reading.text} has one number for all of "
            f"that (it goes from {ends} in steps of {float(reading.step):.6g})"
        )
    return reading


def _found(name: str, span: tuple[float, float], decimals: int | None, bits: int | None) -> Reading:
    """The reading of a column that goes from one number to another in so many decimals, None for more than float64 shows."""
    signed = span[0] < 0
    if decimals is not None:
        exact = Fraction(1, 10**decimals)
        needed, most = _needed(span, exact), max(bits or (EXACT_BITS if decimals else MOST_BITS), 1 + signed)
        if needed <= most:
            return Reading(max(needed, 1 + signed) if bits is None else most, signed, exact)
        if not decimals:
            domain = Reading(most, signed).domain
            raise ArgumentError(
                f"column {name!r} goes from {span[0]:.6g} to {span[1]:.6g}, expected at most {domain.low} to {domain.high}, what "
                f"{most} bits hold: this column needs {needed}, or a coarser reading such as {name}="
                f"{_rounded(span, exact, most).text}"
            )
    size = max(map(abs, span))
    finest = Fraction(10) ** (math.floor(math.log10(size)) - 12) if size else Fraction(1)
    return _rounded(span, finest if decimals is None else exact, bits or ROUNDED_BITS)


def _needed(span: tuple[float, float], step: Fraction) -> int:
    """The bits of numbers that reach from one value to another."""
    low, high = (round(Fraction(end) / step) for end in span)
    return max(1, high.bit_length()) if low >= 0 else 1 + max(max(high, 0).bit_length(), (-low - 1).bit_length())


def _rounded(span: tuple[float, float], finest: Fraction, bits: int) -> Reading:
    """The reading of the finest step, `finest` times 1, 2 or 5 and a power of ten, of which so many bits reach from one value to
    another; around 0, or else from a round number below the least value on."""
    signed = span[0] < 0
    while True:
        for step in (finest, 2 * finest, 5 * finest):
            if max(_needed(span, step), 1 + signed) <= bits:
                return Reading(bits, signed, step)
            for power in range(bits // 3, -1, -1):  # round numbers first
                zero = step * 10**power * math.floor(Fraction(span[0]) / step / 10**power)
                if round((Fraction(span[1]) - zero) / step).bit_length() <= bits:
                    return Reading(bits, False, step, zero)
        finest *= 10


def _fraction(text: str) -> Fraction:
    """2.5, 1e-3 or 3.3/4096, exactly."""
    above, _, below = re.sub(r"\s", "", text).partition("/")
    return Fraction(above) / Fraction(below or 1)


def _decimal(value: Fraction) -> str:
    """A number of few digits exactly, any other as a fraction."""
    text = f"{float(value):.12g}"
    return text if Fraction(text) == value else f"{value.numerator}/{value.denominator}"

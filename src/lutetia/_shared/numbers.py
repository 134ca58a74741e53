"""Whole numbers: helpers for launches, and parsing them from text; and numbers as readers like them."""

from __future__ import annotations

MOST_DIGITS = 18  # more may not fit 64 bits, and Python raises an error of its own for thousands


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. (Triton's own is for kernels too and takes 5 µs a call.)"""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not less than n."""
    return 1 << max(n - 1, 0).bit_length()


def whole_number(text: str) -> int | None:
    """The number written in digits, with an optional minus; None for any other text, and for a number that is too long."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS else None


def short_number(value: float, digits: int = 4, sign: bool = False) -> str:
    """A number of this many digits; large ones are written out, 29,150 and not 2.915e+04."""
    plus = "+" if sign else ""
    if 10**digits <= abs(value) < 1e15:
        return f"{float(f'{value:.{digits}g}'):{plus},.0f}"
    return f"{value:{plus}.{digits}g}"


def with_unit(value: float, unit: str | None) -> str:
    """A number of six digits, and its unit where that is known."""
    return short_number(value, 6) if unit is None else f"{short_number(value, 6)} {unit}"

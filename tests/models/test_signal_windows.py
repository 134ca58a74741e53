"""What is made of windows of signals, against plain Python; and what a file may say of them."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lutetia.errors import ArgumentError
from lutetia.models.windows import SignalColumn, SignalWindows, check_signal_windows, signal_features


def slow(x: list[int], title: str) -> Fraction:
    """A feature of one window by its name, from its words."""
    n = len(x)
    mean = math.floor(Fraction(sum(x), n))
    above = [value > mean for value in x]
    match title.split():
        case ["mean"]:
            return Fraction(sum(x), n)
        case ["minimum"]:
            return Fraction(min(x))
        case ["maximum"]:
            return Fraction(max(x))
        case ["range"]:
            return Fraction(max(x) - min(x))
        case ["deviation"]:
            return Fraction(sum(abs(value - mean) for value in x), n)
        case ["crossings"]:
            return Fraction(sum(above[t] != above[t - 1] for t in range(1, n)))
        case ["change", "over", k, _]:
            return Fraction(sum(abs(x[t] - x[t - int(k)]) for t in range(int(k), n)), n - int(k))
        case ["agreement", "after", k, _]:
            return Fraction(sum(above[t] == above[t - int(k)] for t in range(int(k), n)), n - int(k))
        case ["place", "of", "the", end]:
            return Fraction(x.index({"maximum": max, "minimum": min}[end](x)))
        case ["mean", "of", "part", p]:
            part = x[(int(p) - 1) * n // 8 : int(p) * n // 8]
            return Fraction(sum(part), len(part))
        case ["part", p, "above", "the", "mean"]:
            part = x[(int(p) - 1) * n // 8 : int(p) * n // 8]
            return Fraction(sum(part) - mean * len(part), len(part))
        case [what, "in", "quarter", p]:
            part = x[(int(p) - 1) * n // 4 : int(p) * n // 4]
            steps = [abs(b - a) for a, b in pairwise(part)]
            return Fraction(sum(steps), len(steps)) if what == "change" else Fraction(max(part) - min(part))
    raise AssertionError(title)


@pytest.mark.parametrize(("length", "bits"), [(8, 16), (13, 32), (100, 16), (131, 32)])
def test_features_are_what_their_names_say(length: int, bits: int) -> None:
    random = np.random.default_rng(length)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    windows = SignalWindows(length, 3, (SignalColumn("a", 2), SignalColumn("b")), bits)
    samples = np.stack([random.integers(-50, 50, 3 * length), random.integers(low, high + 1, 3 * length)], 1)
    samples[length : 2 * length] = low, 7  # constant
    samples[2 * length :] = np.where(random.random((length, 2)) < 0.5, low, high)
    starts = np.array([0, 1, length, 2 * length])
    found = windows.inputs(samples, starts)
    assert windows.titles == [f"{name}: {each.title}" for name in "ab" for each in signal_features(length)]
    for row, start in zip(found, starts.tolist(), strict=True):
        own = samples[start : start + length]
        wanted = []
        for at in range(2):
            for each in signal_features(length):
                scale = 100 if at == 0 and each.has_unit else 1
                wanted.append(float(slow(own[:, at].tolist(), each.title) / scale))
        np.testing.assert_array_equal(row, wanted)  # rounded once, as a fraction is


def test_samples_are_the_nearest_whole_numbers_within_their_bits() -> None:
    windows = SignalWindows(8, 4, (SignalColumn("a", 1), SignalColumn("b")), 16)
    given = np.array([[0.26, 2.5], [-0.26, 3.5], [4000.0, -1e300], [-4000.0, 40_000.0]])
    assert windows.samples(given).tolist() == [[3, 2], [-3, 4], [32767, -32768], [-32768, 32767]]


KNOWN = {"length": 8, "step": 4, "bits": 16, "signals": [{"name": "a", "decimals": 0}], "series": "trial"}
TITLES = SignalWindows(8, 4, (SignalColumn("a"),)).titles


def test_metadata_of_windows_that_fits() -> None:
    check_signal_windows(KNOWN, TITLES, len(TITLES))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("length", 7), ("length", 1 << 15), ("length", True), ("length", 9.0), ("length", None), ("length", 200), ("step", 0),
        ("bits", 8), ("bits", 16.0), ("series", ""), ("series", 3), ("series", "a"), ("signals", []), ("signals", "a"),
        ("signals", [{"name": "a"}]), ("signals", [{"name": " ", "decimals": 0}]), ("signals", [{"name": "a", "decimals": 19}]),
        ("signals", [{"name": "a", "decimals": 0}] * 2), ("signals", [{"name": "b", "decimals": 0}]), ("more", 1),
    ],
)  # fmt: skip
def test_metadata_of_windows_that_is_refused(key: str, value: Any) -> None:
    known = copy.deepcopy(KNOWN)
    known[key] = value
    with pytest.raises(ArgumentError, match=r"metadata\.windows"):
        check_signal_windows(known, TITLES, len(TITLES))

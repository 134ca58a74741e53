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
from lutetia.models.signal_shapes import KERNELS, SignalShape, most_apart, shape_counts
from lutetia.models.windows import SignalColumn, SignalWindows, check_signal_windows, signal_features, signal_windows


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


def some_shapes(length: int, bits: int, n: int = 30) -> tuple[SignalShape, ...]:
    """Shapes of two signals, some of them at the ends of what a file may say."""
    random, most = np.random.default_rng(length), 12 << bits - 1
    drawn = {
        SignalShape(*map(int, (random.integers(2), random.integers(84), random.integers(1, most_apart(length) + 1), above)))
        for above in random.integers(-500, 500, n)
    }
    return (*drawn, SignalShape(0, 83, most_apart(length), most), SignalShape(1, 0, 1, -most))


@pytest.mark.parametrize(("length", "bits"), [(9, 16), (13, 32), (100, 16), (131, 32)])
def test_shapes_are_counted_as_their_words_say(length: int, bits: int) -> None:
    random, shapes = np.random.default_rng(length), some_shapes(length, bits)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    windows = SignalWindows(length, 3, (SignalColumn("a", 2), SignalColumn("b")), bits, None, shapes)
    samples = np.stack([random.integers(-50, 50, 3 * length), random.integers(low, high + 1, 3 * length)], 1)
    samples[length : 2 * length] = low, 7
    starts = np.array([2 * length, 0, 1, length])
    found = windows.inputs(samples, starts)[:, -len(shapes) :]
    plain = SignalWindows(length, 3, windows.signals, bits).inputs(samples, starts)
    np.testing.assert_array_equal(windows.inputs(samples, starts)[:, : -len(shapes)], plain)
    for row, start in zip(found.tolist(), starts.tolist(), strict=True):
        for value, (signal, kernel, apart, above) in zip(row, shapes, strict=True):
            x, raised = samples[start : start + length, signal].tolist(), KERNELS[kernel]
            places = range(length - 8 * apart)
            sums = [sum((2 if j in raised else -1) * x[t + j * apart] for j in range(9)) for t in places]
            assert value == sum(each > above for each in sums) / len(places)


def test_titles_of_shapes_show_them_and_differ() -> None:
    assert SignalShape(0, KERNELS.index((1, 4, 7)), 2, 211).title(2) == "share of ▁▇▁▁▇▁▁▇▁ over 17 samples by 0.352"
    assert SignalShape(0, 0, 1, -1).title(0) == "share of ▇▇▇▁▁▁▁▁▁ over 9 samples by -0.2"
    for decimals in (0, 1, 6):
        every = [SignalShape(0, 0, 1, above).title(decimals) for above in range(-400, 400)]
        assert len(set(every)) == len(every)


@pytest.mark.parametrize("shape", [(2, 0, 1, 0), (-1, 0, 1, 0), (0, 84, 1, 0), (0, -1, 1, 0), (0, 0, 2, 0), (0, 0, 0, 0)])
def test_shapes_that_reach_beyond_a_window_reach_no_loop(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="shapes is"):
        shape_counts(np.zeros((20, 2), np.int64), np.array([0, 4]), [SignalShape(0, 0, 1, 0), SignalShape(*shape)], 16)
    with pytest.raises(ArgumentError, match="starts is"):
        shape_counts(np.zeros((20, 2), np.int64), np.array([0, 5]), [SignalShape(0, 0, 1, 0)], 16)


def test_samples_are_the_nearest_whole_numbers_within_their_bits() -> None:
    windows = SignalWindows(8, 4, (SignalColumn("a", 1), SignalColumn("b")), 16)
    given = np.array([[0.26, 2.5], [-0.26, 3.5], [4000.0, -1e300], [-4000.0, 40_000.0]])
    assert windows.samples(given).tolist() == [[3, 2], [-3, 4], [32767, -32768], [-32768, 32767]]


KNOWN = {"length": 8, "step": 4, "bits": 16, "signals": [{"name": "a", "decimals": 0}], "series": "trial"}
TITLES = SignalWindows(8, 4, (SignalColumn("a"),)).titles


def test_metadata_of_windows_that_fits() -> None:
    check_signal_windows(KNOWN, TITLES, len(TITLES))


def test_metadata_of_shapes_goes_there_and_back() -> None:
    windows = SignalWindows(20, 4, (SignalColumn("a"), SignalColumn("b")), 16, None, some_shapes(20, 16))
    check_signal_windows(windows.to_dict(), windows.titles, len(windows.titles))
    assert signal_windows({"windows": windows.to_dict()}) == windows
    with pytest.raises(ArgumentError, match="expected the same names"):
        check_signal_windows(windows.to_dict(), [*windows.titles[:-1], "other"], len(windows.titles))


WITH_SHAPE = SignalWindows(20, 4, (SignalColumn("a"),), 16, None, (SignalShape(0, 5, 2, 7),))


@pytest.mark.parametrize(
    "shapes",
    [[], "a", None, 3, [[0, 5, 2]], [[0, 5, 2, 7, 1]], [[1, 5, 2, 7]], [[-1, 5, 2, 7]], [[0, 84, 2, 7]], [[0, -1, 2, 7]],
     [[0, 5, 3, 7]], [[0, 5, 0, 7]], [[0, 5, 2, 12 * 2**15 + 1]], [[0, 5, 2, -12 * 2**15 - 1]], [[0, 5, 2, 7.0]],
     [[True, 5, 2, 7]], [[0, 5, 2, 7]] * 2, [[0, 5, 2, number] for number in range(1001)]],
)  # fmt: skip
def test_shapes_of_a_file_that_are_refused(shapes: Any) -> None:
    known = WITH_SHAPE.to_dict()
    check_signal_windows(known, WITH_SHAPE.titles, len(WITH_SHAPE.titles))
    with pytest.raises(ArgumentError, match=r"metadata\.windows\.shapes"):
        check_signal_windows({**known, "shapes": shapes}, WITH_SHAPE.titles, len(WITH_SHAPE.titles))


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

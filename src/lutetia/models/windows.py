"""Windows of sensor signals as numbers: what a model sees of some samples of each signal that follow each other.

A sample is a whole number, its value in units of a decimal place of its signal; all that is made of them is whole numbers, and
a name says what it is in the signal's own unit: a sum is divided by how many samples it is of. For a window x[0] to x[n - 1]:

    mean                     sum of x, over n
    minimum, maximum, range
    deviation                sum of |d|, over n, with d[t] = x[t] - floor(mean)
    crossings                how often x goes above its mean, or leaves that side: d[t] > 0 is another truth than d[t - 1] > 0
    change over k samples    sum of |x[t + k] - x[t]|, over n - k, for k = 1, 2, 4, .. to half a window, 64 at most
    agreement after k        how often d[t] > 0 and d[t + k] > 0 are one truth, over n - k, for the same k but 1
    place of the maximum     the first t that has it; and of the minimum
    mean of part p           the same of an eighth of the window, p = 1 to 8, which begins at floor((p - 1) n / 8)
    part p above the mean    the sum of d there, over its samples
    change in quarter p      sum of |x[t + 1] - x[t]| within a quarter, over its samples less one; and its range
    share of a shape         the places where it is, over all where it fits: see `lutetia.models.signal_shapes`

A model names the shapes that it counts. The rest was chosen on recordings of a watch and five small sets of series: see
docs/notes/windows.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lutetia.errors import ArgumentError, check_int, fail
from lutetia.models.signal_shapes import SignalShape, check_shapes, shape_counts

Array = np.ndarray[Any, Any]
SHORTEST, LONGEST = 8, 1 << 14  # samples of a window: an eighth has one, and sums of 16-bit samples fit 32 bits
MOST_SIGNALS, MOST_DECIMALS, LONGEST_SIGNAL = 1000, 18, 900  # columns, places, characters of a name
BITS = (16, 32)  # of a sample
EIGHTHS, QUARTERS, MOST_LAGS = 8, 4, 7
AT_ONCE = 1 << 22  # samples
KINDS = (
    "mean", "minimum", "maximum", "range", "deviation", "crossings", "change", "agreement", "place of the maximum",
    "place of the minimum", "part", "part above", "quarter change", "quarter range", "shape",
)  # fmt: skip


class Feature(NamedTuple):
    """What is made of a window of one signal: one of `KINDS`; its lag, or the number of its part or its shape from 0; what it
    is called; how many samples its sum is divided by; and whether it has the unit of the signal."""

    kind: str
    at: int
    title: str
    n_samples: int = 1
    has_unit: bool = True


@cache
def signal_features(length: int) -> tuple[Feature, ...]:
    """What is made of a window of so many samples of a signal, in the order of its inputs."""
    lags = [1 << number for number in range(MOST_LAGS) if 1 << number <= length // 2]
    eighths = [_part(length, EIGHTHS, number) for number in range(EIGHTHS)]
    quarters = [_part(length, QUARTERS, number) for number in range(QUARTERS)]
    return (
        Feature("mean", 0, "mean", length),
        *(Feature(kind, 0, kind) for kind in ("minimum", "maximum", "range")),
        Feature("deviation", 0, "deviation", length),
        Feature("crossings", 0, "crossings", 1, False),
        *(Feature("change", k, f"change over {k} sample{'s' * (k > 1)}", length - k) for k in lags),
        *(Feature("agreement", k, f"agreement after {k} samples", length - k, False) for k in lags[1:]),
        Feature("place of the maximum", 0, "place of the maximum", 1, False),
        Feature("place of the minimum", 0, "place of the minimum", 1, False),
        *(Feature("part", at, f"mean of part {at + 1}", end - begin) for at, (begin, end) in enumerate(eighths)),
        *(Feature("part above", at, f"part {at + 1} above the mean", end - begin) for at, (begin, end) in enumerate(eighths)),
        *(Feature("quarter change", at, f"change in quarter {at + 1}", end - begin - 1)
          for at, (begin, end) in enumerate(quarters)),
        *(Feature("quarter range", at, f"range in quarter {at + 1}") for at in range(QUARTERS)),
    )  # fmt: skip


def _part(length: int, count: int, number: int) -> tuple[int, int]:
    """Where one of so many parts of a window begins and ends."""
    return number * length // count, (number + 1) * length // count


def feature_sums(x: Array) -> Array:
    """Windows int64 [n, signals, length] -> what is made of each, whole numbers, int64 [n, signals, features]."""
    length = x.shape[2]
    found = np.empty((*x.shape[:2], len(signal_features(length))), np.int64)
    total, low, high = x.sum(2), x.min(2), x.max(2)
    off = x - (total // length)[..., None]
    above = off > 0
    steps = np.abs(np.diff(x))
    whole = {
        "mean": lambda: total,
        "minimum": lambda: low,
        "maximum": lambda: high,
        "range": lambda: high - low,
        "deviation": lambda: np.abs(off).sum(2),
        "crossings": lambda: (above[..., 1:] != above[..., :-1]).sum(2),
        "place of the maximum": lambda: x.argmax(2),
        "place of the minimum": lambda: x.argmin(2),
    }
    for number, (kind, at, *_) in enumerate(signal_features(length)):
        if kind in whole:
            found[..., number] = whole[kind]()
        elif kind == "change":
            found[..., number] = np.abs(x[..., at:] - x[..., :-at]).sum(2)
        elif kind == "agreement":
            found[..., number] = (above[..., at:] == above[..., :-at]).sum(2)
        else:
            begin, end = _part(length, QUARTERS if kind.startswith("quarter") else EIGHTHS, at)
            if kind == "quarter change":
                found[..., number] = steps[..., begin : end - 1].sum(2)
            elif kind == "quarter range":
                found[..., number] = x[..., begin:end].max(2) - x[..., begin:end].min(2)
            else:
                found[..., number] = (x if kind == "part" else off)[..., begin:end].sum(2)
    return found


@dataclass(frozen=True)
class SignalColumn:
    """A signal: the name of its column, and the decimal places that a sample keeps."""

    name: str
    decimals: int = 0


@dataclass(frozen=True)
class SignalWindows:
    """Windows of `length` samples of so many `bits`, of which one begins every `step`; `series` is the column that names
    recordings, where there is one: a window lies in one of them. Some `shapes` are counted."""

    length: int
    step: int
    signals: tuple[SignalColumn, ...]
    bits: int = 16
    series: str | None = None
    shapes: tuple[SignalShape, ...] = ()

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest sample; others become these."""
        return -(1 << self.bits - 1), (1 << self.bits - 1) - 1

    @property
    def features(self) -> tuple[Feature, ...]:
        """What is made of each signal, its shapes aside."""
        return signal_features(self.length)

    @property
    def columns(self) -> list[tuple[int, Feature]]:
        """The inputs: the number of a signal, and what is made of it; the shapes are the last."""
        plain = [(signal, feature) for signal in range(len(self.signals)) for feature in self.features]
        return plain + [(own.signal, self._counted(number)) for number, own in enumerate(self.shapes)]

    def _counted(self, number: int) -> Feature:
        own = self.shapes[number]
        return Feature("shape", number, own.title(self.signals[own.signal].decimals), own.places(self.length), False)

    @property
    def titles(self) -> list[str]:
        """The names of all inputs: "accel_x: range"."""
        return [f"{self.signals[signal].name}: {feature.title}" for signal, feature in self.columns]

    def divisor(self, signal: int, feature: Feature) -> float:
        """What the whole number of an input is divided by to be in the unit of its signal."""
        return float(feature.n_samples * 10 ** self.signals[signal].decimals if feature.has_unit else feature.n_samples)

    def samples(self, values: Array) -> Array:
        """Values float64 [rows, signals], all finite, as samples, int64 [rows, signals]: the nearest whole numbers."""
        scale = np.array([10.0**signal.decimals for signal in self.signals])
        with np.errstate(over="ignore"):
            return np.clip(np.rint(values * scale), *self.ends).astype(np.int64)

    def inputs(self, samples: Array, starts: Array) -> Array:
        """Samples int64 [rows, signals] -> the inputs of the windows that begin at some rows, float64 [n, inputs]."""
        columns, n_plain = self.columns, len(self.signals) * len(self.features)
        found = np.empty((len(starts), len(columns)))
        divisors = np.array([self.divisor(*column) for column in columns])
        if not len(starts):
            return found
        if self.shapes:
            found[:, n_plain:] = shape_counts(samples, starts, self.shapes, self.length) / divisors[n_plain:]
        every = sliding_window_view(samples, self.length, axis=0)  # [rows, signals, length]
        at_once = max(1, AT_ONCE // (self.length * len(self.signals)))
        for begin in range(0, len(starts), at_once):
            sums = feature_sums(np.ascontiguousarray(every[starts[begin : begin + at_once]]))
            found[begin : begin + at_once, :n_plain] = sums.reshape(len(sums), -1) / divisors[:n_plain]
        return found

    def to_dict(self) -> dict[str, Any]:
        """As metadata holds it."""
        known = {key: value for key, value in asdict(self).items() if value is not None}
        shapes = [list(own) for own in known.pop("shapes")]
        return known | ({"shapes": shapes} if shapes else {})


def signal_windows(metadata: Mapping[str, Any]) -> SignalWindows | None:
    """The windows of a model; None of one that takes rows."""
    known = metadata.get("windows")
    if known is None:
        return None
    signals = tuple(SignalColumn(**signal) for signal in known["signals"])
    shapes = tuple(SignalShape(*own) for own in known.get("shapes", ()))
    return SignalWindows(known["length"], known["step"], signals, known["bits"], known.get("series"), shapes)


def shapes_of(metadata: Mapping[str, Any]) -> tuple[SignalShape, ...]:
    """The shapes that a model counts; none of one that takes rows."""
    windows = signal_windows(metadata)
    return () if windows is None else windows.shapes


def check_signal_windows(known: object, features: Sequence[str], n_inputs: int | None) -> None:
    """Refuse what a file says of windows where it does not fit the inputs of its model, or is no such thing."""
    needed = {"length", "step", "bits", "signals"}
    if not isinstance(known, Mapping) or not needed <= set(known) <= needed | {"series", "shapes"}:
        told = "length, step, bits and signals, and where there are any the column of series, and shapes"
        fail("metadata.windows", known, told)
    check_int("metadata.windows.length", known["length"], SHORTEST, LONGEST)
    check_int("metadata.windows.step", known["step"], 1)
    if type(known["bits"]) is not int or known["bits"] not in BITS:
        fail("metadata.windows.bits", known["bits"], " or ".join(map(str, BITS)))
    series, signals = known.get("series"), known["signals"]
    if series is not None and not _is_name(series):
        fail("metadata.windows.series", series, "the name of a column")
    if not isinstance(signals, list | tuple) or not 0 < len(signals) <= MOST_SIGNALS:
        fail("metadata.windows.signals", signals, f"1 to {MOST_SIGNALS} signals")
    for signal in signals:
        if not isinstance(signal, Mapping) or set(signal) != {"name", "decimals"} or not _is_name(signal["name"]):
            fail("metadata.windows.signals", signal, "a name and decimals")
        check_int("metadata.windows.signals.decimals", signal["decimals"], 0, MOST_DECIMALS)
    names = [signal["name"] for signal in signals]
    if len(set(names)) < len(names) or series in names:
        fail("metadata.windows.signals", names, "a name of its own for each signal")
    if "shapes" in known:
        check_shapes(known["shapes"], len(names), known["length"], known["bits"])
    windows = signal_windows({"windows": known})
    assert windows is not None
    if list(features) != windows.titles or len(features) != n_inputs:
        told = f"{len(names)} signals, from which {len(windows.titles)} inputs are made, and others in metadata.features"
        raise ArgumentError(f"metadata.windows has {told}, expected the same names")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip()) and len(name) <= LONGEST_SIGNAL

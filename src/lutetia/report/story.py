"""The content of a report, as plain values: every section is optional.

Texts may come from anywhere: they are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lutetia._shared.numbers import short_number
from lutetia.flow import Flow

if TYPE_CHECKING:
    from lutetia.report.comparisons import Comparison

Facts = Mapping[str, str]  # shown in the order given


@dataclass(frozen=True)
class Curve:
    """One line of a chart: values over steps, both of the same length."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Training:
    """What was trained: its curves, and for a classifier its confusion matrix."""

    title: str
    curves: Sequence[Curve] = ()
    said: str = ""
    facts: Facts = field(default_factory=dict)
    confusion: Sequence[Sequence[int]] = ()  # [true class][predicted class]
    labels: Sequence[str] = ()  # names of the classes; their numbers by default
    unit: str = "loss"  # of the curves' values
    log: bool = True  # whether these are drawn on a logarithmic scale, where all of them are positive


@dataclass(frozen=True)
class Evaluation:
    """How good a classifier is for each class: its confusion matrix, a row per true class, and a table of them."""

    confusion: Sequence[Sequence[int]]
    labels: Sequence[str]
    classes: CellTable
    said: str = ""


@dataclass(frozen=True)
class Writing:
    """What a language model wrote after a prompt."""

    title: str
    prompt: str
    text: str
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Detector:
    """What one table did: the pairs of inputs it compared, the answers, the row they chose, and what that row contributed.

    The answer of pair r is bit r of the row's number, from the least significant on; the page shows the highest bit first.
    """

    number: int
    anchors: Sequence[tuple[int, int]]  # numbers of the inputs of each pair, a and b; past the inputs b numbers a constant
    bits: Sequence[bool]  # whether the input at a was the greater
    row: int
    values: Sequence[float]  # of the row, by output
    contribution: float  # what the row did for the class that is explained
    outputs: Sequence[str] = ()  # names of the values; their numbers by default
    constants: Sequence[float] = ()  # with which inputs are compared, the first as input n_inputs

    def comparisons(self, names: Sequence[str]) -> list[str]:
        """The comparisons and their answers, by the names of the inputs: "x3 > 0.42"."""
        everything = [*names, *(short_number(value) for value in self.constants)]
        pairs = zip(self.anchors, self.bits, strict=True)
        return [f"{everything[a]} {'>' if bit else '≤'} {everything[b]}" for (a, b), bit in pairs]


@dataclass(frozen=True)
class Decision:
    """One input of a classifier, and why it was classified as it was.

    `values` are the inputs as one list; `heat` holds, by rule, the relevance of each.
    """

    values: Sequence[float]
    prediction: int
    scores: Sequence[float]
    heat: Mapping[str, Sequence[float]]
    target: int | None = None  # the class that is explained; the predicted one by default
    label: int | None = None  # the true class, where it is known
    detectors: Sequence[Detector] = ()  # the most important first
    texts: Sequence[str] = ()  # each input with its value, of inputs that are not an image; name and number by default
    comparisons: Sequence[Comparison] = ()  # of a model of columns, the most effective first


@dataclass(frozen=True)
class VotingCircuit:
    """A circuit of tables that vote, which the page runs on the images of the decisions, also after the reader edits them.

    A bit says whether a pixel is greater than a constant; a table reads bits of the layer before it, the highest place first.
    """

    bits: Sequence[tuple[int, int]]  # (pixel, constant)
    layers: Sequence[tuple[str, Sequence[tuple[Sequence[int], str]]]]  # (name, for each table (what it reads, its rows))
    classes: Sequence[tuple[int, Sequence[int], Sequence[int]]]  # (first count, bits of the last layer, what each is worth)
    top: int  # the greatest value of a pixel


@dataclass(frozen=True)
class Decisions:
    """Why a classifier decided: a few inputs of one shape, (height, width) or (features,)."""

    shape: tuple[int, ...]
    items: Sequence[Decision]
    labels: Sequence[str] = ()
    said: str = ""
    rules: Facts = field(default_factory=dict)  # one sentence on each rule
    titles: Facts = field(default_factory=dict)  # what each rule shows, in a few words; its name by default
    features: Sequence[str] = ()  # names of inputs that are not an image; x0, x1 and so on by default
    votes: VotingCircuit | None = None  # that decided, of images
    shares: bool = False  # whether scores are shares of probabilities, not logarithms


@dataclass(frozen=True)
class Reading:
    """How one table reads one image: what it compares, the row it looks up, and what the rows of all tables add up to."""

    shape: tuple[int, ...]  # (height, width)
    values: Sequence[float]  # of the pixels
    detector: Detector
    table: Sequence[Sequence[float]]  # [rows][classes], all of the table that `detector` looks up in
    totals: Sequence[float]  # by class, over all tables
    n_tables: int
    labels: Sequence[str] = ()  # names of the classes; their numbers by default
    said: str = ""


@dataclass(frozen=True)
class Strip:
    """A text token by token, and for some of its tokens the relevance of those before."""

    title: str
    tokens: Sequence[str]
    relevance: Mapping[int, Sequence[float]]  # by the place of a token: one number for each token before it
    said: str = ""
    opened: int | None = None  # the token whose relevance is shown first; the last by default


@dataclass(frozen=True)
class Part:
    """One node of a circuit."""

    kind: str
    name: str = ""
    sources: Sequence[int] = ()  # numbers of earlier parts
    channels: int = 0
    bits: int = 0
    said: str = ""  # one more line, such as "32 tables"


@dataclass(frozen=True)
class WaveLine:
    """One line of a waveform: spans (from, to, value) in cycles, in order. Outside them the value is unknown."""

    name: str
    spans: Sequence[tuple[float, float, str]]
    is_bit: bool = False  # drawn low for "0" and high for "1"


@dataclass(frozen=True)
class Waveform:
    """Signals over time, all in cycles."""

    signals: Sequence[WaveLine]
    cycles: int
    said: str = ""


@dataclass(frozen=True)
class CellTable:
    """Rows of cells. Cells are shown as they are; numbers are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    said: str = ""
    title: str = ""


@dataclass(frozen=True)
class Check:
    """A check and its result; `passed` is None if it could not run here."""

    name: str
    passed: bool | None
    said: str = ""


@dataclass(frozen=True)
class Circuit:
    """A network as hardware."""

    parts: Sequence[Part] = ()
    said: str = ""
    facts: Facts = field(default_factory=dict)
    costs: CellTable | None = None
    checks: Sequence[Check] = ()
    waveform: Waveform | None = None
    tables: Sequence[CellTable] = ()  # further ones, below


@dataclass(frozen=True)
class PartFlow:
    """The recorded data flow of one run."""

    title: str
    flow: Flow
    said: str = ""


@dataclass(frozen=True)
class Story:
    """Everything a report may contain."""

    title: str = "Lutetia"
    said: str = ""
    figures: Facts = field(default_factory=dict)  # the headline numbers
    trained: Sequence[Training] = ()
    wrote: Sequence[Writing] = ()
    decided: Decisions | None = None
    strips: Sequence[Strip] = ()
    circuit: Circuit | None = None
    flows: Sequence[PartFlow] = ()
    speed: Sequence[CellTable] = ()
    machine: Facts = field(default_factory=dict)
    reading: Reading | None = None  # the first picture
    evaluated: Evaluation | None = None
    data: Sequence[CellTable] = ()  # on a model of columns

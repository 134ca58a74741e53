"""What differs between the cores that `lutetia build` makes: of images and of signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from lutetia.cli.build_data import Measured
from lutetia.models import Tabular
from lutetia.precompute import Core, CoreProgram, IntegerClassifier
from lutetia.report import Part

if TYPE_CHECKING:
    from lutetia.cli.build import BuildRequest

COMMON_CLOCK = 25.0  # MHz, for an example of the speed where none was found


class Prepared(NamedTuple):
    """The data as the core takes it: to measure accuracy on, its samples (None without any), and facts for the report."""

    data: Measured | str
    samples: Any
    facts: dict[str, Any]


class CorePage(NamedTuple):
    """What the summary page of a core says: how it works, what goes in and how, and as a stream; of a report its parts, facts
    and inputs (each its name, its bits and what it holds)."""

    said: str
    feed: Callable[[dict[str, Any]], str]
    stream: str
    parts: Callable[[dict[str, Any]], list[Part]]
    facts: Callable[[dict[str, Any]], dict[str, str]]
    inputs: Callable[[dict[str, Any]], list[tuple[str, str, str]]]


class CoreKind(NamedTuple):
    """A kind of cores."""

    name: str  # in a report
    one: str  # what an answer is about
    why: str  # what a model does that has such a core
    sample: str  # the last of what is answered
    check: Callable[[Tabular, BuildRequest], None]
    program: Callable[[IntegerClassifier, BuildRequest], CoreProgram]
    emit: Callable[[IntegerClassifier, BuildRequest], Core]
    prepare: Callable[[Tabular, Measured | str, BuildRequest], Prepared]
    some: Callable[[Core, Any, int], Any]  # so many of the samples, or of random ones: what a simulator is given
    facts: Callable[[Core], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]  # what a core is, in a sentence
    smaller: str  # how a core becomes smaller besides fewer tables
    page: CorePage

    @property
    def many(self) -> str:
        return f"{self.one}s"

    def cycles_each(self, report: dict[str, Any]) -> int:
        """Cycles of an answer, where nobody waits."""
        return int(report[f"cycles_per_{self.one}"])

    def speed(self, report: dict[str, Any]) -> tuple[float, float]:
        """How many answers a second come to, and at how many MHz: at the clock that nextpnr found, or at a common one."""
        clock = report["synthesis"].get("fmax_mhz") or COMMON_CLOCK
        return clock * 1e6 / self.cycles_each(report), clock

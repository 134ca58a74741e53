"""Rates over a run, against numbers worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from lutetia.training.config import Schedule
from lutetia.training.schedule import factor


@pytest.mark.parametrize(
    ("kind", "done", "wanted"),
    [
        ("cosine", 0.2, 1.0),
        ("cosine", 0.6, 0.55),
        ("cosine", 0.4, 0.1 + 0.9 * 0.5 * (1 + 2**-0.5)),
        ("cosine", 1.0, 0.1),
        ("cosine", 1.5, 0.1),
        ("linear", 0.6, 0.55),
        ("linear", 0.8, 0.325),
        ("linear", 1.0, 0.1),
        ("constant", 0.2, 1.0),
        ("constant", 1.0, 1.0),
        ("constant", 0.1, 0.5),
        ("cosine", 0.1, 0.5),
        ("linear", 0.0, 0.0),
    ],
)
def test_factor(kind: str, done: float, wanted: float) -> None:
    assert factor(Schedule(kind, warmup=0.2, floor=0.1), done) == pytest.approx(wanted, abs=1e-12)


def test_the_first_step_moves_and_the_climb_ends_at_the_top() -> None:
    schedule = Schedule("cosine", warmup=0.1, floor=0.0)
    rates = [factor(schedule, step / 100, 0.01) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert rates[10] == pytest.approx(1.0)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert factor(Schedule("linear", warmup=1.0), 1.0) == pytest.approx(1.0)
    assert factor(Schedule("linear", warmup=0.0, floor=0), 0.25) == pytest.approx(0.75)

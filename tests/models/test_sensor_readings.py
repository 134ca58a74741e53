"""Readings: how they are written, the numbers that stand for values and for thresholds, and those that a column of data needs."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from lutetia.errors import ArgumentError
from lutetia.models.readings import Reading, as_readings, find_readings, parse_reading, parse_readings


@pytest.mark.parametrize(
    ("text", "reading", "low", "high"),
    [
        ("u12", Reading(12), 0, 4095),
        ("s8", Reading(8, True), -128, 127),
        ("-40+0.0625*u12", Reading(12, False, Fraction(1, 16), Fraction(-40)), -40, 215.9375),
        (" 1.5 + 3.3/4096 * s12 ", Reading(12, True, Fraction(33, 40960), Fraction(3, 2)), -0.15, 1.5 + 3.3 * 2047 / 4096),
        ("1e-3*u16", Reading(16, False, Fraction(1, 1000)), 0, 65.535),
        ("-1/3+.5*u1", Reading(1, False, Fraction(1, 2), Fraction(-1, 3)), -1 / 3, 1 / 6),
    ],
)
def test_a_reading_as_people_write_it(text: str, reading: Reading, low: float, high: float) -> None:
    parsed = parse_reading(text)
    assert parsed == reading
    assert parsed.text == text.replace(" ", "")
    assert [float(end) for end in parsed.ends] == pytest.approx([low, high])
    assert parse_reading(reading.text) == reading  # the text that is made of one


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("12", "'12' is no reading, expected ZERO"),
        ("0.5*12", "is no reading"),
        ("1e999*u8", "is no reading"),
        ("-0.5*u8", "is no reading"),
        ("u0", "a reading has 0 bits, expected 1 to 32"),
        ("s1", "a reading has 1 bits, expected 2 to 32"),
        ("u33", "a reading has 33 bits, expected 1 to 32"),
        ("0*u8", "the step of a reading is 0, expected more"),
        ("1/0*u8", "it divides by 0"),
        ("1e9+1e-9*u8", "steps of 1e-09 are too fine for values up to 1e[+]09"),
    ],
)
def test_what_is_no_reading(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        parse_reading(text)


def test_readings_by_the_names_of_columns() -> None:
    both = parse_readings(["a=b=u8", "s4", "auto"])
    assert both == {"a=b": Reading(8), "": Reading(4, True)} == as_readings({"a=b": "u8", "": "s4"})
    assert as_readings("auto") == as_readings(None) == {}
    with pytest.raises(ArgumentError, match="column 'a' is given two readings, expected one"):
        parse_readings(["a=u8", "a=u9"])
    with pytest.raises(ArgumentError, match="readings is 12, expected 'auto'"):
        as_readings(12)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0.1*s5", "-0.3+0.1*u5", "1/3*u5", "1013.25+0.01*u5"])
def test_numbers_stand_for_values_as_a_file_has_them(text: str) -> None:
    """The value of a number is the float64 that its decimal digits are read as."""
    reading = parse_reading(text)
    numbers = np.arange(reading.domain.low, reading.domain.high + 1)
    exact = [Fraction(reading.zero) + reading.step * int(number) for number in numbers]
    values = np.array([float(str(Decimal(each.numerator) / Decimal(each.denominator))) for each in exact])
    assert (reading.numbers(values) == numbers).all()
    beyond = [-1e300, 1e300, np.nan]
    zero = min(max(0, reading.domain.low), reading.domain.high)
    assert reading.numbers(np.array(beyond)).tolist() == [reading.domain.low, reading.domain.high, zero]
    edges = np.concatenate([values, np.nextafter(values, -np.inf), np.nextafter(values, np.inf), (values[1:] + values[:-1]) / 2])
    wanted = reading.domain.low - 1 + (values <= edges[:, None]).sum(1)
    assert [reading.last(edge) for edge in edges] == wanted.tolist()


def known(*columns: tuple[float, float, int | None]) -> dict[str, object]:
    low, high, decimals = zip(*columns, strict=True)
    fine = {str(number): each for number, each in enumerate(decimals) if each is not None}
    return {"input_low": low, "input_high": high, "decimals": fine}


@pytest.mark.parametrize(
    ("column", "bits", "text"),
    [
        ((0, 4095, 0), None, "u12"),
        ((0, 4095, 0), 14, "u14"),
        ((-3, 4, 0), None, "s4"),
        ((0, 0, 0), None, "u1"),
        ((0, 70000, 0), None, "u17"),
        ((-11.1, 113.9, 1), None, "0.1*s12"),
        ((0.0008, 3.2984, 4), None, "0.0001*u16"),
        ((0.0008, 3.2984, 4), 12, "0.001*u12"),  # 0.0005 would take 13 bits
        ((98911.1, 103423.4, 1), None, "0.1*u20"),
        ((98911.1, 103423.4, 1), 16, "98000+0.1*u16"),
        ((98911.1, 103423.4, 1), 6, "98000+100*u6"),
        ((-11.1, 113.9, 1), 6, "-12+2*u6"),
        ((-11.1, 113.9, 1), 1, "-500+500*u1"),
        ((0.0, 1.0, None), None, "2e-05*u16"),
        ((-1e-12, 4.7e-12, 13), None, "1e-13*s7"),
    ],
)
def test_a_column_is_as_fine_as_its_decimals_if_these_fit(
    column: tuple[float, float, int | None], bits: int | None, text: str
) -> None:
    (found,) = find_readings(["a"], known(column), bits, {})
    assert found is not None
    assert found.text == text
    assert found.ends[0] <= Fraction(column[0]) + found.step / 2
    assert Fraction(column[1]) - found.step / 2 <= found.ends[1]


def test_readings_that_are_given_come_first() -> None:
    metadata = {**known((0, 9, 0), (0, 9.5, 1), (0, 2, 0)), "categories": {"2": ["x", "y", "z"]}}
    own = {"b": parse_reading("0.25*u7"), "": parse_reading("s9")}
    assert find_readings(["a", "b", "c"], metadata, 12, own) == [own[""], own["b"], None]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"A": "u8"}, "there is no column 'A': did you mean a"),
        ({"c": "u8"}, "column 'c' holds categories"),
        ({"a": "1000*u8"}, r"column 'a' goes from 0 to 300, and its reading 1000\*u8 has one number for all of that"),
        ({}, r"'a' goes from 0 to 300, expected at most 0 to 255, what 8 bits hold: this column needs 9, or .* such as a=2\*u8$"),
    ],
)
def test_readings_that_do_not_fit_the_data_are_refused(given: dict[str, str], said: str) -> None:
    metadata = {**known((0, 300, 0), (0, 9.5, 1), (0, 2, 0)), "categories": {"2": ["x", "y", "z"]}}
    with pytest.raises(ArgumentError, match=said):
        find_readings(["a", "b", "c"], metadata, 8, as_readings(given))


def test_a_model_that_does_not_say_how_fine_its_numbers_are_needs_a_reading() -> None:
    metadata = {"input_low": [0], "input_high": [9]}
    with pytest.raises(ArgumentError, match="does not say how fine column 'a' is: train it again, or give its reading"):
        find_readings(["a"], metadata, 8, {})
    assert find_readings(["a"], metadata, None, as_readings("u4")) == [Reading(4)]

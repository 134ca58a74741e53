"""Cells of CSV files as people write them, and what Python makes of them."""

from __future__ import annotations

import random

from lutetia.models import DATE_ORDERS
from lutetia.training.columns import number_of
from lutetia.training.dates import ENDS, MONTHS, date_seconds
from lutetia.training.units import without_unit

UNIT = "mm"


def by_python(column: int, cell: str) -> float | None:
    if column:
        return date_seconds(cell, DATE_ORDERS[column - 1])
    return number_of(without_unit([cell], UNIT)[0])


class Texts:
    """Numbers and dates as people write them, some of them with a mistake."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one_of(self, *texts: str) -> str:
        return self.random.choice(texts)

    def digits(self, count: int) -> str:
        return "".join(self.random.choice("0123456789") for _ in range(count))

    def padded(self, low: int, high: int) -> str:
        number = self.random.randint(low, high)
        return self.one_of(str(number), f"{number:02}")

    def spaces(self) -> str:
        return self.one_of("", " ", " ", "  ", "\t")

    def year(self) -> str:
        return self.one_of(f"{self.random.randint(1, 9999):04}", "2024", "2023", "2000", "1900", "9999", "0001", "0000")

    def month_name(self) -> str:
        name = self.random.choice(MONTHS) + self.one_of("", "", *ENDS.split("|"), "x") + self.one_of("", "", ".")
        return self.one_of(name, name.upper(), name.title())

    def time(self) -> str:
        if self.random.random() < 0.3:
            return ""
        text = self.one_of("T", "t", " ", "  ", ", ", ",") + self.padded(0, 24) + f":{self.random.randint(0, 60):02}"
        if self.random.random() < 0.6:
            fraction = self.one_of(".", ",") + self.digits(self.random.randint(1, 10))
            text += f":{self.random.randint(0, 60):02}" + self.one_of("", fraction)
        text += self.one_of("", "", self.spaces() + self.one_of("am", "pm", "AM", "P.M.", "a.m.", "p.m"))
        zone = self.one_of("Z", "z", "UTC", "gmt", "+01", "-0530", "+05:30", "+24:00", "-23:59", "+5", "+01:", "+0160")
        return text + self.one_of("", self.spaces() + zone)

    def date(self) -> str:
        day, month, mark = self.padded(0, 32), self.padded(0, 13), self.one_of("-", "/", ".")
        weekday = self.one_of("", "", "Mon ", "tuesday, ", "Sun.", "wedX\t")
        name, packed = self.month_name(), self.year() + month.zfill(2) + day.zfill(2)
        return self.one_of(
            self.year() + mark + month + mark + day + self.time(),
            packed + self.one_of("", f"T{self.digits(4)}", f"t{self.digits(6)}Z"),
            weekday + day + self.one_of(" ", "-", " - ") + name + self.one_of(" ", "-", ", ", "") + self.year() + self.time(),
            weekday + name + self.one_of(" ", "  ", "") + day + self.one_of(", ", " ", ",") + self.year() + self.time(),
            day + mark + month + mark + self.one_of(self.year(), self.digits(2), self.digits(3)) + self.time(),
            self.year() + mark + month,
        )  # fmt: skip

    def number(self) -> str:
        def grouped(mark: str) -> str:
            return self.digits(self.random.randint(1, 3)) + "".join(
                mark + self.digits(3) for _ in range(self.random.randint(0, 3))
            )

        number = self.one_of(
            grouped(",") + self.one_of("", f".{self.digits(2)}"),
            grouped(".") + self.one_of("", f",{self.digits(2)}"),
            self.digits(self.random.randint(1, 25)),
            f"{self.digits(2)}e{self.one_of('', '-', '+')}{self.digits(3)}",
            f".{self.digits(2)}",
            f"{self.digits(1)}.",
        )
        before = self.one_of("", "", "-", "+") + self.one_of("", "", "$", "€", "£") + self.one_of("", "", " ")
        behind = self.one_of("", "", " ") + self.one_of("", "", "%", "€")
        return before + number + behind + self.one_of("", self.spaces() + self.one_of(UNIT, UNIT, "cm", "MM"))

    def spoilt(self, text: str) -> str:
        if text and self.random.random() < 0.2:
            place, extra = self.random.randrange(len(text)), self.one_of(*"0123456789-/.: ,TZapm+eE$%jx_")
            text = text[:place] + self.one_of("", extra) + text[place + self.random.randint(0, 1) :]
        return text.strip(" \t")

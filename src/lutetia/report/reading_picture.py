"""The first picture of a report: one table reads an image in four steps, drawn from the numbers of a real network."""

from __future__ import annotations

from collections.abc import Sequence

from lutetia._shared.markup import Html, tag, text
from lutetia.report.story import Reading

PIXEL = 30  # width of one on the page
DOT = 9.5  # radius of the end of a pair
COLOURS = 4  # of pairs, that the style has


def picture(reading: Reading) -> Html:
    """Four steps side by side: compare, note, look up, add."""
    number, count, rows = reading.detector.number, len(reading.detector.anchors), len(reading.table)
    pairs = "pair" if count == 1 else f"{count} pairs"
    compared = f"Table {number} always compares the same {pairs} of pixels. The dot of the greater value is filled."
    learned = f"The table has {rows} rows, learned in training. Orange speaks for a class, blue against it."
    steps = [
        ("Compare pixels", _image(reading), compared),
        ("Write down the bits", _answers(reading), _sum_of_bits(reading)),
        ("Look up that row", _table(reading), learned),
        ("Add up all the tables", _totals(reading), _verdict(reading)),
    ]
    return tag("ol", [_step(*step, at + 1) for at, step in enumerate(steps)], class_="reading card")


def _step(title: str, drawn: Html, caption: str, number: int) -> Html:
    heading = tag("h3", tag("span", number, class_="number"), title)
    return tag("li", heading, tag("div", drawn, class_="drawn"), tag("p", caption, class_="small"))


def _labels(reading: Reading) -> list[str]:
    return list(reading.labels) or [str(each) for each in range(len(reading.totals))]


# ---- compare, note ---------------------------------------------------------------------------------------------------


def _shades(reading: Reading) -> list[float]:
    """The pixels from 0 to 1, then the constants on the same scale, where they are within it."""
    low, high = min(reading.values), max(reading.values)
    values = [*reading.values, *reading.detector.constants]
    return [min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0) for value in values]


def _image(reading: Reading) -> Html:
    height, width = reading.shape
    parts = [
        tag("rect", x=PIXEL * (at % width), y=PIXEL * (at // width), width=PIXEL, height=PIXEL, class_="ink", fill_opacity=shade)
        for at, shade in enumerate(_shades(reading)[: len(reading.values)])
        if shade > 0.01
    ]
    dots = []
    for r, (pair, bit) in enumerate(zip(reading.detector.anchors, reading.detector.bits, strict=True)):
        places = [(PIXEL * (at % width + 0.5), PIXEL * (at // width + 0.5)) for at in pair if at < len(reading.values)]
        (x1, y1), (x2, y2) = places[0], places[-1]  # a constant has no place
        parts += [tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=name) for name in ("halo", f"pair {_colour(r)}")]
        dots += [_dot(x, y, r, more) for (x, y), more in zip(places, (bit, not bit), strict=False)]
    said = f"The image, {height} by {width} pixels, with the pairs of pixels that table {reading.detector.number} compares"
    return tag("svg", parts, dots, viewBox=f"0 0 {PIXEL * width} {PIXEL * height}", class_="image", role="img", aria_label=said)


def _dot(x: float, y: float, pair: int, is_more: bool) -> Html:
    kind = f"end {_colour(pair)}{' more' if is_more else ''}"
    return tag("g", tag("circle", cx=x, cy=y, r=DOT), tag("text", pair + 1, x=x, y=y + 4.2, class_="middle"), class_=kind)


def _colour(pair: int) -> str:
    return f"p{pair % COLOURS}"


def _answers(reading: Reading) -> Html:
    """One line for each pair, the highest bit first."""
    shades = _shades(reading)
    rows = []
    for r, ((a, b), bit) in reversed(list(enumerate(zip(reading.detector.anchors, reading.detector.bits, strict=True)))):
        mark = tag("svg", _dot(DOT + 1, DOT + 1, r, True), width=2 * DOT + 2, height=2 * DOT + 2, viewBox="0 0 21 21")
        rows.append(
            tag(
                "tr",
                tag("td", mark),
                tag("td", _swatch(shades[a]), f"{shades[a]:.0%}"),
                tag("td", ">" if bit else "≤", class_="sign"),
                tag("td", _swatch(shades[b]), f"{shades[b]:.0%}"),
                tag("td", tag("b", int(bit))),
                tag("td", f"× {1 << r}", class_="soft"),
            )
        )
    heads = [tag("th", head, scope="col", colspan=span) for head, span in (("pair", 1), ("pixel values", 3), ("bit", 2))]
    return tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows), class_="answers")


def _swatch(shade: float) -> Html:
    square = tag("rect", x=0.5, y=0.5, width=15, height=15, rx=3, class_="box")
    fill = tag("rect", x=0.5, y=0.5, width=15, height=15, rx=3, class_="ink", fill_opacity=round(shade, 3))
    return tag("svg", square, fill, viewBox="0 0 16 16", width=16, height=16, aria_hidden="true")


def _sum_of_bits(reading: Reading) -> str:
    bits = "".join(str(int(bit)) for bit in reversed(reading.detector.bits))
    weights = [str(1 << r) for r, bit in reversed(list(enumerate(reading.detector.bits))) if bit]
    total = f"{' + '.join(weights)} = {reading.detector.row}" if len(weights) > 1 else str(reading.detector.row)
    return f"Read downwards, highest bit first: {bits}, which is {total}."


# ---- look up, add ----------------------------------------------------------------------------------------------------

CELL_W, CELL_H, LEFT, TOP = 22, 15, 34, 20


def _table(reading: Reading) -> Html:
    labels = [_short(label) for label in _labels(reading)]
    chosen, most = reading.detector.row, max((abs(value) for row in reading.table for value in row), default=0.0) or 1.0
    height = 240 / max(1, len(reading.table)) if len(reading.table) > 16 else CELL_H
    parts = [tag("text", label, x=LEFT + CELL_W * (at + 0.5), y=13, class_="tick middle") for at, label in enumerate(labels)]
    for number, row in enumerate(reading.table):
        y = TOP + height * number
        if len(reading.table) <= 16 or number == chosen:
            parts.append(
                tag("text", number, x=LEFT - 8, y=y + height / 2 + 4, class_="end " + ("name" if number == chosen else "tick"))
            )
        parts += [_cell(LEFT + CELL_W * at, y, height, value / most) for at, value in enumerate(row)]
    width = LEFT + CELL_W * len(labels) + 4
    frame = tag(
        "rect",
        x=LEFT - 1.5,
        y=TOP + height * chosen - 1.5,
        width=CELL_W * len(labels) + 3,
        height=height + 3,
        rx=3,
        class_="chosen",
    )
    said = f"Table {reading.detector.number}: {len(reading.table)} rows by {len(labels)} classes; row {chosen} is looked up"
    size = f"0 0 {width} {TOP + height * len(reading.table) + 4:g}"
    return tag("svg", parts, frame, viewBox=size, class_="rows", role="img", aria_label=said)


def _cell(x: float, y: float, height: float, share: float) -> Html:
    kind = "cell against" if share < 0 else "cell for"
    return tag("rect", x=x, y=y, width=CELL_W - 1, height=height - 1, class_=kind, fill_opacity=round(abs(share) ** 0.75, 3))


def _totals(reading: Reading) -> Html:
    """For each class what the row adds, and what all rows add up to."""
    labels = _labels(reading)
    own = reading.table[reading.detector.row]
    best = max(range(len(labels)), key=lambda at: reading.totals[at])
    line, name, bar = 24, 34, 92
    parts = [
        tag("text", "this row", x=name + bar / 2, y=13, class_="tick middle"),
        tag("text", f"all {reading.n_tables:,} tables", x=name + 1.5 * bar + 16, y=13, class_="tick middle"),
    ]
    for at, label in enumerate(labels):
        y = TOP + line * at
        kind = "name end" if at == best else "tick end"
        parts.append(tag("text", _short(label), x=name - 10, y=y + 15, class_=kind))
        parts += _bar(name, y, bar, own[at], own) + _bar(name + bar + 16, y, bar, reading.totals[at], reading.totals)
    parts += [
        tag("line", x1=x, x2=x, y1=TOP, y2=TOP + line * len(labels), class_="grid")
        for x in (name + bar / 2, name + 1.5 * bar + 16)
    ]
    said = f"What row {reading.detector.row} adds to each class, and the sums over all tables: largest for {labels[best]}"
    size = f"0 0 {name + 2 * bar + 20} {TOP + line * len(labels) + 4}"
    return tag("svg", parts, viewBox=size, class_="totals", role="img", aria_label=said)


def _bar(x: float, y: float, width: float, value: float, values: Sequence[float]) -> list[Html]:
    most = max(map(abs, values)) or 1.0
    size = abs(value) / most * width / 2
    left = x + width / 2 - (size if value < 0 else 0)
    return [tag("rect", x=left, y=y + 4, width=size, height=15, rx=2, class_="against" if value < 0 else "for")]


def _verdict(reading: Reading) -> str:
    labels = _labels(reading)
    best = max(range(len(labels)), key=lambda at: reading.totals[at])
    others = f"The other {reading.n_tables - 1:,} tables do the same with their own pairs of pixels."
    return f"{others} The largest sum wins: the image is read as {labels[best]}."


def _short(label: str) -> str:
    return label if len(label) <= 4 else label[:3] + "…"


def section(reading: Reading) -> Html:
    """The picture with the sentence above it."""
    return text(tag("p", reading.said, class_="said") if reading.said else None, picture(reading))

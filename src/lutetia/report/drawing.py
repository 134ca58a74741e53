"""Pictures in SVG: curves, the graph of a circuit, a waveform. Their colours come from the style of the page, light or dark."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from lutetia._shared.markup import Html, number, tag
from lutetia.report.story import Curve, Part, Waveform, WaveLine

# ---- curves ----------------------------------------------------------------------------------------------------------

CHART_W, CHART_H = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 18, 12, 30
NOISY = 60  # curves with more points also get a smoothed line
MOST_POINTS = 240  # of a curve; a longer one is averaged over intervals


def chart(curves: Sequence[Curve], unit: str, log: bool, title: str) -> Html:
    """Values over steps."""
    lines = [(curve.name, _points(curve)) for curve in curves]
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    if not xs:
        return Html("")
    log = log and min(ys) > 0
    x_ticks, y_ticks = ticks(min(xs), max(xs)), _log_ticks(min(ys), max(ys)) if log else ticks(min(ys), max(ys))
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1e-9)
    y_low, y_high = min(*ys, *y_ticks), max(*ys, *y_ticks)

    def at(x: float, y: float) -> tuple[float, float]:
        scale = (lambda v: math.log10(v)) if log else (lambda v: v)
        span = scale(y_high) - scale(y_low) or 1.0
        across = LEFT + (x - x_low) / (x_high - x_low) * (CHART_W - LEFT - RIGHT)
        return across, CHART_H - BOTTOM - (scale(y) - scale(y_low)) / span * (CHART_H - TOP - BOTTOM)

    parts: list[Html] = []
    for tick in y_ticks:
        _, y = at(x_low, tick)
        parts += [
            tag("line", x1=LEFT, x2=CHART_W - RIGHT, y1=y, y2=y, class_="grid"),
            tag("text", number(tick), x=LEFT - 8, y=y + 4, class_="tick end"),
        ]
    for tick in x_ticks:
        x, _ = at(tick, y_low)
        parts.append(tag("text", number(tick), x=x, y=CHART_H - BOTTOM + 22, class_="tick middle"))
    for place, (_, points) in enumerate(lines):
        noisy = len(points) > NOISY
        parts.append(tag("path", d=_path([at(*point) for point in points]), class_=f"curve{' raw' * noisy} c{place % 4}"))
        if noisy:
            parts.append(tag("path", d=_path([at(*point) for point in _calm(points)]), class_=f"curve c{place % 4}"))
    first, last = lines[0][1][0][1], lines[0][1][-1][1]
    said = f"{title}: {unit} over steps, {lines[0][0]} from {number(first)} to {number(last)}"
    picture = tag("svg", parts, viewBox=f"0 0 {CHART_W} {CHART_H}", class_="chart", role="img", aria_label=said)
    keys = [tag("li", tag("i", class_=f"key c{place % 4}"), name) for place, (name, _) in enumerate(lines)]
    return tag(
        "figure", picture, tag("figcaption", tag("ul", keys, class_="keys"), tag("span", f"{unit} over steps", class_="small"))
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _calm(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A moving average."""
    near = max(2, len(points) // 30)
    return [
        (x, sum(y for _, y in around) / len(around))
        for at, (x, _) in enumerate(points)
        for around in [points[max(0, at - min(near, at)) : at + min(near, at) + 1]]
    ]


def _points(curve: Curve) -> list[tuple[float, float]]:
    points = [(float(x), float(y)) for x, y in zip(curve.steps, curve.values, strict=True) if math.isfinite(y)]
    size = math.ceil(len(points) / MOST_POINTS) or 1
    groups = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def ticks(low: float, high: float) -> list[float]:
    """Four to seven round numbers between two."""
    span = high - low
    if not span:
        return [low]
    step = 10 ** math.floor(math.log10(span / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    first = math.ceil(low / step - 1e-9)
    return [round(at * step, 12) for at in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(decades) <= 3 else (1,)
    every = [factor * 10.0**decade for decade in decades for factor in factors]
    inside = [tick for tick in every if low <= tick <= high]
    return inside if len(inside) >= 3 else ticks(low, high)


# ---- the circuit -----------------------------------------------------------------------------------------------------

NODE_W, NODE_H, GAP_X, GAP_Y = 196, 50, 22, 34


def graph(parts: Sequence[Part]) -> Html:
    """The parts from top to bottom, each below all that it reads, with the bits of every bus."""
    ranks = _ranks(parts)
    width = max(len(rank) for rank in ranks) * (NODE_W + GAP_X) + GAP_X
    place: dict[int, tuple[float, float]] = {}
    for depth, rank in enumerate(ranks):
        left = (width - len(rank) * (NODE_W + GAP_X) + GAP_X) / 2
        for at, part in enumerate(rank):
            place[part] = (left + at * (NODE_W + GAP_X), 6 + depth * (NODE_H + GAP_Y))
    height = 12 + len(ranks) * (NODE_H + GAP_Y) - GAP_Y
    drawn = [_bus(place[source], place[at], parts[source].bits) for at, part in enumerate(parts) for source in part.sources]
    drawn += [_node(at, part, place[at]) for at, part in enumerate(parts)]
    said = f"Circuit of {len(parts)} parts, from {parts[0].kind} to {parts[-1].kind}"
    return tag(
        "svg", drawn, viewBox=f"0 0 {width} {height}", width=width, height=height, class_="circuit", role="img", aria_label=said
    )


def _ranks(parts: Sequence[Part]) -> list[list[int]]:
    depth: list[int] = []
    for part in parts:
        depth.append(max((depth[source] + 1 for source in part.sources), default=0))
    ranks: dict[int, list[int]] = defaultdict(list)
    for at in range(len(parts)):
        ranks[depth[at]].append(at)
    order: dict[int, float] = {}
    made = []
    for level in sorted(ranks):  # each below the middle of what it reads
        rank = sorted(ranks[level], key=lambda at: sum(order[s] for s in parts[at].sources) / max(1, len(parts[at].sources)))
        order.update({part: place - (len(rank) - 1) / 2 for place, part in enumerate(rank)})
        made.append(rank)
    return made


def _node(number_: int, part: Part, place: tuple[float, float]) -> Html:
    x, y = place
    lines = [f"{part.channels:,} × {_mean_bits(part)}" if part.channels else "", part.said]
    below = " · ".join(filter(None, lines))
    counts = f"{part.channels:,} channel{'s' * (part.channels != 1)}, {part.bits:,} bit{'s' * (part.bits != 1)}"
    name = "" if part.name == part.kind else part.name
    full = f"{' '.join(filter(None, [str(number_), part.kind, name]))}: {counts}. {part.said}".strip()
    return tag(
        "g",
        tag("title", full),
        tag("rect", x=x, y=y, width=NODE_W, height=NODE_H, rx=9),
        tag("text", part.kind, tag("tspan", f"  {_cut(name, 16)}"), x=x + 14, y=y + 21, class_="name"),
        tag("text", _cut(below, 30), x=x + 14, y=y + 39, class_="meta"),
        class_=f"node kind-{part.kind if part.kind.isalpha() else 'other'}",
    )


def _mean_bits(part: Part) -> str:
    mean = part.bits / part.channels
    return f"{mean:.0f} bit" if mean == int(mean) else f"{mean:.1f} bit"


def _bus(source: tuple[float, float], target: tuple[float, float], bits: int) -> Html:
    x1, y1, x2, y2 = source[0] + NODE_W / 2, source[1] + NODE_H, target[0] + NODE_W / 2, target[1]
    middle = (y1 + y2) / 2
    path = f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2 - 6:g}"
    if x1 == x2 and y2 - y1 > GAP_Y:  # past parts between the two, not through them
        x1 = x2 = source[0] + GAP_X
        side, middle = source[0] - 1.4 * GAP_X, y1 + GAP_Y / 2
        path = f"M{x1:g} {y1:g}C{side:g} {y1 + 20:g} {side:g} {y2 - 20:g} {x2:g} {y2 - 6:g}"
    return tag(
        "g",
        tag("path", d=path, class_="bus"),
        tag("path", d=f"M{x2:g} {y2 - 1:g}l-4.5 -8h9z", class_="head"),
        tag("text", f"{bits:,}", x=(x1 + x2) / 2 + 8, y=middle + 4, class_="tick"),
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# ---- the waveform ----------------------------------------------------------------------------------------------------

CYCLE, LINE, LABELS, RISE = 84, 34, 112, 5


def wave(waveform: Waveform) -> Html:
    """Signals below each other; their names stay visible when scrolling."""
    height = LINE * len(waveform.signals) + 26
    width = waveform.cycles * CYCLE + 10
    names = [
        tag("text", _cut(signal.name, 15), x=LABELS - 10, y=LINE * at + 25, class_="name end")
        for at, signal in enumerate(waveform.signals)
    ]
    drawn = [
        tag("line", x1=c * CYCLE + 0.5, x2=c * CYCLE + 0.5, y1=4, y2=height - 20, class_="grid")
        for c in range(waveform.cycles + 1)
    ]
    drawn += [tag("text", c, x=c * CYCLE + CYCLE / 2, y=height - 5, class_="tick middle") for c in range(waveform.cycles)]
    drawn += [_signal(signal, LINE * at + 9) for at, signal in enumerate(waveform.signals)]
    labels = tag("svg", names, viewBox=f"0 0 {LABELS} {height}", width=LABELS, height=height, aria_hidden="true", class_="names")
    said = f"Waveform of {len(waveform.signals)} signals over {waveform.cycles} cycles: " + "; ".join(
        map(_told, waveform.signals)
    )
    waves = tag("svg", drawn, viewBox=f"0 0 {width} {height}", width=width, height=height, role="img", aria_label=said)
    return tag(
        "div", tag("div", labels, waves, class_="waves"), class_="scroll", tabindex=0, role="region", aria_label="Waveform"
    )


def _told(signal: WaveLine) -> str:
    if signal.is_bit:
        high = [f"{a:g} to {b:g}" for a, b, value in signal.spans if value == "1"]
        return f"{signal.name} high in {', '.join(high[:1]) or 'none'}" if signal.name != "clk" else "clk"
    return f"{signal.name} " + ", ".join(value for _, _, value in signal.spans)


def _signal(signal: WaveLine, top: float) -> Html:
    bottom = top + LINE - 14
    if signal.is_bit:
        points = []
        for a, b, value in signal.spans:
            y = top if value == "1" else bottom
            points += [f"{a * CYCLE:g} {y:g}", f"{b * CYCLE:g} {y:g}"]
        return tag("path", d="M" + "L".join(points), class_="bit") if points else Html("")
    parts = []
    middle = (top + bottom) / 2
    before = 0.0
    for at, (a, b, value) in enumerate(signal.spans):
        x, u = a * CYCLE, b * CYCLE
        if a > before:
            parts.append(tag("line", x1=before * CYCLE, x2=x, y1=middle, y2=middle, class_="idle"))
        path = f"M{x:g} {middle:g}L{x + RISE:g} {top:g}H{u - RISE:g}L{u:g} {middle:g}L{u - RISE:g} {bottom:g}H{x + RISE:g}z"
        room = int((u - x - 14) / 7.4)
        label = tag("text", _cut(value, max(1, room)), x=(x + u) / 2, y=middle + 4, class_="middle")
        parts.append(
            tag(
                "g",
                tag("title", f"{signal.name}, cycle {a:g}: {value}"),
                tag("path", d=path),
                label,
                class_="word" + (" first" if not at else ""),
            )
        )
        before = b
    return tag("g", parts)

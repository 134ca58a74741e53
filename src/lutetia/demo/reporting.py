"""The last chapter: the results of all the others, on one page."""

from __future__ import annotations

from lutetia import report
from lutetia.demo.telling import PAGE, Context, Told

SAID = (
    "Networks of lookup tables learned to read digits and to write Python, gave the reasons for their decisions, and one became "
    "a circuit. Every number and picture on this page comes from that run."
)


def tell(context: Context) -> Told:
    page = context.out / PAGE
    story = report.Story(
        "Networks made of lookup tables",
        SAID,
        _figures(context),
        context.trained,
        context.wrote,
        context.decided,
        context.strips,
        context.circuit,
        context.flows,
        context.speed,
        report.machine(),
        context.reading,
    )
    report.write(page, story)
    return Told(f"open it in a browser; it works offline ({page.stat().st_size / 1e6:.1f} MB)", (page,))


def _figures(context: Context) -> dict[str, str]:
    """The headline numbers, in words that need no explanation."""
    figures = {name: value for name, value in context.figures.items() if name != "the circuit"}
    cells = context.circuit.facts.get("LUT6") if context.circuit else None
    return figures | ({"logic cells on an FPGA for the digit reader": cells} if cells else {})

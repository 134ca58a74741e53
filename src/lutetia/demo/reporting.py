"""The last chapter: the results of all the others, on one page."""

from __future__ import annotations

from lutetia import report
from lutetia.demo.telling import PAGE, Context, Told

SAID = (
    "Networks of lookup tables learned to read digits, to write Python, to classify wines and to predict a number. They gave "
    "the reasons for their decisions, and one became a circuit. Every number and picture on this page comes from that run."
)


def tell(context: Context) -> Told:
    page = context.out / PAGE
    story = report.Story(
        "Networks made of lookup tables",
        SAID,
        context.figures,
        context.trained,
        context.wrote,
        context.decided,
        context.strips,
        context.circuit,
        context.flows,
        context.speed,
        report.machine(),
        context.reading,
        data=context.data,
    )
    report.write(page, story)
    return Told(f"open it in a browser; it works offline ({page.stat().st_size / 1e6:.1f} MB)", (page,))

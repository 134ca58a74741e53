"""The last chapter: everything the others found, on one page."""

from __future__ import annotations

from lutetia import report
from lutetia.demo.telling import PAGE, Context, Told

SAID = (
    "A network without multiplications learned, wrote text, showed its reasons, and became a circuit. This page is what it did."
)


def tell(context: Context) -> Told:
    page = context.out / PAGE
    story = report.Story(
        "What a network of lookup tables did",
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
    )
    report.write(page, story)
    return Told(f"open it in a browser: it needs no network ({page.stat().st_size / 1e6:.1f} MB)", (page,))

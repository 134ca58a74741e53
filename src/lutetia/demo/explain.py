"""Why: the relevance of the pixels for ten digits, and of the earlier bytes for each byte of a few lines."""

from __future__ import annotations

import torch

from lutetia import report
from lutetia.demo.telling import Context, Told
from lutetia.errors import JobError
from lutetia.files import write_atomically
from lutetia.relevance import pictures

DIGITS = "One unseen digit of each kind. Pick a digit, then what to show; click a table to see which pixels it compared."
TEXT = "A few lines of Python, read by the language model byte by byte."
LINES = "    def close(self):\n        if self.closed:\n            return self.closed\n        self.close"


def tell(context: Context) -> Told:
    digits = context.digits
    if digits is None or context.writer is None:
        raise JobError("there is nothing to explain: no model was trained before this chapter")
    ten = [int((digits.labels == digit).nonzero()[0]) for digit in range(10)]
    context.decided = report.decisions(digits.model, digits.images[ten], digits.labels[ten], said=DIGITS)
    context.say("a few lines of text")
    lines = LINES.encode()[: context.writer.config.context]
    context.strips.append(report.strip(context.writer, lines, begin=len(lines) // 4, said=TEXT))
    picture = context.out / "reasons.png"
    with write_atomically(picture) as file:
        file.write(_drawn(context.decided))
    first = context.decided.items[0]
    said = "ten digits and a few lines of text, with the pixels or bytes that spoke for each outcome and against it"
    if first.detectors:
        best = first.detectors[0]
        said += f"; for the first digit, row {best.row} of table {best.number} counted most"
    return Told(said, (picture,))


def _drawn(decided: report.Decisions) -> bytes:
    """The digits in a row and their heat maps below, as PNG: red spoke for the class, blue against it."""
    import io

    from lutetia.errors import require

    figure = require("matplotlib.figure", "the demo's picture", "matplotlib").Figure(figsize=(12, 2.8), layout="constrained")
    rule = next(iter(decided.items[0].heat))
    for column, item in zip(figure.subplots(2, len(decided.items)).T, decided.items, strict=True):
        image, heat = (torch.tensor(values).view(decided.shape) for values in (item.values, item.heat[rule]))
        column[0].imshow(image.numpy(), cmap="Greys")
        column[0].set_title(f"read as {item.prediction}", fontsize=9)
        pictures.draw_heat(column[1], heat, image)
        for axes in column:
            axes.set_axis_off()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()

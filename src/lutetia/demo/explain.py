"""Why: relevance of the pixels for ten digits, and of the bytes before for a line that was written."""

from __future__ import annotations

from lutetia import report
from lutetia.demo.telling import Context, Told
from lutetia.errors import JobError
from lutetia.files import write_atomically


def tell(context: Context) -> Told:
    digits = context.digits
    if digits is None or context.writer is None:
        raise JobError("there is nothing to explain: no model was trained before this chapter")
    ten = [int((digits.labels == digit).nonzero()[0]) for digit in range(10)]
    context.decided = report.decisions(digits.model, digits.images[ten], digits.labels[ten])
    context.say("a line of text")
    line = context.line.encode()[:96]
    context.strips.append(report.strip(context.writer, line, begin=24))
    picture = context.out / "reasons.png"
    with write_atomically(picture) as file:
        file.write(_drawn(context.decided))
    first = context.decided.items[0]
    best = first.detectors[0] if first.detectors else None
    said = "ten digits and one line were explained: which pixels and bytes spoke for the outcome, and which against it"
    if best is not None:
        said += f"; for the first digit, table {best.number} spoke loudest, with row {best.row}"
    return Told(said, (picture,))


def _drawn(decided: report.Decisions) -> bytes:
    """Ten heat maps in a row, as PNG: red spoke for the class, blue against it."""
    import io

    from lutetia.errors import require

    figure = require("matplotlib.figure", "the demo's picture", "matplotlib").Figure(figsize=(12, 2.8), layout="constrained")
    rule = next(iter(decided.items[0].heat))
    for column, item in zip(figure.subplots(2, len(decided.items)).T, decided.items, strict=True):
        heat = _square(item.heat[rule], decided.shape)
        limit = max(abs(value) for row in heat for value in row) or 1.0
        column[0].imshow(_square(item.values, decided.shape), cmap="Greys")
        column[0].set_title(f"read as {item.prediction}", fontsize=9)
        column[1].imshow(heat, cmap="RdBu_r", vmin=-limit, vmax=limit)
        for axes in column:
            axes.set_axis_off()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _square(values: object, shape: tuple[int, ...]) -> list[list[float]]:
    flat = list(values)  # type: ignore[call-overload]
    return [flat[start : start + shape[1]] for start in range(0, len(flat), shape[1])]

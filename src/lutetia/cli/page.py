"""`lutetia page`: one HTML file that runs a model in a browser and explains its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lutetia.cli.guard import UsageError
from lutetia.cli.outputs import check_output, default_page
from lutetia.cli.show import console, print_warning
from lutetia.errors import DataError
from lutetia.files import write_atomically
from lutetia.models import Model, Tabular, load
from lutetia.precompute import IntegerTransformer, c_memory, integer_model, model_page, n_detectors, page_title

LARGE = 5 << 20  # bytes: beyond it a phone takes a while to open a page
WEIGHT_BITS, NUMBER_BITS = 8, 24  # of an entry; that of a number is rounded so little that the page says what `predict` says


def write_page(checkpoint: Path, out: Path | None, title: str | None) -> dict[str, Any]:
    """Write the page of a checkpoint, model.html by default; returns what `--json` prints."""
    out = default_page("model.html") if out is None else out
    check_output("--out", out, (".html", ".htm"))
    loaded: Model[Any] = load(checkpoint)
    if "windows" in loaded.metadata:
        why = f"{checkpoint} takes windows of signals, and a page has sliders for the columns of a row"
        raise UsageError(f"{why}: lutetia explain {checkpoint} RECORDING.csv --html why.html, or lutetia build --target c")
    is_number = isinstance(loaded, Tabular) and loaded.is_regression
    model = integer_model(loaded, weight_bits=NUMBER_BITS if is_number else WEIGHT_BITS)
    figures = {"tables": f"{n_detectors(model):,}", "bytes of tables": f"{c_memory(model)['flash_table_bytes']:,}"}
    content = model_page(model, title or page_title(checkpoint), figures).encode("utf-8", errors="replace")
    try:
        with write_atomically(out) as file:
            file.write(content)
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror or error}") from error
    return {
        "out": str(out),
        "kind": "language" if isinstance(model, IntegerTransformer) else "classifier",
        "bytes": len(content),
        "large": len(content) > LARGE,
    }


def show_page(told: dict[str, Any]) -> None:
    """Where the page is."""
    if told["large"]:
        print_warning(f"{told['out']} has {told['bytes'] / 2**20:.1f} MB: phones may take a while to open it")
    console().print(f"page  {told['out']}, {told['bytes'] / 2**20:.2f} MB", soft_wrap=True, markup=False)

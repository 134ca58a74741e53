"""`lutetia page`: one HTML file that runs a model in a browser and explains its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lutetia.cli.one_target import one_output
from lutetia.cli.outputs import check_output, default_page
from lutetia.cli.show import console, one_line, print_warning
from lutetia.errors import DataError
from lutetia.files import write_atomically
from lutetia.models import Model, Tabular, load
from lutetia.precompute import ExampleRecording, IntegerTransformer, c_memory, integer_model, model_page, n_detectors, page_title

LARGE = 5 << 20  # bytes: beyond it a phone takes a while to open a page
WEIGHT_BITS, FINE_BITS = 8, 24  # of an entry; those of columns and of windows are fine enough to say what `predict` says


def write_page(checkpoint: Path, out: Path | None, title: str | None, output: str | None = None) -> dict[str, Any]:
    """Write the page of a checkpoint, model.html by default, of several targets for the one that `output` names; returns what
    `--json` prints."""
    out = default_page("model.html") if out is None else out
    check_output("--out", out, (".html", ".htm"))
    loaded: Model[Any] = one_output(load(checkpoint), output, "page")
    has_windows = isinstance(loaded, Tabular) and "windows" in loaded.metadata
    is_image = len(getattr(loaded.config, "input_shape", ())) > 1
    is_fine = isinstance(loaded, Tabular) and (loaded.is_regression or not is_image)
    model = integer_model(loaded, weight_bits=FINE_BITS if is_fine else WEIGHT_BITS)
    figures = {"tables": f"{n_detectors(model):,}", "bytes of tables": f"{c_memory(model)['flash_table_bytes']:,}"}
    example = _example(checkpoint, loaded) if has_windows else None
    shown = None if isinstance(example, str) else example
    content = model_page(model, title or page_title(checkpoint), figures, shown).encode("utf-8", errors="replace")
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
        **({"example": None if shown is None else shown.said, "no_example": example if shown is None else ""} if example else {}),
    }


def _example(checkpoint: Path, model: Model[Any]) -> ExampleRecording | str:
    """Rows that were held out, for the page to begin with; or why there are none."""
    from lutetia.cli.build_data import run_rows  # loads what trains

    found = run_rows(checkpoint, model)
    return found if isinstance(found, str) else ExampleRecording(*found)


def show_page(told: dict[str, Any]) -> None:
    """Where the page is."""
    if told["large"]:
        print_warning(f"{told['out']} has {told['bytes'] / 2**20:.1f} MB: phones may take a while to open it")
    if told.get("example"):
        console().print(f"example  {one_line(told['example'])}, which the page holds", soft_wrap=True, markup=False)
    elif told.get("no_example"):
        print_warning(f"the page begins with waves that are made up: {one_line(told['no_example'])}")
    console().print(f"page  {told['out']}, {told['bytes'] / 2**20:.2f} MB", soft_wrap=True, markup=False)

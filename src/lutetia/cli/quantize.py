"""`lutetia quantize`: a model with int8 tables, a quarter of the size, for inference only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lutetia.cli.one_target import only_one
from lutetia.cli.show import console
from lutetia.errors import ArgumentError
from lutetia.models import TENSORS_FILE, in_run, load, read_config, save
from lutetia.nn import LUT, NgramTables, int8_tables
from lutetia.training import STATE_FILE

OF_THE_MODEL = ("format", "lutetia", "kind", "model")  # what `save` writes itself


def quantize(checkpoint: Path, out: Path, show: bool) -> dict[str, Any]:
    """Write the int8 model; with `show`, say so. Returns what `--json` prints."""
    model: Any = only_one(load(checkpoint), "quantize")
    folder = in_run(checkpoint)
    tables = [module for module in model.modules() if isinstance(module, LUT | NgramTables)]
    learned = [module for module in tables if module.weight.requires_grad]
    if not learned:
        raise ArgumentError(
            f"{checkpoint} has {'int8 tables already' if tables else 'no tables'}, expected floating-point tables"
        )
    _check_out(out, folder)
    n_weights = sum(module.weight.numel() for module in learned)
    int8_tables(model)
    rest = {name: table for name, table in read_config(folder).items() if name not in OF_THE_MODEL}
    state = folder / STATE_FILE
    save(model, out, config=rest, files={STATE_FILE: state.read_bytes()} if state.is_file() else {})
    sizes = [(place / TENSORS_FILE).stat().st_size for place in (folder, out)]
    result = {"out": str(out), "layers": len(learned), "weights": n_weights, "bytes_before": sizes[0], "bytes": sizes[1]}
    if show:
        layers = "1 layer" if len(learned) == 1 else f"{len(learned)} layers"
        share = f"{sizes[1]:,} bytes instead of {sizes[0]:,}"
        console().print(f"{out}: {n_weights:,} weights of {layers} are int8, {share}", soft_wrap=True)
    return result


def _check_out(out: Path, folder: Path) -> None:
    """Refuse to overwrite another model; an earlier int8 model is replaced."""
    if os.path.realpath(out) == os.path.realpath(folder):
        raise ArgumentError(f"--out is {out}, the checkpoint itself, expected another folder")
    if os.path.lexists(out / TENSORS_FILE) and not _is_int8(out / TENSORS_FILE):
        raise ArgumentError(f"--out is {out}, which holds another model, expected a new folder")


def _is_int8(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return any(file.get_slice(name).get_dtype() == "I8" for name in file.keys())  # noqa: SIM118  # no dict
    except (OSError, SafetensorError):
        return False

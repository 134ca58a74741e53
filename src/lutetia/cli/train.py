"""`lutetia train`: the progress bar, the summary, and how to resume after Ctrl-C."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from lutetia.cli.guard import InterruptedByUser
from lutetia.cli.show import console, one_line
from lutetia.errors import DataError
from lutetia.training import TABLE_KINDS, Config, Live, Silent, duration_text, make_config, metrics_text, read_config, train

TEXTS = (".txt", ".txt.gz", ".md")
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
TEXT_MODEL = {  # tables alone with hard reads, so that every other command takes it: page, and build into C or a circuit
    "kind": "transformer",
    "context": 64,
    "width": 64,
    "n_layers": 2,
    "n_heads": 4,
    "attention": "lut",
    "n_detectors": 4,
    "n_anchors": 3,
    "positional_dim": 3,
    "feed_forward": "lut",
    "ff_detectors": 64,
    "ff_anchors": 6,
    "unembedding": "lut",
    "unembedding_detectors": 64,
    "read": "hard",
}


def run_training(
    config: Path, out: Path | None, resume: bool, device: str | None, data: Path | None, settings: list[str]
) -> dict[str, Any] | None:
    """Train, and return the summary; None on every rank but the first, the only one that prints."""
    text = is_text(config)
    out = out or Path("runs") / (config.name.split(".")[0] if text else config.stem)
    read = text_config(config, settings) if text else _read(config, settings)  # first, so that mistakes show at once
    options: dict[str, Any] = {"resume": resume, "device": device, "data": data, "overrides": settings}
    given, asked = (read, options | {"data": data or config.parent}) if text else (config, options)
    if int(os.environ.get("RANK", "0")):
        train(given, out, show=Silent(), **asked)
        return None
    if text:
        said = f"a language model of the bytes of {one_line(config.name)}; the name of a table of data ends in .csv or .tsv"
        console(stderr=True).print(said, soft_wrap=True, markup=False)
    unit = "bytes" if read.data.kind in ("bytes", "stdlib") else "samples"
    with Live(console(stderr=True), unit) as live:
        summary = train(given, out, show=live, **asked)
    if summary["stopped"] == "interrupted":
        line = resume_line(config, out, options)
        raise InterruptedByUser(f"stopped after step {summary['step']} and saved; resume with: {line}")
    return summary


def _read(path: Path, settings: list[str]) -> Config:
    """A config; of a file that does not claim to be one, what is expected instead."""
    try:
        return read_config(path, settings)
    except DataError as error:
        if path.suffix.lower() in ("", ".toml") or not path.is_file():
            raise
        expected = f"a config (.toml), a text ({', '.join(TEXTS)}) or data: {TABLE_KINDS}"
        hint = "; save the table as CSV (UTF-8) first" if path.suffix.lower() in SPREADSHEETS else ""
        raise DataError(f"{path} ends in {path.suffix}, expected {expected}{hint}") from error


def is_text(path: Path) -> bool:
    """Whether a path, by its name, is a text to learn from and not a config."""
    return path.name.lower().endswith(TEXTS)


def text_config(path: Path, settings: list[str]) -> Config:
    """A small language model of the bytes of a text: minutes on a CPU."""
    rates = {"tables": {"lr": 3e-3}, "rest": {"lr": 3e-3, "weight_decay": 0.01}}
    tables = {
        "model": TEXT_MODEL,
        "data": {"kind": "bytes", "path": path.name, "valid": 0.05, "test": 0.05},
        "optimizer": rates,
        "schedule": {"kind": "cosine", "warmup": 0.05, "floor": 0.1},
        "train": {"batch_size": 32, "steps": 1000, "clip": 1.0, "eval_every": 250, "eval_batches": 50},
        "checkpoint": {"every": 250},
    }
    return make_config(tables, str(path), settings)


def is_table_run(path: Path) -> bool:
    """Whether a path is data itself, or the config of a run on a table."""
    from lutetia.training import is_table, is_table_config, read_toml

    return is_table(path) or (path.suffix == ".toml" and path.is_file() and is_table_config(read_toml(path)))


def resume_line(config: Path, out: Path, options: dict[str, Any]) -> str:
    """The command that continues a run."""
    words = ["lutetia", "train", str(config), "--out", str(out), "--resume"]
    for name in ("device", "data"):
        if options[name] is not None:
            words += [f"--{name}", str(options[name])]
    for setting in options["overrides"]:
        words += ["--set", setting]
    return shlex.join(words)


def show_summary(summary: dict[str, Any]) -> None:
    """The outcome of a run, in a few lines."""
    screen = console()
    why = {"steps": "", "minutes": ", stopped by its time limit", "patience": ", stopped early: no more progress"}
    done = f"{summary['step']} steps in {duration_text(summary['seconds'])}, {summary['weights']:,} weights"
    if "peak_memory" in summary:
        done += f", {summary['peak_memory'] / 2**30:.1f} GiB of GPU memory"
    screen.print(done + why[summary["stopped"]], soft_wrap=True)
    for split in ("valid", "test"):
        if split in summary:
            screen.print(f"{split:<6}{metrics_text(summary[split])}, loss {summary[split]['loss']:.4f}", soft_wrap=True)
    screen.print(f"model {summary['checkpoint']}", soft_wrap=True)
    if "picture" in summary:
        screen.print(f"loss  {summary['picture']}", soft_wrap=True)
    sys.stdout.flush()

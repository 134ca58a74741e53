"""`lutetia train` on several targets: what --target names, and what is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lutetia.cli.guard import UsageError
from lutetia.cli.show import one_line
from lutetia.training import OpenedTarget, TableFile


def asked_targets(given: Sequence[str], file: TableFile | None) -> list[str]:
    """The targets of --target, which may be repeated, or list names with commas between them."""
    columns = () if file is None else file.columns
    return [name for each in given for name in ([each] if each in columns else map(str.strip, each.split(","))) if name]


def only_target(names: Sequence[str]) -> str | None:
    """The one target of what has no more."""
    if len(names) > 1:
        raise UsageError(f"--target names {len(names)} columns, expected one: windows, images and arrays have one target")
    return names[0] if names else None


def targets_text(opened: Sequence[OpenedTarget]) -> str:
    """What several targets are: "regression of a, b and c", "classification of a (2 classes) and b (3 classes)"."""
    counts = [f" ({len(each.table.classes)} classes)" if each.table.classes else "" for each in opened]
    names = [one_line(each.name) + count for each, count in zip(opened, counts, strict=True)]
    kind = "classification" if opened[0].table.classes else "regression"
    return f"{kind} of {', '.join(names[:-1])} and {names[-1]}"


def target_lines(summary: dict[str, Any], told: Callable[[dict[str, Any], str], str]) -> list[str]:
    """The outcome of a fit to several targets; `told` says how good one is on a split."""
    lines = []
    for own in summary["targets"]:
        lines.append(f"{one_line(own['target'])}, {own['tables']:,} tables")
        lines += [f"  {split:<6}{told(own, split)}" for split in ("train", "test") if split in own]
    return lines

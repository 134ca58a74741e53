"""How good a classifier is for each class, on a screen and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lutetia.cli.show import one_line

MOST_LINES = 20  # classes on a screen
MOST_PAIRS = 3  # of confused classes
MOST_COLUMNS = 40  # classes of a confusion matrix


def class_lines(report: Mapping[str, Any], most: int = MOST_LINES) -> list[str]:
    """A line for each class that has samples, those with the lowest recall if there are many; then what was confused."""
    classes = [each for each in report["classes"] if each["samples"]]
    shown = classes if len(classes) <= most else sorted(classes, key=_recall)[: most // 2]
    width = max((len(one_line(each["class"])) for each in shown), default=0)
    lines = [f"{one_line(each['class']):<{width}}  {_class_line(each)}" for each in shown]
    if len(shown) < len(classes):
        lines.append(f"and {len(classes) - len(shown)} classes with higher recall (--json has all)")
    if len(classes) > 1:
        lines.append(f"balanced accuracy {report['balanced_accuracy']:.2%}, the mean of the classes")
    if report["confused"]:
        lines.append(f"confused most: {', '.join(map(_pair, report['confused'][:MOST_PAIRS]))}")
    return lines


def _recall(counted: Mapping[str, Any]) -> float:
    return counted["right"] / counted["samples"]


def _class_line(counted: Mapping[str, Any]) -> str:
    correct = f"{_recall(counted):>7.2%}  {counted['right']:,} of {counted['samples']:,} correct"
    if not counted["predicted"]:
        return f"{correct}, never predicted"
    return f"{correct}, precision {counted['right'] / counted['predicted']:.2%}"


def _pair(pair: Mapping[str, Any]) -> str:
    times = "once" if pair["samples"] == 1 else f"{pair['samples']:,} times"
    return f"{one_line(pair['class'])} read as {one_line(pair['as'])} ({times})"


# ---- a page ----------------------------------------------------------------------------------------------------------


def write_class_page(path: Path, title: str, said: str, report: Mapping[str, Any]) -> None:
    """The confusion matrix, recall and precision as a page; of many classes only those that were confused most."""
    from lutetia.report import CellTable, Evaluation, Story, write

    names = [each["class"] for each in report["classes"]]
    chosen = _chosen(report, names)
    at = {name: number for number, name in enumerate(chosen)}
    matrix = [[0] * len(chosen) for _ in chosen]
    for each in report["classes"]:
        if each["class"] in at:
            matrix[at[each["class"]]][at[each["class"]]] = each["right"]
    for each in report["confused"]:
        if each["class"] in at and each["as"] in at:
            matrix[at[each["class"]]][at[each["as"]]] = each["samples"]
    some = f"The {len(chosen)} of {len(names)} classes that were confused most." if len(chosen) < len(names) else ""
    rows = [
        (each["class"], each["samples"], f"{_recall(each):.2%}", _precision(each))
        for each in report["classes"]
        if each["samples"]
    ]
    table = CellTable(("class", "samples", "recall", "precision"), rows)
    write(path, Story(title, said=said, evaluated=Evaluation(matrix, chosen, table, some)))


def _precision(counted: Mapping[str, Any]) -> str:
    return f"{counted['right'] / counted['predicted']:.2%}" if counted["predicted"] else "never predicted"


def _chosen(report: Mapping[str, Any], names: list[str]) -> list[str]:
    """The classes of the matrix, in their order: all of them, or those that were confused most."""
    wrong = (name for each in report["confused"] for name in (each["class"], each["as"]))
    first = set(list(dict.fromkeys([*wrong, *names]))[:MOST_COLUMNS])
    return [name for name in names if name in first]

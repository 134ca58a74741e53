"""Texts with labels: docstrings of Python's standard library, and files that a folder holds."""

from __future__ import annotations

import ast
import csv
import sysconfig
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

MOST_ROWS = 6000  # of a set; a sample of a larger one
PACKAGES = 12  # the classes of docstrings, the packages with most of them
LEAST_WORDS = 4  # of a docstring
NOT_OURS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3", "__pycache__"}


class TextSet(NamedTuple):
    """Texts, and the label of each."""

    name: str
    texts: list[str]
    labels: list[str]

    def some(self, most: int, seed: int = 0) -> TextSet:
        """A sample, in random order."""
        order = np.random.default_rng(seed).permutation(len(self.texts))[:most].tolist()
        return TextSet(self.name, [self.texts[row] for row in order], [self.labels[row] for row in order])


def docstrings() -> TextSet:
    """The docstrings of functions, methods and classes, each with the package that it stands in."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if NOT_OURS & set(parts) or len(parts) < 2:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            text = ast.get_docstring(node) if is_named else None  # type: ignore[arg-type]
            if text and len(text.split()) >= LEAST_WORDS:
                found.setdefault(text, parts[0])
    frequent = {name for name, _ in Counter(found.values()).most_common(PACKAGES)}
    kept = [(text, name) for text, name in found.items() if name in frequent]
    return TextSet("docstrings", [text for text, _ in kept], [name for _, name in kept])


def load_texts(folder: Path | None) -> list[TextSet]:
    """Docstrings, and for each CSV file of a folder its columns `text` and `label`; equal texts once."""
    sets = [docstrings()]
    for path in sorted([] if folder is None else folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = {row["text"]: row["label"] for row in csv.DictReader(file)}
        sets.append(TextSet(path.stem, list(rows), list(rows.values())))
    return [each.some(MOST_ROWS) for each in sets]

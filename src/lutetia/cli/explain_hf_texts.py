"""`lutetia explain --hf --texts FILE`: the classes of many texts, and which words spoke for which class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from lutetia._shared.markup import tag
from lutetia.cli import hf_shared
from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.show import Progress, console, one_line, print_warning
from lutetia.errors import DataError
from lutetia.files import read_bytes
from lutetia.relevance import pictures
from lutetia.training import is_table, read_table_file

WORDS = 8  # of each class, in the terminal
USUAL = "text"  # the name of a column that needs not be named
LISTED = 5  # rows that a warning names


class TextFile(NamedTuple):
    """The texts of a file, and what each row is called."""

    column: str | None  # None for a file of lines
    texts: list[str]
    lines: list[int]  # where each is in the file


def read_texts(path: Path, column: str | None) -> TextFile:
    """The texts in a column of a table, or the lines of a file of text."""
    if path.is_dir() or not is_table(path):
        if column is not None:
            raise UsageError(f"--column is for tables, and {path} is a file of lines")
        lines = read_bytes(path, "a file of texts").decode("utf-8-sig", "replace").splitlines()
        told = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not told:
            raise DataError(f"{path} has no texts, expected one in each line")
        return TextFile(None, [line for _, line in told], [number for number, _ in told])
    try:
        file = read_table_file(path)
    except DataError as error:
        if "columns, expected" not in str(error):
            raise
        raise DataError(f"{error}; a text with commas needs quotes around it, and a file of lines the ending .txt") from error
    if not file.columns:
        raise DataError(f"{path} has no columns of text")
    name = _column(path, list(file.columns), column)
    cells = file.columns[name]
    return TextFile(name, ["" if cell is None else str(cell) for cell in cells], file.lines or list(range(1, len(cells) + 1)))


def _column(path: Path, names: Sequence[str], wanted: str | None) -> str:
    """The column of texts: as it was named, in any case; else the only one, or the one called text."""
    alike = [name for name in names if name.casefold() == (wanted or USUAL).casefold()]
    if wanted in names:
        return str(wanted)
    if len(alike) == 1:
        return alike[0]
    if wanted is not None:
        raise UsageError(f"{path} has no column {wanted!r}: {did_you_mean(wanted, names)}")
    if len(names) == 1:
        return names[0]
    listed = ", ".join(map(repr, map(one_line, names[:20])))
    raise UsageError(f"{path} has {len(names)} columns ({listed}), expected --column NAME: the one with the texts")


def explain_hf_texts(model: Any, tokenizer: Any, request: hf_shared.HfRequest, show: bool) -> dict[str, Any]:
    """The classes of the texts of a file."""
    from lutetia.integrations.transformers import explain_text_classes

    assert request.texts is not None
    read = read_texts(request.texts, request.column)
    rules = hf_shared.rules_of(request, tokenizer)
    with Progress("texts", len(read.texts), show) as bar:
        found = explain_text_classes(
            model,
            tokenizer,
            read.texts,
            request.target,
            request.against,
            rules,
            lambda done, _: bar.advance(done - bar.done),
        )
    told = {
        "kind": "transformers",
        "model": model.config.model_type,
        **hf_shared.rule_told(request),
        "file": str(request.texts),
        "column": read.column,
        "classes": found.names,
        "texts": [
            {
                **row,
                "line": read.lines[each.row],
                "scores": each.logits.tolist(),
                "n_cut": each.n_cut,
                "words": [
                    {"text": word, "relevance": value} for word, value in zip(each.words, each.word_relevance, strict=True)
                ],
                "tokens": each.tokens,
                "pieces": each.pieces,
                "relevance": each.relevance.tolist(),
            }
            for each, row in zip(found.texts, found.table(), strict=True)
        ],
        "skipped": [{"row": row, "line": read.lines[row], "why": why} for row, why in found.skipped.items()],
        "summary": {
            name: {way: [{**asdict(share), "mean": share.mean} for share in shares] for way, shares in ways.items()}
            for name, ways in found.summary().items()
        },
    }
    if request.html is not None:
        title = f"Which words make the classes of {request.texts.name}"
        pictures.page(tag("p", hf_shared.about(request)), found.to_html(), title=title, path=request.html)
    if show:
        _show(found, read, request)
    return told


def _show(found: Any, read: TextFile, request: hf_shared.HfRequest) -> None:
    """How many texts have which class, and the words that spoke for and against each class."""
    screen = console()
    cut = [each for each in found.texts if each.n_cut]
    for rows, what in (
        ([each.row for each in cut], "longer than the model can read, and cut"),
        (list(found.skipped), "without words, and skipped"),
    ):
        if rows:
            listed = ", ".join(f"{read.lines[row]:,}" for row in rows[:LISTED]) + (" ..." if len(rows) > LISTED else "")
            verb, lines = ("is", "line") if len(rows) == 1 else ("are", "lines")
            print_warning(f"{len(rows):,} of {len(read.texts):,} texts {verb} {what} ({lines} {listed})")
    counts = Counter(each.prediction for each in found.texts)
    for name, ways in found.summary(WORDS).items():
        number = counts[found.names.index(name)]
        screen.print(Text(f"{one_line(name)}: {number:,} of {len(found.texts):,} texts"), soft_wrap=True)
        for way, shares in ways.items():
            words = ", ".join(f"{one_line(share.word)} {share.total:+.3g}" for share in shares)
            if words:
                screen.print(Text(f"  {way:7} {words}"), soft_wrap=True)
    compared = "the class with the best score, rather than the next" if request.target is None else f"{request.target}"
    line = f"shown: what each word did for {compared}, added up over all texts (rule {request.rule})"
    screen.print(Text(line), soft_wrap=True)

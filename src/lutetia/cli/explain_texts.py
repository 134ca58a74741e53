"""Texts in `lutetia explain`: the columns of text of a row, and their words marked on the screen."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rich.text import Text

from lutetia.cli.inputs import NamedInputs
from lutetia.cli.pictures import token_strip
from lutetia.cli.show import console, one_line
from lutetia.models import Classifier, Tabular
from lutetia.report import MarkedText, by_data_column, column_lines, input_texts, marked_texts
from lutetia.training import as_texts, without_words


def texts_of(model: Classifier, sample: NamedInputs) -> dict[str, str | None]:
    """The texts of a sample, by the columns of text that the model was trained on."""
    words, columns = model.metadata.get("missing", []), sample.columns or sample.typed or {}
    return {name: as_texts(without_words(columns[name], words))[0] for name in model.metadata.get("texts", ()) if name in columns}


def by_column(
    model: Classifier, relevance: torch.Tensor, texts: Mapping[str, str | None]
) -> tuple[torch.Tensor, list[MarkedText]]:
    """Relevance of inputs as that of the columns of the data, and the texts with the relevance of their words."""
    if not isinstance(model, Tabular) or not {"texts", "windows"} & set(model.metadata):
        return relevance, []
    own = relevance.double().numpy()
    return torch.from_numpy(by_data_column(model, own)), marked_texts(model, own, texts)


def column_lines_of(model: Classifier, x: torch.Tensor, texts: Mapping[str, str | None]) -> list[str]:
    """Each column of a sample with its value, fit for a terminal; none of an image."""
    if x.dim() > 1:
        return []
    lines = input_texts(model, x)
    is_made = isinstance(model, Tabular) and {"texts", "windows"} & set(model.metadata)
    return [one_line(each) for each in (column_lines(model, lines, texts) if is_made else lines)]  # type: ignore[arg-type]


def show_texts(marked: list[MarkedText]) -> None:
    """Texts with their words marked, or without colours the words that counted most."""
    screen = console()
    for each in marked:
        pieces = each.pieces()
        if screen.color_system is None or screen.no_color:
            screen.print(Text(one_line(each.told())), soft_wrap=True)
            continue
        screen.print(Text(f"{one_line(each.column)}: "), end="")
        screen.print(token_strip(screen, [piece for piece, _ in pieces], [value for _, value in pieces]), end="", soft_wrap=True)

"""The columns of a table as other methods take them, learned from the rows that these are fitted to.

Numbers stay as they are. Dates are seconds, and the parts of them that tables compare. A text is the TF-IDF of the words in it.
Categories are their numbers, or a column each; missing numbers stay missing, or become the median.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lutetia.models import Grams, date_part, varying_parts
from lutetia.training import Shape, TabularRows

Array = np.ndarray[Any, Any]
MOST_WORDS = 300  # of each text, the most frequent, where they become columns of numbers that may be missing
MOST_ONE_HOT = 50  # columns that are made of one column of categories


class NumberColumns:
    """All columns as numbers float64 [n, columns], NaN for what is missing: categories are numbered, words are columns."""

    def __init__(self, rows: TabularRows, shape: Shape, most_words: int | None = MOST_WORDS) -> None:
        self.parts = [(column, part) for column in sorted(shape.dates) for part in varying_parts(rows.x[:, column])]
        self.words = [Words(own, most_words) for own in rows.texts]
        self.is_category = [count > 0 for count in shape.n_categories] + [False] * len(self.parts)

    def numbers(self, rows: TabularRows) -> Array:
        """All columns but those of texts."""
        made = [date_part(rows.x[:, column], part)[:, None] for column, part in self.parts]
        return np.concatenate([rows.x, *made], 1)

    def made(self, rows: TabularRows) -> Any:
        """The columns of rows."""
        words = [own.weights(texts).toarray() for own, texts in zip(self.words, rows.texts, strict=True)]
        return np.concatenate([self.numbers(rows), *words], 1)

    def category_columns(self) -> list[int]:
        """The numbers of the columns that hold categories."""
        return [number for number, is_category in enumerate(self.is_category) if is_category]


class CategoryColumns(NumberColumns):
    """The same with a column for each category: NaN stays for missing numbers."""

    def __init__(self, rows: TabularRows, shape: Shape) -> None:
        super().__init__(rows, shape)
        self.encoder = _encoder(self.category_columns(), "passthrough").fit(self.numbers(rows))

    def made(self, rows: TabularRows) -> Any:
        """The columns of rows."""
        words = [own.weights(texts).toarray() for own, texts in zip(self.words, rows.texts, strict=True)]
        return np.concatenate([self.encoder.transform(self.numbers(rows)), *words], 1)


class ScaledColumns(NumberColumns):
    """For linear models: numbers of mean 0 and spread 1, medians for what is missing and a column that says so, a column for each
    category, and all words."""

    def __init__(self, rows: TabularRows, shape: Shape) -> None:
        super().__init__(rows, shape, None)
        fill = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
        numbers, scaled = self.numbers(rows), make_pipeline(fill, StandardScaler())
        self.encoder = _encoder(self.category_columns(), scaled).fit(numbers) if numbers.shape[1] else None

    def made(self, rows: TabularRows) -> Any:
        """The columns of rows, sparse where there are texts."""
        numbers = None if self.encoder is None else self.encoder.transform(self.numbers(rows))
        if not self.words:
            return numbers
        words = [own.weights(texts) for own, texts in zip(self.words, rows.texts, strict=True)]
        return sparse.hstack([*([] if numbers is None else [sparse.csr_matrix(numbers)]), *words], format="csr")


class Words:
    """The words of a column of text, without pairs; those that occur most if they are limited."""

    def __init__(self, own: Grams, most: int | None) -> None:
        is_word = np.array([" " not in gram for gram in own.known], bool)
        held = np.where(is_word, np.bincount(own.numbers, minlength=len(own.known)), 0)
        order = np.argsort(-held, kind="stable")[:most]
        self.chosen = np.sort(order[held[order] > 0])
        self.tfidf = TfidfTransformer().fit(self._counts(own)) if len(self.chosen) else None

    def _counts(self, own: Grams) -> Any:
        shape = (len(own), len(own.known))
        return sparse.csr_matrix((np.ones(len(own.numbers)), own.numbers, own.starts), shape)[:, self.chosen]

    def weights(self, own: Grams) -> Any:
        """TF-IDF of texts, a sparse matrix [n, words]."""
        return self._counts(own) if self.tfidf is None else self.tfidf.transform(self._counts(own))


def _encoder(categories: list[int], others: Any) -> ColumnTransformer:
    """Categories as a column each, at most so many; what is missing is one, and what was not seen none."""
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MOST_ONE_HOT, sparse_output=False)
    return ColumnTransformer([("categories", one_hot, categories)], remainder=others, sparse_threshold=0)

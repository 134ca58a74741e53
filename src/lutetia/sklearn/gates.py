"""`GateClassifier`: a classifier that is gates by construction, one-bit tables whose votes are counted."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from lutetia.errors import fail
from lutetia.models import TOP_CODE, Gates, Votes, check_sizes
from lutetia.sklearn.base import TabularEstimator
from lutetia.sklearn.boosted import ClassifierTarget
from lutetia.sklearn.checks import check_params
from lutetia.training import Shaping, TabularRows, encode_rows, fit, make_tabular

JUDGED = 4096  # samples that tables are judged by before some are pruned


class GateClassifier(ClassifierTarget, TabularEstimator):
    """Columns become bits, by comparison with `n_thresholds` quantiles; every one of `n_tables` tables reads `n_anchors` bits,
    which are also learned, and votes for its class or not. The class with the most votes wins: the network is its own circuit.
    `hidden` is the number of tables in each layer in between. With them fewer tables have to vote.

    `image_shape` (height, width) says that the columns are the pixels of an image; with `windows` each table sees a square of
    that many pixels a side. `prune` is the fraction of tables that become constants, step by step, `freeze` the fraction of the
    training after which the wiring stays.

    Trained by gradient for `max_epochs` over the data, or until an `eval_set` or `early_stopping` sees no progress.
    """

    def __init__(
        self,
        n_tables: int = 1000,
        n_anchors: int = 6,
        *,
        n_thresholds: int = 15,
        hidden: tuple[int, ...] = (),
        image_shape: tuple[int, int] | None = None,
        windows: int = 0,
        prune: float = 0.0,
        freeze: float = 1.0,
        max_epochs: int = 40,
        batch_size: int = 128,
        learning_rate: float = 0.02,
        max_bins: int = 255,
        categorical_features: Any = "from_dtype",
        handle_unknown: str = "error",
        class_weight: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_tables, self.n_anchors, self.n_thresholds, self.hidden = n_tables, n_anchors, n_thresholds, hidden
        self.image_shape, self.windows, self.prune, self.freeze = image_shape, windows, prune, freeze
        self.max_epochs, self.batch_size, self.learning_rate = max_epochs, batch_size, learning_rate
        self.max_bins, self.categorical_features, self.handle_unknown = max_bins, categorical_features, handle_unknown
        self.class_weight, self.early_stopping, self.validation_fraction = class_weight, early_stopping, validation_fraction
        self.n_iter_no_change, self.random_state, self.n_jobs, self.verbose = n_iter_no_change, random_state, n_jobs, verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Self:
        """Fit to X [n, columns] and classes y [n] of any kind."""
        check_params(self, PARAMS)
        for name, nothing in (("prune", 0), ("freeze", 1)):
            if getattr(self, name) != nothing and not self.hidden and not self.windows:
                fail(name, getattr(self, name), f"{nothing} without hidden layers or windows")
        rows = self._weighted(self._rows(X, y, sample_weight))
        own, valid = self._held_out(rows, eval_set)
        n_classes, seed = len(self.classes_), self._seed()
        encoding = encode_rows(own, self._shape(n_classes), int(self.max_bins))
        per_class = max(1, round(self.n_tables / n_classes))
        self.model_ = make_tabular(
            encoding,
            self._shape(n_classes),
            seed=seed,
            core="gates",
            n_tables=per_class * n_classes,
            n_anchors=self.n_anchors,
            gate_codes=self._codes(encoding.tops()),
            gate_hidden=tuple(self.hidden),
            gate_shape=() if self.image_shape is None else check_sizes("image_shape", self.image_shape, (2,)),
            gate_windows=self.windows,
            temperature=max(1.0, 0.07 * per_class),
        )
        self._train(own, valid, seed)
        self.model_.metadata = {**self._describe_data(rows), **self._describe_target()}
        self.n_tables_ = self.model_.config.n_tables
        return self

    def _codes(self, tops: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Codes to compare with: 0, for what is missing, and others evenly spread up to the largest."""
        top = min(TOP_CODE, max(2, int(tops.max())))
        return tuple(np.unique(np.linspace(0, top - 1, self.n_thresholds + 1).astype(int)).tolist())

    def _train(self, rows: TabularRows, valid: TabularRows | None, seed: int) -> None:
        core = self.model_.core
        assert isinstance(core, Votes)
        x = self._inputs(rows)
        shaping = None
        if isinstance(core, Gates):
            judged = x[:JUDGED], torch.from_numpy(rows.y[:JUDGED])
            shaping = Shaping(core, self.prune, self.freeze, lambda: [judged])
        with self._progress(self.max_epochs) as each:
            history = fit(
                core,
                (x, rows.y, rows.weight),
                valid=None if valid is None else (self._inputs(valid), valid.y, valid.weight),
                epochs=self.max_epochs,
                batch_size=min(self.batch_size, len(rows.y)),
                lr=self.learning_rate,
                patience=self.n_iter_no_change if valid is not None else None,
                seed=seed,
                each=each,
                before_step=shaping,
                after_step=core.clamp_,
            )
        self.n_iter_, self.losses_ = history["epochs"], history["losses"]

    def _inputs(self, rows: TabularRows) -> torch.Tensor:
        codes = self.model_.encoding.codes(rows.x, self._threads())
        return torch.from_numpy(np.ascontiguousarray(codes.T)).float()


PARAMS: dict[str, tuple[type | tuple[type, ...], float, float]] = {
    "n_tables": (int, 2, np.inf),
    "n_anchors": (int, 1, 8),
    "n_thresholds": (int, 1, 254),
    "windows": (int, 0, np.inf),
    "prune": ((int, float), 0, 0.9),
    "freeze": ((int, float), 0, 1),
    "max_epochs": (int, 1, np.inf),
    "batch_size": (int, 1, np.inf),
    "learning_rate": ((int, float), 1e-12, np.inf),
    "max_bins": (int, 2, 255),
    "n_iter_no_change": (int, 1, np.inf),
}

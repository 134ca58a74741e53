"""Models of trees in files: which library wrote one, and its ensemble. Nothing is unpickled."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from lutetia.errors import ArgumentError, DataError, LutetiaError
from lutetia.files import path_of, read_bytes
from lutetia.integrations.trees.catboost import read_catboost
from lutetia.integrations.trees.ensemble import Ensemble
from lutetia.integrations.trees.lightgbm import read_lightgbm
from lutetia.integrations.trees.tables import Imported, to_tabular
from lutetia.integrations.trees.ubjson import is_ubjson, read_ubjson
from lutetia.integrations.trees.xgboost import read_xgboost

MOST_BYTES = 1 << 30
WANTED = "a model of trees: LightGBM's text, XGBoost's JSON or UBJSON, or CatBoost's JSON"
PICKLES = (b"\x80", b"\x1f\x8b", b"PK\x03\x04", b"x\x9c", b"BZh", b"\xfd7zXZ")  # of pickle, joblib and skops
TYPED = "from lutetia.integrations.trees import from_trees; from_trees(model).save(FOLDER)"


def read_trees(
    path: str | os.PathLike[str],
    feature_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    n_anchors: int | None = None,
    missing: str = "seen",
) -> Imported:
    """The model of tables that predicts as a file of LightGBM (text), XGBoost (JSON, UBJSON) or CatBoost (JSON) does.

    Names of columns and classes replace those of the file, which often has none. A table asks `n_anchors` questions; by default
    as many as make the fewest rows.
    """
    ensemble = read_ensemble(path)
    try:
        return to_tabular(ensemble, feature_names, class_names, n_anchors, missing)
    except LutetiaError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from error


def read_ensemble(path: str | os.PathLike[str]) -> Ensemble:
    """The trees of a file."""
    data = read_bytes(path_of(path), WANTED, MOST_BYTES)
    try:
        return parse(data)
    except LutetiaError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from error


def parse(data: bytes) -> Ensemble:
    """The ensemble that the bytes of a file hold."""
    if is_ubjson(data):
        return read_xgboost(read_ubjson(data))
    if data.startswith(b"CBM1"):
        raise ArgumentError('this is CatBoost\'s binary format, expected its JSON: model.save_model("model.json", format="json")')
    if data.startswith(b"binf") or data.startswith(PICKLES):
        raise ArgumentError(f"this is a pickle or another binary file, which is not read, expected {WANTED}. In Python: {TYPED}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"this is not UTF-8 text ({error}), expected {WANTED}") from None
    if text.lstrip().startswith("tree\n") or text.lstrip().startswith("tree\r\n"):
        return read_lightgbm(text.replace("\r\n", "\n"))
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise DataError("this JSON is nested too deeply") from None
    except ValueError as error:
        raise DataError(f"this is no JSON ({error}), expected {WANTED}") from None
    if isinstance(document, dict) and "learner" in document:
        return read_xgboost(document)
    if isinstance(document, dict) and "features_info" in document:
        return read_catboost(document)
    raise DataError(f"this JSON is no model that is known here, expected {WANTED}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The values of an object, whose names differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise DataError(f"the document names {twice!r} twice, expected it once")
    return found

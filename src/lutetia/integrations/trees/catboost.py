"""CatBoost's JSON model, as `save_model(path, format="json")` writes it.

A value is above a border or not, both as 32-bit floats. In a symmetric tree the answer to test i is bit i of the
number of the leaf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.losses import RANKING as RANKING_LOSS
from lutetia._shared.losses import Loss
from lutetia.errors import DataError
from lutetia.integrations.trees.ensemble import (
    CLASSES,
    MOST_COLUMNS,
    MOST_NODES,
    MOST_OUTPUTS,
    NUMBER,
    RANKING,
    Choice,
    Ensemble,
    Split,
    Tree,
    choice,
    numbers,
    refuse,
)
from lutetia.integrations.trees.fields import at, floats, items, mapping, number, text, whole, wholes
from lutetia.integrations.trees.single import cut_above
from lutetia.models import MISSING_WORDS

IDENTITY = {"RMSE": "squared_error", "MAE": "absolute_error", "MAPE": "absolute_error", "Huber": "squared_error"}
IDENTITY |= {"LogCosh": "squared_error", "Lq": "squared_error", "Expectile": "squared_error"}
LOGS = ("Poisson", "Tweedie")
RANKERS = ("YetiRank", "YetiRankPairwise", "PairLogit", "PairLogitPairwise", "QueryRMSE", "QuerySoftMax", "StochasticRank")
DEEPEST = 16  # of a symmetric tree, as in CatBoost
OTHERS = {"text_features": "texts", "embedding_features": "embeddings"}
PLAIN_NUMBER = re.compile(r"0|[1-9]\d{0,8}")
HASHED = 0xFFFFFFFF  # the bits of the number of a category


def read_catboost(document: Any) -> Ensemble:
    """The ensemble of a document."""
    info = mapping(document, "features_info")
    for key, what in OTHERS.items():
        if info.get(key):
            raise refuse(f"the model reads columns of {what}", "numbers and categories")
    if info.get("ctrs"):
        raise refuse(
            "the model computes statistics of its categories (CTR)",
            "tests of single ones: fit it with a one_hot_max_size of at least the number of categories of each column",
        )
    features = _columns(info)
    columns, chosen = features.columns, features.chosen
    scale, base = _scale(document)
    task, loss = _objective(document, len(base))
    oblivious = "oblivious_trees" in document
    given = items(document, "oblivious_trees" if oblivious else "trees")
    read = _symmetric if oblivious else _other
    trees = [read(each, f"tree {at}", features, scale, len(base)) for at, each in enumerate(given)]
    classes = (document.get("model_info", {}).get("class_params") or {}).get("class_names") if task == CLASSES else None
    return Ensemble(
        "CatBoost", trees, 1 + max([*columns, *chosen]), base, task, loss,
        names=_names(info, features), classes=_classes(classes),
        whole=_whole(info, columns), categories=dict(zip(chosen, features.values, strict=True)),
        unknown="error" if any(_is_missing(own[at]) for own, asked in zip(features.values, features.places, strict=True)
                               for at in asked.values()) else "missing",
    )  # fmt: skip


class Features(NamedTuple):
    """Of each feature of numbers the column, and whether what is missing is above all borders; of each feature of categories the
    column, and the values that trees ask for and the number of each by its hash."""

    columns: list[int]
    after: list[bool]
    chosen: list[int]
    values: list[list[Any]]
    places: list[dict[int, int]]


def _columns(info: dict[str, Any]) -> Features:
    found = Features([], [], [], [], [])
    for each in _listed(info, "float_features", found.columns):
        treated = each.get("nan_value_treatment", "AsIs")
        if treated not in ("AsIs", "AsFalse", "AsTrue"):
            raise DataError(f"nan_value_treatment is {treated!r}, expected AsIs, AsFalse or AsTrue")
        found.after.append(treated == "AsTrue")
    words = {whole(each, "hash") & HASHED: text(each, "value") for each in _told(info, "cat_features_hash")}
    for each in _listed(info, "categorical_features", found.chosen):
        hashes = list(dict.fromkeys(number & HASHED for number in (wholes(each, None, "values") if "values" in each else [])))
        if any(number not in words for number in hashes):
            raise refuse(
                "the model does not name its categories",
                'the names: model.save_model("model.json", format="json", pool=POOL), where POOL holds the training data',
            )
        found.values.append(_values([words[number] for number in hashes], list(words.values())))
        found.places.append({number: place for place, number in enumerate(hashes)})
    every = [*found.columns, *found.chosen]
    if not every or len(set(every)) < len(every):
        raise DataError(f"the model has {len(every)} columns, expected one at least, and each once")
    return found


def _told(info: dict[str, Any], key: str) -> list[Any]:
    """A list; none where it is not told."""
    return items(info, key) if info.get(key) is not None else []


def _listed(info: dict[str, Any], key: str, columns: list[int]) -> Iterator[dict[str, Any]]:
    """The features of a kind, in order; their columns are added to a list."""
    for place, each in enumerate(_told(info, key)):
        if whole(each, "feature_index") != place:
            raise DataError(f"{key} has feature {each['feature_index']} in place {place}, expected them in order")
        columns.append(whole(each, "flat_feature_index"))
        if not 0 <= columns[-1] < MOST_COLUMNS:
            raise DataError(f"a feature is column {columns[-1]:,}, expected 0 to {MOST_COLUMNS - 1:,}")
        yield each


def _values(asked: list[str], words: list[str]) -> list[Any]:
    """The values of a column of which trees ask for some: whole numbers, where all are written as such, or these and all other
    words of the model, as it does not say whose they are."""
    if all(PLAIN_NUMBER.fullmatch(word) for word in asked):
        return [int(word) for word in asked]
    return list(dict.fromkeys([*asked, *words]))


def _is_missing(value: Any) -> bool:
    """Whether a category is a word for no value, which commands read as missing: CatBoost itself takes no missing category."""
    return str(value).strip().lower() in MISSING_WORDS


def _whole(info: dict[str, Any], columns: list[int]) -> frozenset[int]:
    """The columns in which nothing was missing."""
    told = info.get("float_features") or []
    return frozenset(own for own, each in zip(columns, told, strict=True) if not each.get("has_nans", True))


def _names(info: dict[str, Any], features: Features) -> list[str] | None:
    told = [*(info.get("float_features") or []), *(info.get("categorical_features") or [])]
    columns = [*features.columns, *features.chosen]
    names = {column: str(each.get("feature_id", "")) for column, each in zip(columns, told, strict=True)}
    if all(name in ("", str(column)) for column, name in names.items()):
        return None
    return [names.get(column, f"x{column}").strip() or f"x{column}" for column in range(1 + max(columns))]


def _classes(names: Any) -> list[Any] | None:
    if not isinstance(names, list) or not all(isinstance(name, str | int | float) for name in names):
        return None
    return names or None


def _scale(document: Any) -> tuple[float, np.ndarray[Any, Any]]:
    """What leaves are multiplied by, and what the trees are added to."""
    if "scale_and_bias" not in document:
        return 1.0, np.zeros(1)
    scale = number(document, "scale_and_bias", 0)
    bias = at(document, "scale_and_bias", 1)
    base = floats({"bias": bias if isinstance(bias, list) else [bias]}, None, "bias")
    if not 1 <= len(base) <= MOST_OUTPUTS:
        raise DataError(f"the bias has {len(base):,} numbers, expected 1 to {MOST_OUTPUTS:,}")
    return scale, np.array(base)


def _objective(document: Any, outputs: int) -> tuple[str, Loss]:
    told = at(document, "model_info", "params", "loss_function")
    name = told if isinstance(told, str) else text(told, "type")
    params = {} if isinstance(told, str) else told.get("params") or {}
    name = name.partition(":")[0]
    if (name, outputs) in (("Logloss", 1), ("CrossEntropy", 1)) or (name == "MultiClass" and outputs > 1):
        return CLASSES, Loss()
    if outputs == 1:
        if name == "Quantile":
            level = float(params.get("alpha", 0.5)) if isinstance(params.get("alpha", 0.5), str | int | float) else 0.5
            return NUMBER, Loss("quantile", level if 0 < level < 1 else 0.5)
        if name in IDENTITY:
            return NUMBER, Loss(IDENTITY[name])
        if name in LOGS:
            return NUMBER, Loss("poisson")
        if name in RANKERS:
            return RANKING, Loss(RANKING_LOSS)
    raise refuse(
        f"the loss is {name!r} of {outputs} outputs",
        f"one of Logloss, CrossEntropy, MultiClass, Quantile, {', '.join((*IDENTITY, *LOGS, *RANKERS))}",
    )


def _test(split: Any, where: str, features: Features) -> Split | Choice:
    kind = text(split, "split_type") if "split_type" in mapping(split) else "FloatFeature"
    if kind not in ("FloatFeature", "OneHotFeature"):
        raise refuse(f"{where} has a test of the kind {kind}", "FloatFeature or OneHotFeature: a border, or one category")
    is_number = kind == "FloatFeature"
    feature = whole(split, "float_feature_index" if is_number else "cat_feature_index")
    columns = features.columns if is_number else features.chosen
    if not 0 <= feature < len(columns):
        raise DataError(f"{where} asks for feature {feature}, expected 0 to {len(columns) - 1}")
    if is_number:
        border = float(np.float32(number(split, "border")))
        return numbers(columns[feature], cut_above(border), features.after[feature])
    place = features.places[feature].get(whole(split, "value") & HASHED)
    if place is None:
        raise DataError(f"{where} asks for category {split['value']}, which feature {feature} does not list")
    values = features.values[feature]
    others = _is_missing(values[place]), False
    return choice(columns[feature], [place], len(values), goes_right=True, others=others)


def _symmetric(tree: Any, where: str, features: Features, scale: float, outputs: int) -> Tree:
    """A tree that asks the same at all nodes of a level: test i decides bit i of the leaf, so the last is asked first here."""
    splits = items(tree, "splits") if mapping(tree).get("splits") is not None else []
    depth = len(splits)
    if depth > DEEPEST:
        raise DataError(f"{where} has {depth} tests, expected at most {DEEPEST}")
    values = np.array(floats(tree, outputs << depth, "leaf_values")).reshape(-1, outputs) * scale
    asked = [_test(each, where, features) for each in reversed(splits)]
    tests: list[Split | Choice | None] = [test for level, test in enumerate(asked) for _ in range(1 << level)]
    inner = len(tests)
    left = [2 * node + 1 for node in range(inner)] + [0] * (1 << depth)
    right = [2 * node + 2 for node in range(inner)] + [0] * (1 << depth)
    everything = np.concatenate([np.zeros((inner, outputs)), values])
    return Tree([*tests, *([None] * (1 << depth))], left, right, everything, None)


def _other(tree: Any, where: str, features: Features, scale: float, outputs: int) -> Tree:
    """A tree whose nodes hold each other."""
    tests: list[Split | Choice | None] = []
    left: list[int] = []
    right: list[int] = []
    values: list[list[float]] = []
    waiting: list[tuple[Any, list[int] | None, int]] = [(tree, None, 0)]  # a node, and where its number is written
    while waiting:
        node, branches, parent = waiting.pop()
        place = len(tests)
        if place >= MOST_NODES:
            raise DataError(f"{where} has more than {MOST_NODES:,} nodes")
        if branches is not None:
            branches[parent] = place
        left.append(0)
        right.append(0)
        if "split" in mapping(node):
            tests.append(_test(node["split"], where, features))
            values.append([0.0] * outputs)
            waiting += [(at(node, "right"), right, place), (at(node, "left"), left, place)]
        else:
            tests.append(None)
            found = at(node, "value")
            values.append(floats({"value": found if isinstance(found, list) else [found]}, outputs, "value"))
    return Tree(tests, left, right, np.array(values, np.float64) * scale, None)

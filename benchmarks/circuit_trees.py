"""Gradient-boosted trees as circuits: shared comparators, a table for each part of a tree, a sum of leaves per class, argmax.

Leaves are rounded to a few bits of one scale, as TreeLUT does (arXiv 2501.01511): what a tree adds starts at zero, and the rest
is an offset per class.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from lutetia.precompute import (
    Binary,
    Builder,
    Compare,
    Graph,
    Input,
    Lookup,
    StreamEdge,
    Sum,
    Table,
    TableData,
    UInt,
    argmax_node,
    domain_for,
)

WIDEST = 8  # comparisons that one table reads
Node = dict[str, Any]  # of XGBoost's JSON: a split with children, or a leaf


@dataclass
class Trees:
    """Trees [rounds · outputs] of whole leaves from 0 up, the class of each, and an offset per class."""

    roots: list[Node]
    classes: list[int]
    offsets: list[int]


def boosted(x: np.ndarray, y: np.ndarray, rounds: int, depth: int, leaf_bits: int, seed: int) -> Trees:
    """Train XGBoost on whole numbers x [n, n_inputs], and round its leaves."""
    import xgboost

    options = {"max_depth": depth, "learning_rate": 0.3, "tree_method": "hist", "subsample": 0.8, "seed": seed, "verbosity": 0,
               "objective": "multi:softprob", "num_class": int(y.max()) + 1, "nthread": 1, "base_score": 0.5}  # fmt: skip
    model = xgboost.train(options, xgboost.DMatrix(x.astype(np.float32), y), rounds)
    roots = [json.loads(text) for text in model.get_dump(dump_format="json")]
    n_classes = int(y.max()) + 1
    spans = [np.ptp(_leaves(root)) for root in roots]
    step = max(spans) / (2**leaf_bits - 1) or 1.0
    offsets = np.zeros(n_classes)
    for number, root in enumerate(roots):
        least = min(_leaves(root))
        offsets[number % n_classes] += least
        _round(root, least, step)
    offsets -= offsets.min()  # the same for all classes: which one is largest stays
    return Trees(roots, [number % n_classes for number in range(len(roots))], [round(each / step) for each in offsets])


def _leaves(node: Node) -> list[float]:
    return [node["leaf"]] if "leaf" in node else [leaf for child in node["children"] for leaf in _leaves(child)]


def _round(node: Node, least: float, step: float) -> None:
    if "leaf" in node:
        node["leaf"] = round((node["leaf"] - least) / step)
    for child in node.get("children", ()):
        _round(child, least, step)


def _split(node: Node) -> tuple[int, int]:
    """The comparison of a node, whose answer 1 leads to "no": input > constant."""
    return int(node["split"].removeprefix("f")), int(np.ceil(node["split_condition"])) - 1


def _splits(node: Node) -> list[tuple[int, int]]:
    return [] if "leaf" in node else [_split(node), *(split for child in node["children"] for split in _splits(child))]


def _child(node: Node, answer: int) -> Node:
    wanted = node["no"] if answer else node["yes"]
    return next(child for child in node["children"] if child["nodeid"] == wanted)


def _value(node: Node, answers: dict[tuple[int, int], int]) -> Any:
    """The leaf that the answers lead to, or the part (a node) where they end."""
    while "leaf" not in node and _split(node) in answers:
        node = _child(node, answers[_split(node)])
    return node


def trees_graph(trees: Trees, n_inputs: int, bits: int = 8) -> Graph:
    """The stream graph: inputs of `bits` bits -> the class; trees of up to five levels."""
    splits = sorted({split for root in trees.roots for split in _splits(root)})
    place = {split: number for number, split in enumerate(splits)}
    builder = Builder()
    edge = StreamEdge((UInt(bits),) * n_inputs)
    node = builder.add(Input((), edge))
    left = np.array([feature for feature, _ in splits], dtype=np.int64)
    constants = np.array([constant for _, constant in splits], dtype=np.int64)
    lanes = edge.carrying([Binary()] * len(splits))
    node = builder.add(Compare((node,), lanes, left, np.full(len(splits), -1), constants, name="bits"))
    parts, wholes, widths = _lower(trees, place)
    for name, (reads, rows) in (("parts", parts), ("trees", wholes)):
        tables = tuple(TableData(own[:, None].astype(np.int64), (1,)) for own in rows)
        lookups = tuple(Lookup(at, tuple(own), (at,)) for at, own in enumerate(reads))
        node = builder.add(Table((node,), edge.carrying([Binary()] * len(rows)), tables, lookups, name=name))
    return Graph(builder.nodes, argmax_node(builder, builder.add(_sum(trees, widths, node, edge))))


def _sum(trees: Trees, widths: list[int], source: int, edge: StreamEdge) -> Sum:
    """The leaves of each class, bit by bit."""
    n_classes = len(trees.offsets)
    index: list[list[int]] = [[] for _ in range(n_classes)]
    weights: list[list[int]] = [[] for _ in range(n_classes)]
    bit = 0
    for owner, width in zip(trees.classes, widths, strict=True):
        index[owner] += range(bit, bit + width)
        weights[owner] += [1 << each for each in range(width)]
        bit += width
    start = np.cumsum([0, *map(len, index)]).astype(np.int64)
    totals = edge.carrying([domain_for(low, low + sum(own)) for low, own in zip(trees.offsets, weights, strict=True)])
    flat, coefficients = (np.array([each for own in lists for each in own], dtype=np.int64) for lists in (index, weights))
    return Sum((source,), totals, start, flat, coefficients, np.array(trees.offsets, dtype=np.int64), name="scores")


Layer = tuple[list[list[int]], list[np.ndarray]]


def _lower(trees: Trees, place: dict[tuple[int, int], int]) -> tuple[Layer, Layer, list[int]]:
    """Two layers of one-bit tables, what each reads (highest address bit first) and its rows; the bits of each tree.

    A tree of few comparisons is one table per bit, in the second layer; of a larger one the two topmost levels choose there
    between the parts below, which the first layer holds.
    """
    first: Layer = ([], [])
    second: Layer = ([], [])
    known: dict[tuple[Any, ...], int] = {}

    def early(reads: list[int], rows: np.ndarray) -> int:
        key = (*reads, rows.tobytes())
        if key not in known:
            known[key] = len(first[0])
            first[0].append(reads)
            first[1].append(rows)
        return known[key]

    def passed(split: tuple[int, int]) -> int:
        return early([place[split]], np.arange(2))

    widths = []
    for root in trees.roots:
        width = max(1, max(map(int, _leaves(root))).bit_length())
        widths.append(width)
        own = sorted(set(_splits(root)))
        if len(own) <= WIDEST:
            leaves = _enumerate(root, own)
            for bit in range(width):
                second[0].append([passed(split) for split in own] or [passed(next(iter(place)))])
                second[1].append(leaves >> bit & 1 if own else np.repeat(leaves >> bit & 1, 2))
            continue
        top = sorted({_split(root), *(_split(child) for child in root["children"] if "leaf" not in child)})
        ends = [_value(root, dict(zip(top, answers, strict=True))) for answers in _answers(len(top))]
        parts = list({id(each): each for each in ends}.values())
        for bit in range(width):
            reads, columns = [passed(split) for split in top], []
            for part in parts:
                under = sorted(set(_splits(part)))
                rows = _enumerate(part, under) >> bit & 1
                columns.append(early([place[split] for split in under] or [0], rows if under else np.repeat(rows, 2)))
            chosen = [next(number for number, part in enumerate(parts) if part is end) for end in ends]
            given = _answers(len(parts))
            second[0].append([*reads, *columns])
            second[1].append(np.concatenate([[answers[own] for answers in given] for own in chosen]).astype(np.int64))
    return first, second, widths


def _answers(count: int) -> list[tuple[int, ...]]:
    """All settings of so many bits, the first one highest."""
    return [tuple(number >> (count - 1 - place) & 1 for place in range(count)) for number in range(2**count)]


def _enumerate(node: Node, splits: list[tuple[int, int]]) -> np.ndarray:
    """The leaf for each setting of the comparisons: int64 [2**len(splits)]."""
    rows = [_value(node, dict(zip(splits, answers, strict=True)))["leaf"] for answers in _answers(len(splits))]
    return np.array(rows, dtype=np.int64)


def predict(trees: Trees, x: np.ndarray) -> np.ndarray:
    """The classes that the rounded trees give, one tree after another: x [n, n_inputs] -> [n]. A check of the circuit."""
    scores = np.tile(np.array(trees.offsets), (len(x), 1))
    for root, owner in zip(trees.roots, trees.classes, strict=True):
        scores[:, owner] += _walk(root, x)
    return scores.argmax(1)


def _walk(node: Node, x: np.ndarray) -> np.ndarray:
    if "leaf" in node:
        return np.full(len(x), node["leaf"])
    feature, constant = _split(node)
    return np.where(x[:, feature] > constant, _walk(_child(node, 1), x), _walk(_child(node, 0), x))

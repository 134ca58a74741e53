"""A model of imported trees with tables that ask whether a value lies between two cuts."""

from __future__ import annotations

import numpy as np

from lutetia.integrations.trees import Ensemble, to_tabular
from lutetia.integrations.trees.ensemble import Tree, numbers
from lutetia.models import Tabular


def interval_trees() -> Tabular:
    """Two trees of two columns, of which the first is cut at 1, 2, 3 and 4, and the second at 0; what is missing goes right."""
    chains = [([1.0, 2.0], [5.0, -3.0, 1.0]), ([4.0, 3.0], [2.0, 7.0, -6.0])]
    trees = []
    for cuts, leaves in chains:
        # above the first cut, not above the second, above 0 in the other column
        tests = [numbers(0, min(cuts), True), numbers(0, max(cuts), True), numbers(1, 0.0, True), None, None, None, None]
        values = np.array([0, 0, 0, leaves[0], leaves[1], leaves[2], 1.5], float)[:, None]
        trees.append(Tree(tests, [3, 2, 4, 0, 0, 0, 0], [1, 6, 5, 0, 0, 0, 0], values, 0))
    return to_tabular(Ensemble("any", trees, 2, np.array([0.25]), "regression"), n_anchors=3).model

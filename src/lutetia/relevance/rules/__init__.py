"""The table of rules, one file per family of operations. Importing this registers them all."""

from lutetia.relevance.rules import (
    attention,
    blocks,
    elementwise,
    experts,
    indexing,
    inplace,
    leaves,
    linear,
    norms,
    pooling,
    products,
    recurrent,
    sums,
    views,
)

__all__ = [
    "attention",
    "blocks",
    "elementwise",
    "experts",
    "indexing",
    "inplace",
    "leaves",
    "linear",
    "norms",
    "pooling",
    "products",
    "recurrent",
    "sums",
    "views",
]

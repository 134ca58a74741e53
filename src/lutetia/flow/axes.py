"""Names for tensor sizes in a drawing, only where the name is certain.

A shape alone does not say which axis is which: in `[128, 64, 10]` the 64 may be inputs or the rows of a table. For the tensors
of lookup layers the axes are known by the tensor's name; elsewhere a size is named only if exactly one name was given for it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

_STEP = {"input": "I", "output": "O"}
_PER_TABLE = ("lookup_indices", "min_anchor_deltas", "min_anchor_delta_indices")
# By part and name: the axes of the tensor, for each rank that it comes in.
AXES: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {
    **{("lut", name): (("B", last), ("B", "S", last)) for name, last in _STEP.items()},
    **{("lut", f"{name}_gradients"): (("B", last), ("B", "S", last)) for name, last in _STEP.items()},
    **{("lut", name): (("B", "N_t"), ("B", "S", "N_t")) for name in _PER_TABLE},
    ("lut", "weights"): (("N_t", "R", "O"), ("n_weights",)),
    ("lut", "weight_gradients"): (("N_t", "R", "O"), ("n_weights",)),
    ("lut", "anchors"): (("N_t", "N_c", ""),),
    ("lut", "thresholds"): (("n_thresholds",),),
    ("lut", "positional_embeddings"): (("S-1", "N_t", "N_pe"),),
    ("lut", "positional_gradients"): (("S-1", "N_t", "N_pe"),),
    **{("lut", f"positional_{name}"): (("S-1", "N_t"),) for name in ("lookup_indices", "min_deltas", "min_delta_indices")},
    ("lut", "firing_statistics"): (("B", "S", "N_t", "C"),),
}


def axis_names(part: str, tensors: Sequence[str], rank: int) -> tuple[str, ...] | None:
    """The axes of a tensor with one of these names, from the known layouts; None if there is none."""
    layouts = (layout for name in tensors for layout in AXES.get((part, name), ()) if len(layout) == rank)
    return next(layouts, None)


def size_name(size: int, symbols: Mapping[str, int], axis: str | None) -> str | None:
    """The name to show for a size, None where no name is certain. `axis`: what the axis is, where that is known."""
    names = [name for name, of in symbols.items() if of == size]
    if axis is not None:
        own = [name for name in names if _plain(name) == _plain(axis)]
        # A name that means another axis of a lookup layer cannot mean this one.
        names = own or [name for name in names if _plain(name) not in KNOWN]
    return names[0] if len(names) == 1 else None


def _plain(name: str) -> str:
    """Nₜ, N_t and Nt are one name."""
    return unicodedata.normalize("NFKC", name).replace("_", "")


KNOWN = frozenset(_plain(axis) for layouts in AXES.values() for layout in layouts for axis in layout if axis)

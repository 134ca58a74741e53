"""All random calls, by package and function."""

from __future__ import annotations

import ctypes

import calls_lut
import calls_nn
import wild_attention
import wild_models
import wild_nn
import wild_precompute
import wild_relevance
import wild_tools
import wild_transformers
from wild import Draw, spoiling

GROUPS: dict[str, dict[str, Draw]] = {
    package: {name: spoiling(name, made) for name, made in calls.items()}
    for package, calls in {
        "attention": wild_attention.CALLS,
        "models": wild_models.CALLS,
        "nn": wild_nn.CALLS,
        "precompute": wild_precompute.CALLS | wild_tools.CALLS,
        "relevance": wild_relevance.CALLS,
        "transformers": wild_transformers.CALLS,
    }.items()
}
GROUPS |= {"lut": calls_lut.CALLS, "nn": calls_nn.CALLS | GROUPS["nn"]}
# Shows that a crash is seen.
GROUPS["crash"] = {"string_at": lambda rng: ("string_at(0)", lambda: ctypes.string_at(0))}

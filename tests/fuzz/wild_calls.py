"""All random calls, by package."""

from __future__ import annotations

import wild_attention
import wild_models
import wild_precompute
from wild import Made

GROUPS: dict[str, dict[str, Made]] = {
    "attention": wild_attention.CALLS,
    "models": wild_models.CALLS,
    "precompute": wild_precompute.CALLS,
}

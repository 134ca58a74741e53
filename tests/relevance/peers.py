"""Other people's libraries that relevance is compared with, where they are installed."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest


def zennit() -> Any:
    """zennit, which wants two class names of torchvision for canonizers that are not used here."""
    pytest.importorskip("torch")
    if "torchvision" not in sys.modules:
        names = ("torchvision", "torchvision.models", "torchvision.models.resnet")
        stand_ins = {name: types.ModuleType(name) for name in names}
        stand_ins[names[2]].Bottleneck = type("Bottleneck", (), {})  # type: ignore[attr-defined]
        stand_ins[names[2]].BasicBlock = type("BasicBlock", (), {})  # type: ignore[attr-defined]
        sys.modules.update(stand_ins)
        try:
            return _zennit()
        finally:
            for name in names:
                del sys.modules[name]
    return _zennit()


def _zennit() -> Any:
    found = pytest.importorskip("zennit")
    for part in ("attribution", "canonizers", "composites", "layer", "rules", "types"):
        pytest.importorskip(f"zennit.{part}")
    return found

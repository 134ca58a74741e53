"""Lutetia: networks made of lookup tables.

`import lutetia` is light: it imports neither torch nor any part. A part is imported on first use, so
`lutetia.flow.record()` works after a plain `import lutetia`, and no part loads what only another part needs.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING

from lutetia._version import __version__

if TYPE_CHECKING:
    from lutetia import errors as errors
    from lutetia import flow as flow

# In the order in which the data flows; a part that is not written yet is missing from the folder.
_PARTS = ("flow", "lut", "attention", "relevance", "precompute", "nn", "models", "training", "errors")

debug: bool = os.environ.get("LUTETIA_DEBUG", "").strip().lower() in ("1", "true", "yes", "on")
"""Checks too expensive for every run, such as a search for NaN: set `lutetia.debug = True`, or LUTETIA_DEBUG=1 at the start."""


def _parts() -> list[str]:
    """The parts that this installation holds."""
    there = {module.name for module in pkgutil.iter_modules(__path__)}
    return [part for part in _PARTS if part in there]


__all__ = ["__version__", "debug", *_parts()]


def __getattr__(name: str) -> ModuleType:
    if name in _parts():
        return importlib.import_module(f"lutetia.{name}")
    yet = " yet" if name in _PARTS else ""
    raise AttributeError(f"lutetia has no {name!r}{yet}, only {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Training: config files, data, optimisers, the loop, checkpoints, and many processes.

Each name is imported when it is first touched: what trains brings torch's tensors over many processes, which data and configs
do without, and a command that reads a file needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lutetia.training.config import Config, make_config, read_config
    from lutetia.training.data import Data, Samples, Text, open_data
    from lutetia.training.fitting import fit
    from lutetia.training.resharding import full_state_dict, load_full_state_dict
    from lutetia.training.run import train
    from lutetia.training.shard_files import load_shards, save_shards
    from lutetia.training.sharding import shard_detectors
    from lutetia.training.tabular import fit_tabular

__all__ = [
    "Config",
    "Data",
    "Samples",
    "Text",
    "fit",
    "fit_tabular",
    "full_state_dict",
    "load_full_state_dict",
    "load_shards",
    "make_config",
    "open_data",
    "read_config",
    "save_shards",
    "shard_detectors",
    "train",
]
_LATER = {
    **dict.fromkeys(("Config", "make_config", "read_config"), "config"),
    **dict.fromkeys(("Data", "Samples", "Text", "open_data"), "data"),
    "train": "run",
    "fit": "fitting",
    "fit_tabular": "tabular",
    "shard_detectors": "sharding",
    "full_state_dict": "resharding",
    "load_full_state_dict": "resharding",
    "save_shards": "shard_files",
    "load_shards": "shard_files",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"lutetia.training.{_LATER[name]}"), name)
    raise AttributeError(f"lutetia.training has no {name!r}")

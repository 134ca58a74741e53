"""Training: config files, data, optimisers, the loop, checkpoints, and many processes."""

from lutetia.training.config import Config, make_config, read_config
from lutetia.training.data import Data, Samples, Text, open_data
from lutetia.training.resharding import full_state_dict, load_full_state_dict
from lutetia.training.run import train
from lutetia.training.sharding import shard_detectors

__all__ = [
    "Config",
    "Data",
    "Samples",
    "Text",
    "full_state_dict",
    "load_full_state_dict",
    "make_config",
    "open_data",
    "read_config",
    "shard_detectors",
    "train",
]

"""Training: config files, data, optimisers, the loop, checkpoints, and many processes."""

from lutetia.training.config import Config, make_config, read_config
from lutetia.training.data import Data, Samples, Text, open_data
from lutetia.training.run import train

__all__ = ["Config", "Data", "Samples", "Text", "make_config", "open_data", "read_config", "train"]

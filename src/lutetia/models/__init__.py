"""Whole networks of lookup tables, their dense twins, and how they are saved."""

from typing import TypeAlias

from lutetia.models.building import KINDS as MODEL_KINDS
from lutetia.models.building import Model
from lutetia.models.cache import ModelCache
from lutetia.models.chances import adds_chances, best_class, chances, log_chances
from lutetia.models.classifier import DenseClassifier, LUTClassifier
from lutetia.models.classifier_config import LAYERS as LAYER_KINDS
from lutetia.models.classifier_config import ClassifierConfig, LUTLayer, ProjectedLayer, Projection2dLayer
from lutetia.models.dates import DAY as DAY_SECONDS
from lutetia.models.dates import EPOCH as DATE_EPOCH
from lutetia.models.dates import ORDERS as DATE_ORDERS
from lutetia.models.dates import PARTS as DATE_PARTS
from lutetia.models.dates import date_text, has_times, varying_parts
from lutetia.models.dates import part_of as date_part
from lutetia.models.encoding import TOP as TOP_CODE
from lutetia.models.encoding import Columns, Encoding, fit_encoding
from lutetia.models.fields import sizes as check_sizes
from lutetia.models.forecasts import LONGEST as LONGEST_FORECAST
from lutetia.models.forecasts import Forecast, forecast_of
from lutetia.models.gates import GateNetwork, Gates, area_of
from lutetia.models.gates_config import GateNetworkConfig
from lutetia.models.inputs import as_floats
from lutetia.models.metadata import LONGEST_NAME, UNKNOWN, check_metadata, dump_metadata
from lutetia.models.metadata import METADATA as METADATA_FILE
from lutetia.models.metadata import MISSING as MISSING_WORDS
from lutetia.models.patches import MOST_CHANNELS, REGION_CELLS, Patches, region_name
from lutetia.models.readings import MOST_BITS as MOST_READING_BITS
from lutetia.models.readings import Reading, as_readings, parse_readings
from lutetia.models.saving import FORMAT as MODEL_FORMAT
from lutetia.models.saving import MANIFEST_FORMAT, in_run, load, read_config, save, verify
from lutetia.models.saving import TENSORS as TENSORS_FILE
from lutetia.models.signal_shapes import KERNELS as SHAPE_KERNELS
from lutetia.models.signal_shapes import SAMPLES as SHAPE_SAMPLES
from lutetia.models.signal_shapes import SignalShape, most_apart, shape_counts
from lutetia.models.softmax_attention import SoftmaxAttention
from lutetia.models.tabular import LEAST_SPREAD, Tabular
from lutetia.models.tabular_config import TabularConfig
from lutetia.models.targets import Targets, part_metadata
from lutetia.models.targets_config import TargetsConfig
from lutetia.models.texts import RANGES as CHARACTER_RANGES
from lutetia.models.texts import (
    Grams,
    Tally,
    TextColumn,
    column_owners,
    data_columns,
    find_grams,
    folded_letters,
    gram_text,
    places_of,
    text_columns,
    text_inputs,
)
from lutetia.models.transformer import DenseTransformer, LUTTransformer
from lutetia.models.transformer_config import TransformerConfig
from lutetia.models.unusual import CLASSES as UNUSUAL_CLASSES
from lutetia.models.unusual import TASK as UNUSUAL
from lutetia.models.unusual import finds_unusual, rarity, rarity_text
from lutetia.models.unusual import levels_of as unusual_levels
from lutetia.models.values import ColumnValues, value_columns
from lutetia.models.votes import Votes, VotesClassifier
from lutetia.models.votes_config import VotesConfig
from lutetia.models.windows import KINDS as WINDOW_KINDS
from lutetia.models.windows import LONGEST as LONGEST_WINDOW
from lutetia.models.windows import (
    LONGEST_SIGNAL,
    SignalColumn,
    SignalWindows,
    feature_sums,
    shapes_of,
    signal_features,
    signal_windows,
)
from lutetia.models.windows import MOST_DECIMALS as MOST_SIGNAL_DECIMALS
from lutetia.models.windows import SHORTEST as SHORTEST_WINDOW
from lutetia.models.windows import Feature as SignalFeature

Classifier: TypeAlias = LUTClassifier | VotesClassifier | Tabular  # what gives scores of classes and is made of tables

__all__ = [
    "Classifier",
    "ClassifierConfig",
    "DenseClassifier",
    "DenseTransformer",
    "GateNetwork",
    "GateNetworkConfig",
    "Gates",
    "LUTClassifier",
    "LUTLayer",
    "LUTTransformer",
    "Model",
    "ModelCache",
    "ProjectedLayer",
    "Projection2dLayer",
    "Tabular",
    "TabularConfig",
    "Targets",
    "TargetsConfig",
    "TransformerConfig",
    "Votes",
    "VotesClassifier",
    "VotesConfig",
    "in_run",
    "load",
    "read_config",
    "save",
    "verify",
]

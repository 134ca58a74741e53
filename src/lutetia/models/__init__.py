"""Whole networks of lookup tables, their dense twins, and how they are saved."""

from typing import TypeAlias

from lutetia.models.building import Model
from lutetia.models.cache import ModelCache
from lutetia.models.classifier import DenseClassifier, LUTClassifier
from lutetia.models.classifier_config import ClassifierConfig, LUTLayer, ProjectedLayer, Projection2dLayer
from lutetia.models.gates import GateNetwork, Gates
from lutetia.models.gates_config import GateNetworkConfig
from lutetia.models.saving import in_run, load, read_config, save, verify
from lutetia.models.tabular import Tabular
from lutetia.models.tabular_config import TabularConfig
from lutetia.models.transformer import DenseTransformer, LUTTransformer
from lutetia.models.transformer_config import TransformerConfig
from lutetia.models.votes import Votes, VotesClassifier
from lutetia.models.votes_config import VotesConfig

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

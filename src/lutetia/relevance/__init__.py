"""Relevance: which inputs caused this output, for any autograd graph.

Layer-wise relevance propagation, walked over PyTorch's own graph, with promises for what autograd did not keep.
`__all__` is for users; the other names are for rules and measurements in other packages of lutetia.
"""

from lutetia.relevance import answer_pictures, layer_pictures, methods, pictures
from lutetia.relevance.api import attribute, attribute_each, explain
from lutetia.relevance.blocks import blocks
from lutetia.relevance.faithfulness import RANDOM as RANDOM_METHOD
from lutetia.relevance.faithfulness import Faithfulness, Method, evaluate, for_quantus, measure, random_order
from lutetia.relevance.graph import (
    Node,
    Relevance,
    UnknownOperation,
    unknown,
)
from lutetia.relevance.methods.groups import shapley_values, takes_all
from lutetia.relevance.names import checkpoint, watch
from lutetia.relevance.plan import Plan, compile
from lutetia.relevance.promise import Deadlock
from lutetia.relevance.registry import Args, Given, Op, divide, register, rule
from lutetia.relevance.report import NodeReport, Report
from lutetia.relevance.result import Result
from lutetia.relevance.rules import presets  # registers all rules
from lutetia.relevance.rules.choices import (
    Absolute,
    AlphaBeta,
    Centred,
    Decisive,
    Epsilon,
    Flat,
    Gamma,
    Identity,
    Rules,
    Signal,
    Taylor,
    Uniform,
    WSquare,
    ZBox,
    Zero,
    ZPlus,
)
from lutetia.relevance.seeds import Contrast

__all__ = [
    "Absolute",
    "AlphaBeta",
    "Centred",
    "Contrast",
    "Deadlock",
    "Decisive",
    "Epsilon",
    "Faithfulness",
    "Flat",
    "Gamma",
    "Identity",
    "NodeReport",
    "Plan",
    "Report",
    "Result",
    "Rules",
    "Signal",
    "Taylor",
    "Uniform",
    "UnknownOperation",
    "WSquare",
    "ZBox",
    "ZPlus",
    "Zero",
    "answer_pictures",
    "attribute",
    "attribute_each",
    "blocks",
    "checkpoint",
    "compile",
    "evaluate",
    "explain",
    "for_quantus",
    "layer_pictures",
    "methods",
    "pictures",
    "presets",
    "rule",
    "watch",
]

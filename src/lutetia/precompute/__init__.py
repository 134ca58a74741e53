"""Precompute: layers into tables, tables into hardware. The public interface; each name is loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lutetia.models.votes import Votes
    from lutetia.precompute.front.claims import precomputable
    from lutetia.precompute.front.decompose import Unit, Units, decompose
    from lutetia.precompute.front.encoder import BitsChoice, CodeEncoder, Encoder, encoder
    from lutetia.precompute.front.fixed import FixedLayerNorm, FixedLSTMCell
    from lutetia.precompute.front.handmade import table_graph
    from lutetia.precompute.front.lutnet import LUTNetwork, fit_bits, lut_network
    from lutetia.precompute.front.quantise import Quantise, SparseLinear, quantise, quantise_weights
    from lutetia.precompute.front.split import split_convolution
    from lutetia.precompute.front.trace import trace
    from lutetia.precompute.front.votes import gates_graph, votes_graph
    from lutetia.precompute.integer.classifier import IntegerClassifier
    from lutetia.precompute.integer.hardware import LanguageHardware
    from lutetia.precompute.integer.language import IntegerTransformer
    from lutetia.precompute.integer.model import integer_model
    from lutetia.precompute.ir.graph import Graph
    from lutetia.precompute.ir.interpret import trace_values
    from lutetia.precompute.ir.stream import Stream, Table, TableData
    from lutetia.precompute.passes.minimise import minimise_tables
    from lutetia.precompute.pipeline import (
        CHECK,
        MAKE,
        OPTIMISE,
        PIPELINE,
        PROOF,
        SIMULATION,
        SYNTHESIS,
        VERILOG,
        Build,
        BuildStep,
        run_steps,
    )
    from lutetia.precompute.tables.domains import Binary, Domain, Int, PlusMinus, Ternary, UInt, enumerate_rows, pack
    from lutetia.precompute.tables.table import IOTable, MissingRowError
    from lutetia.precompute.tools.find import TimeLimitError, find_tool, require_program, run_program, run_yosys, time_limit
    from lutetia.precompute.tools.hardware import EquivalenceError, Hardware
    from lutetia.precompute.tools.simulate import SIMULATORS
    from lutetia.precompute.tools.synthesize import TARGETS, read_cells, recipe

_ROOMS = {
    "front.claims": "precomputable",
    "front.decompose": "Unit Units decompose",
    "front.encoder": "BitsChoice CodeEncoder Encoder encoder",
    "front.fixed": "FixedLSTMCell FixedLayerNorm",
    "front.handmade": "table_graph",
    "front.lutnet": "LUTNetwork fit_bits lut_network",
    "front.quantise": "Quantise SparseLinear quantise quantise_weights",
    "front.split": "split_convolution",
    "front.trace": "trace",
    "front.votes": "gates_graph votes_graph",
    "integer.classifier": "IntegerClassifier",
    "integer.hardware": "LanguageHardware",
    "integer.language": "IntegerTransformer",
    "integer.model": "integer_model",
    "ir.graph": "Graph",
    "ir.interpret": "trace_values",
    "ir.stream": "Stream Table TableData",
    "passes.minimise": "minimise_tables",
    "pipeline": "Build BuildStep CHECK MAKE OPTIMISE PIPELINE PROOF SIMULATION SYNTHESIS VERILOG run_steps",
    "tables.domains": "Binary Domain Int PlusMinus Ternary UInt enumerate_rows pack",
    "tables.table": "IOTable MissingRowError",
    "tools.find": "TimeLimitError find_tool require_program run_program run_yosys time_limit",
    "tools.hardware": "EquivalenceError Hardware",
    "tools.simulate": "SIMULATORS",
    "tools.synthesize": "TARGETS read_cells recipe",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "CHECK",
    "MAKE",
    "OPTIMISE",
    "PIPELINE",
    "PROOF",
    "SIMULATION",
    "SIMULATORS",
    "SYNTHESIS",
    "TARGETS",
    "VERILOG",
    "Binary",
    "BitsChoice",
    "Build",
    "BuildStep",
    "CodeEncoder",
    "Domain",
    "Encoder",
    "EquivalenceError",
    "FixedLSTMCell",
    "FixedLayerNorm",
    "Graph",
    "Hardware",
    "IOTable",
    "Int",
    "IntegerClassifier",
    "IntegerTransformer",
    "LUTNetwork",
    "LanguageHardware",
    "MissingRowError",
    "PlusMinus",
    "Quantise",
    "SparseLinear",
    "Stream",
    "Table",
    "TableData",
    "Ternary",
    "TimeLimitError",
    "UInt",
    "Unit",
    "Units",
    "Votes",
    "decompose",
    "encoder",
    "enumerate_rows",
    "find_tool",
    "fit_bits",
    "gates_graph",
    "integer_model",
    "lut_network",
    "minimise_tables",
    "pack",
    "precomputable",
    "quantise",
    "quantise_weights",
    "read_cells",
    "recipe",
    "require_program",
    "run_program",
    "run_steps",
    "run_yosys",
    "split_convolution",
    "table_graph",
    "time_limit",
    "trace",
    "trace_values",
    "votes_graph",
]


def __getattr__(name: str) -> Any:
    if name == "Votes":  # a model, which used to live here
        return importlib.import_module("lutetia.models.votes").Votes
    if name not in _HOMES:
        raise AttributeError(f"lutetia.precompute has no {name!r}")
    return getattr(importlib.import_module(f"lutetia.precompute.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Precompute: layers into tables, tables into hardware. The public interface; each name is loaded on first use.

`__all__` is for users, the other names for commands, models and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lutetia._shared.doors import lazy_door

if TYPE_CHECKING:
    from lutetia.models import Votes
    from lutetia.precompute.boards.make import BoardBuild, TooLargeError, build_board
    from lutetia.precompute.boards.payloads import (
        circuit_answers,
        circuit_questions,
        circuit_replies,
        core_answers,
        core_questions,
        core_replies,
    )
    from lutetia.precompute.boards.serial import OtherCircuitError, Talk, open_port
    from lutetia.precompute.boards.serial import ask as ask_board
    from lutetia.precompute.boards.serial import ports as serial_ports
    from lutetia.precompute.boards.serial import who as who_answers
    from lutetia.precompute.boards.simulate import simulate_board
    from lutetia.precompute.boards.table import CHIPS, Board, board_names, read_board
    from lutetia.precompute.boards.top import Wrapped, wrapped_circuit, wrapped_core
    from lutetia.precompute.front.claims import precomputable
    from lutetia.precompute.front.decompose import Unit, Units, decompose
    from lutetia.precompute.front.encoder import BitsChoice, CodeEncoder, Encoder, encoder
    from lutetia.precompute.front.fixed import FixedLayerNorm, FixedLSTMCell
    from lutetia.precompute.front.handmade import table_graph
    from lutetia.precompute.front.lutnet import LUTNetwork, fit_bits, lut_network
    from lutetia.precompute.front.quantise import Quantise, SparseLinear, quantise, quantise_weights
    from lutetia.precompute.front.samples import random_input
    from lutetia.precompute.front.split import split_convolution
    from lutetia.precompute.front.trace import trace
    from lutetia.precompute.front.translate import argmax_node
    from lutetia.precompute.front.values import ListedCodes, RisingCodes, ValueColumn, on_values
    from lutetia.precompute.front.votes import gates_graph, votes_graph
    from lutetia.precompute.front.voting import voting as count_votes
    from lutetia.precompute.front.voting import wiring as votes_wiring
    from lutetia.precompute.hdl.testbench import LATER
    from lutetia.precompute.integer.arduino import arduino_files, library_name
    from lutetia.precompute.integer.bare import measured as measure_bare
    from lutetia.precompute.integer.c import c_files, c_memory
    from lutetia.precompute.integer.c_numbers import number_columns
    from lutetia.precompute.integer.classifier import IntegerClassifier
    from lutetia.precompute.integer.core_program import CoreProgram
    from lutetia.precompute.integer.hardware import FOLDER as HARDWARE_FOLDER
    from lutetia.precompute.integer.hardware import LanguageHardware
    from lutetia.precompute.integer.language import IntegerTransformer
    from lutetia.precompute.integer.model import INPUT_BITS, integer_model
    from lutetia.precompute.integer.page_windows import ExampleRecording
    from lutetia.precompute.integer.pages import n_detectors
    from lutetia.precompute.integer.pages import page as model_page
    from lutetia.precompute.integer.pages import title_of as page_title
    from lutetia.precompute.integer.patch_program import patch_program
    from lutetia.precompute.integer.pixels import pixel_values
    from lutetia.precompute.integer.signal_program import signal_program
    from lutetia.precompute.integer.verilog_core import Core, core_simulator
    from lutetia.precompute.integer.verilog_patches import PatchCore
    from lutetia.precompute.integer.verilog_signals import SignalCore
    from lutetia.precompute.ir.graph import Builder, Graph
    from lutetia.precompute.ir.interpret import trace_values
    from lutetia.precompute.ir.stream import Compare, Input, Lookup, Stream, StreamEdge, Sum, Table, TableData
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
    from lutetia.precompute.tables.domains import (
        Binary,
        Domain,
        DomainLike,
        Int,
        PlusMinus,
        Ternary,
        UInt,
        domain_for,
        enumerate_rows,
        pack,
    )
    from lutetia.precompute.tables.table import IOTable, MissingRowError
    from lutetia.precompute.tools.find import TimeLimitError, find_tool, require_program, run_program, run_yosys, time_limit
    from lutetia.precompute.tools.hardware import EquivalenceError, Hardware
    from lutetia.precompute.tools.place import DEVICES, SPEED_GRADES
    from lutetia.precompute.tools.simulate import SIMULATORS
    from lutetia.precompute.tools.synthesize import TARGETS, read_cells, recipe

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
    "PatchCore",
    "PlusMinus",
    "Quantise",
    "SignalCore",
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

_touch, __dir__ = lazy_door(
    __name__,
    {
        "boards.make": "BoardBuild TooLargeError build_board",
        "boards.payloads": "circuit_answers circuit_questions circuit_replies core_answers core_questions core_replies",
        "boards.serial": "OtherCircuitError Talk open_port ask_board=ask serial_ports=ports who_answers=who",
        "boards.simulate": "simulate_board",
        "boards.table": "CHIPS Board board_names read_board",
        "boards.top": "Wrapped wrapped_circuit wrapped_core",
        "front.claims": "precomputable",
        "front.decompose": "Unit Units decompose",
        "front.encoder": "BitsChoice CodeEncoder Encoder encoder",
        "front.fixed": "FixedLSTMCell FixedLayerNorm",
        "front.handmade": "table_graph",
        "front.lutnet": "LUTNetwork fit_bits lut_network",
        "front.quantise": "Quantise SparseLinear quantise quantise_weights",
        "front.samples": "random_input",
        "front.split": "split_convolution",
        "front.trace": "trace",
        "front.translate": "argmax_node",
        "front.values": "ListedCodes RisingCodes ValueColumn on_values",
        "front.votes": "gates_graph votes_graph",
        "front.voting": "count_votes=voting votes_wiring=wiring",
        "hdl.testbench": "LATER",
        "integer.arduino": "arduino_files library_name",
        "integer.bare": "measure_bare=measured",
        "integer.c": "c_files c_memory",
        "integer.c_numbers": "number_columns",
        "integer.classifier": "IntegerClassifier",
        "integer.hardware": "LanguageHardware HARDWARE_FOLDER=FOLDER",
        "integer.language": "IntegerTransformer",
        "integer.model": "integer_model INPUT_BITS",
        "integer.page_windows": "ExampleRecording",
        "integer.pages": "model_page=page n_detectors page_title=title_of",
        "integer.core_program": "CoreProgram",
        "integer.patch_program": "patch_program",
        "integer.pixels": "pixel_values",
        "integer.signal_program": "signal_program",
        "integer.verilog_core": "Core core_simulator",
        "integer.verilog_patches": "PatchCore",
        "integer.verilog_signals": "SignalCore",
        "ir.graph": "Graph Builder",
        "ir.interpret": "trace_values",
        "ir.stream": "Stream Table TableData Compare Input Lookup StreamEdge Sum",
        "passes.minimise": "minimise_tables",
        "pipeline": "Build BuildStep CHECK MAKE OPTIMISE PIPELINE PROOF SIMULATION SYNTHESIS VERILOG run_steps",
        "tables.domains": "Binary Domain Int PlusMinus Ternary UInt enumerate_rows pack DomainLike domain_for",
        "tables.table": "IOTable MissingRowError",
        "tools.find": "TimeLimitError find_tool require_program run_program run_yosys time_limit",
        "tools.hardware": "EquivalenceError Hardware",
        "tools.place": "DEVICES SPEED_GRADES",
        "tools.simulate": "SIMULATORS",
        "tools.synthesize": "TARGETS read_cells recipe",
    },
)


def __getattr__(name: str) -> Any:
    if name == "Votes":  # a model, which used to live here
        from lutetia.models import Votes

        return Votes
    return _touch(name)

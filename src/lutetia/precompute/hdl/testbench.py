"""The test bench of a piece of hardware: it feeds samples, pauses on both sides at random, and checks every answer.

The answers come from the integer interpreter. Frames follow each other without a reset. An endless stream has no frames, so there
each sequence of the batch starts with a reset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.precompute.front.samples import bus_bits, random_input, to_binary, to_hex
from lutetia.precompute.hdl.design import walk
from lutetia.precompute.ir.stream import Window

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware

STIMULUS, EXPECTED = "stimulus.mem", "expected.mem"
CYCLES = "cycles.txt"  # without pauses: the cycles of the first sample and of each answer
LATER = ["outputs.mem", "result.txt", CYCLES, "run", "work-obj08.cf"]  # what a simulation leaves, run as the documentation says
PATIENCE = 2000  # clock cycles without a sample on either side, beyond those that padding takes


@dataclass(frozen=True)
class Bench:
    """What goes in and what must come out."""

    stimulus: np.ndarray  # uint8 [samples, bits]
    expected: np.ndarray
    runs: int  # with a reset before each
    batch: int
    shape: tuple[int, ...]  # of one frame of answers
    more: bool  # whether padding alone may complete windows after the last sample
    patience: int
    rest: int  # cycles before the first sample of a run without pauses

    @property
    def sent(self) -> int:
        """Samples of one run."""
        return len(self.stimulus) // self.runs

    @property
    def received(self) -> int:
        return len(self.expected) // self.runs


def bench(hardware: Hardware, x: Tensor) -> Bench:
    """Ask the interpreter: x [batch, channels, *shape]."""
    graph = hardware.graph
    y = graph(x)
    if not len(x):
        raise ArgumentError("x holds no samples, expected at least one")
    endless = None in graph.input_edge.shape
    windows = [node for node in graph.nodes if isinstance(node, Window)]
    places = [walk(node, graph.nodes[node.source].edge) for node in windows]
    longest = sum(plan.rows * plan.columns for plan in places)
    return Bench(
        bus_bits(graph.input_edge, x),
        bus_bits(graph.output_edge, y),
        len(x) if endless else 1,
        len(x),
        tuple(y.shape[2:]),
        any(node.pads for node in windows),
        PATIENCE + 4 * longest,
        longest + 8,
    )


def testbench(hardware: Hardware, x: Tensor | None, *, seed: int, stalls: bool) -> dict[str, str]:
    """The files of a test bench for the hardware."""
    x = default_samples(hardware, seed) if x is None else x
    return files(hardware, bench(hardware, x), seed=seed, stalls=stalls)


def default_samples(hardware: Hardware, seed: int) -> Tensor:
    """A few frames of random samples."""
    batch = 3 if hardware.graph.input_edge.shape else 100
    return random_input(hardware.graph, batch, seed)


def files(hardware: Hardware, made: Bench, *, seed: int, stalls: bool) -> dict[str, str]:
    """The test bench in the language of the hardware, and its samples."""
    if hardware.language == "vhdl":
        from lutetia.precompute.hdl.vhdl_testbench import text

        return {
            f"{hardware.name}_testbench.vhd": text(hardware, made, seed, stalls),
            STIMULUS: _lines(to_binary(made.stimulus)),
            EXPECTED: _lines(to_binary(made.expected)),
        }
    return {
        f"{hardware.name}_testbench.v": _verilog(hardware, made, seed, stalls),
        STIMULUS: _lines(to_hex(made.stimulus)),
        EXPECTED: _lines(to_hex(made.expected)),
    }


def _lines(rows: list[str]) -> str:
    return "\n".join(rows) + "\n"


def start(seed: int) -> int:
    """The seed of the pauses: never zero, because the generator would then stay at zero."""
    return int(torch.tensor(seed).item()) * 2654435761 % (2**32 - 1) + 1


def _verilog(hardware: Hardware, made: Bench, seed: int, stalls: bool) -> str:
    graph = hardware.graph
    return VERILOG.format(
        name=hardware.name,
        width=graph.input_edge.width,
        out_width=graph.output_edge.width,
        n_in=len(made.stimulus),
        n_out=max(len(made.expected), 1),
        sent=made.sent,
        received=made.received,
        runs=made.runs,
        patience=made.patience,
        more=int(made.more),
        rest=made.rest,
        seed=start(seed),
        stalls=int(stalls),
        stimulus=STIMULUS,
        expected=EXPECTED,
        cycles=CYCLES,
    )


VERILOG = """`default_nettype none
`timescale 1ns / 1ps

// Feeds {n_in} samples, {runs} run(s) with a reset before each, and checks every answer. Both sides pause at random.
module {name}_testbench;
    localparam SENT = {sent}, RECEIVED = {received}, RUNS = {runs}, PATIENCE = {patience}, MORE = {more}, STALLS = {stalls};
    localparam REST = {rest};  // cycles before the first sample, where there are no pauses
    reg [{width}-1:0] stimulus [0:{n_in}-1];
    reg [{out_width}-1:0] expected [0:{n_out}-1];
    reg clk = 1'b0;
    reg rst = 1'b1;
    reg [{width}-1:0] in_data = {width}'dx;  // so that the first sample is a change, whatever it is
    reg in_valid = 1'b0;
    reg out_ready = 1'b0;
    wire [{out_width}-1:0] out_data;
    wire in_ready, out_valid;
    integer sent = 0, accepted = 0, received = 0, runs = 0, idle = 0, wrong = 0, after = 0, file = 0;
    integer clock = 0, times = 0, offered = 0;
    reg [31:0] random = 32'd{seed};
    reg [9:0] cycle = 10'd0;
    reg go_in, go_out;

    {name} dut (
        .clk(clk), .rst(rst),
        .in_data(in_data), .in_valid(in_valid), .in_ready(in_ready),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready)
    );

    initial begin
        $readmemh("{stimulus}", stimulus);
        if (RECEIVED > 0) $readmemh("{expected}", expected);
        file = $fopen("outputs.mem", "w");
        if (STALLS == 0) times = $fopen("{cycles}", "w");
    end
    always #5 clk = !clk;

    // In turn: no pauses, a slow producer, a slow consumer, both at random.
    always @* begin
        go_in = STALLS == 0 ? clock > REST : (cycle[9:8] == 2'd1 ? random[3:0] == 4'd0 : cycle[9:8] != 2'd3 || random[0]);
        go_out = STALLS == 0 || (cycle[9:8] == 2'd2 ? random[7:4] == 4'd0 : cycle[9:8] != 2'd3 || random[5]);
    end

    task done(input integer code);
        begin
            $fclose(file);
            file = $fopen("result.txt", "w");
            if (code == 0) $fdisplay(file, "PASS");
            else $fdisplay(file, "FAIL");
            $fclose(file);
            if (code == 0) $display("PASS: %0d samples, %0d answers", accepted, received);
            else $display("FAIL: %0d samples, %0d answers, %0d wrong", accepted, received, wrong);
            $finish;
        end
    endtask

    always @(posedge clk) begin
        random <= {{random[30:0], random[31] ^ random[21] ^ random[1] ^ random[0]}};
        cycle <= cycle + 10'd{pace};
        idle <= idle + 1;
        clock <= clock + 1;
        if (rst) begin
            rst <= idle < 3;
            in_valid <= 1'b0;
            out_ready <= 1'b0;
        end else begin
            if (in_valid && in_ready) begin
                accepted <= accepted + 1;
                idle <= 0;
            end
            if (STALLS == 0 && in_valid && offered == 0) begin
                $fdisplay(times, "%0d", clock);
                offered <= 1;
            end
            if (!in_valid || in_ready) begin
                in_valid <= go_in && sent < SENT * (runs + 1);
                in_data <= {width}'dx;
                if (go_in && sent < SENT * (runs + 1)) begin
                    in_data <= stimulus[sent];
                    sent <= sent + 1;
                end
            end
            out_ready <= go_out;
            if (out_valid && out_ready) begin
                if (received < RECEIVED * (runs + 1)) begin
                    idle <= 0;
                    $fdisplay(file, "%h", out_data);
                    if (STALLS == 0) $fdisplay(times, "%0d", clock);
                    if (out_data !== expected[received]) begin
                        if (wrong < 10) $display("answer %0d is %h, expected %h", received, out_data, expected[received]);
                        wrong <= wrong + 1;
                    end
                    received <= received + 1;
                end else if (MORE == 0) begin
                    $display("there are more answers than expected");
                    wrong <= wrong + 1;
                end
            end
            if (accepted == SENT * (runs + 1) && received == RECEIVED * (runs + 1)) begin
                after <= after + 1;
                idle <= 0;
                if (after == 40) begin
                    after <= 0;
                    if (runs + 1 == RUNS) done(wrong);
                    runs <= runs + 1;
                    rst <= runs + 1 < RUNS;
                end
            end else if (idle > PATIENCE) begin
                $display("stuck");
                done(1);
            end
        end
    end
endmodule

`default_nettype wire
""".replace("{pace}", "7")

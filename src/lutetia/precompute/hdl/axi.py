"""An AXI4-Stream wrapper around a piece of hardware, and project files for Vivado.

`tdata` is padded to whole bytes, with its sign where an answer is one signed number, else with zeros. `tlast` marks the last
answer of a frame; the input has none, since frames have known sizes. The reset is `aresetn`, active low. `identity` is a
constant, the number of the hardware, so that a device can report which hardware it holds. The Vivado files are written by hand
and have not been run in Vivado: they say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutetia.precompute.hdl.verilog import Verilog

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware


def axi_files(hardware: Hardware) -> dict[str, str]:
    """The wrapper, `NAME_axis.v`, and the frame marker, where the hardware has none of its own."""
    name = f"{hardware.name}_last.v"
    marker = {} if hardware.last else {name: Verilog().fixed("last", hardware.name)}
    return {**marker, f"{hardware.name}_axis.v": _wrapper(hardware)}


def padded(bits: int) -> int:
    """Bits in whole bytes."""
    return (bits + 7) // 8 * 8


def in_bytes(name: str, bits: int, is_signed: bool) -> str:
    """A wire of so many bits in whole bytes."""
    more = padded(bits) - bits
    if not more:
        return name
    return f"{{{{{more}{{{name}[{bits - 1}]}}}}, {name}}}" if is_signed else f"{{{more}'d0, {name}}}"


def _wrapper(hardware: Hardware) -> str:
    name, graph = hardware.name, hardware.graph
    given, answer = graph.input_edge.width, graph.output_edge.width
    width, out = padded(given), padded(answer)
    marked = ", .out_last(m_axis_tlast)"
    if not hardware.last:
        pins = ".clk(aclk), .rst(!aresetn), .valid(m_axis_tvalid), .ready(m_axis_tready), .last(m_axis_tlast)"
        marked = f");\n    {name}_last #(.SAMPLES({graph.output_edge.samples or 1})) marker ({pins}"
    unused = f"\n    wire unused = &{{1'b0, s_axis_tdata[{width - 1}:{given}]}};" if width > given else ""
    domains = graph.output_edge.domains
    whole = in_bytes("answer", answer, len(domains) == 1 and domains[0].signed)
    return f"""`default_nettype none

// {name} as an AXI4-Stream core: {given} bits of a sample in, {answer} bits of an answer out, tlast with the last one of a frame.
module {name}_axis (
    input wire aclk,
    input wire aresetn,
    input wire [{width - 1}:0] s_axis_tdata,
    input wire s_axis_tvalid,
    output wire s_axis_tready,
    output wire [{out - 1}:0] m_axis_tdata,
    output wire m_axis_tvalid,
    input wire m_axis_tready,
    output wire m_axis_tlast,
    output wire [31:0] identity
);
    wire [{answer - 1}:0] answer;
    wire ready;
    assign s_axis_tready = ready & aresetn;
    assign m_axis_tdata = {whole};
    assign identity = 32'h{hardware.identity:08x};
    {name} core (.clk(aclk), .rst(!aresetn), .in_data(s_axis_tdata[{given - 1}:0]), .in_valid(s_axis_tvalid & aresetn),
        .in_ready(ready), .out_data(answer), .out_valid(m_axis_tvalid), .out_ready(m_axis_tready){marked});{unused}
endmodule

`default_nettype wire
"""


def vivado_files(hardware: Hardware, *, part: str = "xc7a35tcpg236-1", period_ns: float = 6.0) -> dict[str, str]:
    """A project for Vivado: a script that builds it out of context, and its clock. Untested: they were written without Vivado."""
    sources = " ".join([*hardware.sources, *axi_files(hardware)])
    label = "# UNTESTED: written without Vivado. Run in the folder of the sources: vivado -mode batch -source build.tcl"
    script = f"""{label}
read_verilog {{{sources}}}
read_xdc clock.xdc
synth_design -top {hardware.name}_axis -part {part} -mode out_of_context
report_utilization -file utilization.txt
opt_design
place_design
route_design
report_timing_summary -file timing.txt
write_checkpoint -force {hardware.name}.dcp
"""
    clock = f"{label}\ncreate_clock -period {period_ns:g} -name aclk [get_ports aclk]\n"
    return {"build.tcl": script, "clock.xdc": clock}

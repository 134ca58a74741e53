"""A stream graph as Verilog or VHDL, and its test benches."""

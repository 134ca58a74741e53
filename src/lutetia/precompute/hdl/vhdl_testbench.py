"""The test bench in VHDL: the same as in Verilog, with samples as lines of 0 and 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutetia.precompute.hdl.testbench import EXPECTED, STIMULUS, Bench, start

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware


def text(hardware: Hardware, made: Bench, seed: int, stalls: bool) -> str:
    """The file."""
    graph = hardware.graph
    return VHDL.format(
        name=hardware.name,
        width=graph.input_edge.width,
        out_width=graph.output_edge.width,
        sent=made.sent,
        received=made.received,
        runs=made.runs,
        patience=made.patience,
        more=str(made.more).lower(),
        stalls=str(stalls).lower(),
        seed=f"{start(seed):032b}",
        stimulus=STIMULUS,
        expected=EXPECTED,
    )


VHDL = """library ieee;
use ieee.std_logic_1164.all;
use ieee.numeric_std.all;
use std.textio.all;
use std.env.all;

-- Feeds samples, {runs} run(s) with a reset before each, and checks every answer. Both sides pause at random.
entity {name}_testbench is
end entity;

architecture behaviour of {name}_testbench is
    signal clk : std_logic := '0';
    signal rst : std_logic := '1';
    signal in_data : std_logic_vector({width} - 1 downto 0) := (others => '0');
    signal out_data : std_logic_vector({out_width} - 1 downto 0);
    signal in_valid, out_ready : std_logic := '0';
    signal in_ready, out_valid : std_logic;
begin
    clk <= not clk after 5 ns;
    dut : entity work.{name} port map (
        clk => clk, rst => rst, in_data => in_data, in_valid => in_valid, in_ready => in_ready,
        out_data => out_data, out_valid => out_valid, out_ready => out_ready);

    process
        file stimulus : text open read_mode is "{stimulus}";
        file answers : text open read_mode is "{expected}";
        file outputs : text open write_mode is "outputs.mem";
        file result : text open write_mode is "result.txt";
        variable row : line;
        variable sample : bit_vector({width} - 1 downto 0);
        variable wanted : bit_vector({out_width} - 1 downto 0);
        variable sent, accepted, received, idle, wrong, cycle, phase : natural := 0;
        variable random : std_logic_vector(31 downto 0) := "{seed}";
        variable go_in, go_out : boolean;
    begin
        for run in 1 to {runs} loop
            rst <= '1';
            in_valid <= '0';
            out_ready <= '0';
            for each in 1 to 3 loop
                wait until rising_edge(clk);
            end loop;
            rst <= '0';
            idle := 0;
            sent := 0;
            accepted := 0;
            received := 0;
            while accepted < {sent} or received < {received} loop
                wait until rising_edge(clk);
                random := random(30 downto 0) & (random(31) xor random(21) xor random(1) xor random(0));
                cycle := (cycle + 7) mod 1024;
                phase := cycle / 256;
                go_in := not {stalls} or phase = 0 or phase = 2 or (phase = 1 and random(3 downto 0) = "0000")
                    or (phase = 3 and random(0) = '1');
                go_out := not {stalls} or phase = 0 or phase = 1 or (phase = 2 and random(7 downto 4) = "0000")
                    or (phase = 3 and random(5) = '1');
                idle := idle + 1;
                if in_valid = '1' and in_ready = '1' then
                    accepted := accepted + 1;
                    idle := 0;
                end if;
                if in_valid = '0' or in_ready = '1' then
                    if go_in and sent < {sent} then
                        readline(stimulus, row);
                        read(row, sample);
                        in_data <= to_stdlogicvector(sample);
                        in_valid <= '1';
                        sent := sent + 1;
                    else
                        in_data <= (others => 'X');
                        in_valid <= '0';
                    end if;
                end if;
                if out_valid = '1' and out_ready = '1' then
                    if received < {received} then
                        readline(answers, row);
                        read(row, wanted);
                        if out_data /= to_stdlogicvector(wanted) then
                            wrong := wrong + 1;
                        end if;
                        write(row, to_string(out_data));
                        writeline(outputs, row);
                        received := received + 1;
                        idle := 0;
                    elsif not {more} then
                        wrong := wrong + 1;
                    end if;
                end if;
                if go_out then
                    out_ready <= '1';
                else
                    out_ready <= '0';
                end if;
                if idle > {patience} then
                    report "stuck" severity note;
                    write(row, string'("FAIL"));
                    writeline(result, row);
                    finish;
                end if;
            end loop;
        end loop;
        if wrong = 0 then
            write(row, string'("PASS"));
            report "PASS" severity note;
        else
            write(row, string'("FAIL"));
            report "FAIL: " & integer'image(wrong) & " wrong" severity note;
        end if;
        writeline(result, row);
        finish;
    end process;
end architecture;
"""

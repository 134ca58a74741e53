"""Words that cannot name a module: those of Verilog-2005, SystemVerilog-2017 and VHDL-2008, and VHDL's types and functions."""

from __future__ import annotations

VERILOG = """
always and assign automatic begin buf bufif0 bufif1 case casex casez cell cmos config deassign default defparam design
disable edge else end endcase endconfig endfunction endgenerate endmodule endprimitive endspecify endtable endtask
event for force forever fork function generate genvar highz0 highz1 if ifnone incdir include initial inout input
instance integer join large liblist library localparam macromodule medium module nand negedge nmos nor noshowcancelled
not notif0 notif1 or output parameter pmos posedge primitive pull0 pull1 pulldown pullup pulsestyle_onevent
pulsestyle_ondetect rcmos real realtime reg release repeat rnmos rpmos rtran rtranif0 rtranif1 scalared showcancelled
signed small specify specparam strong0 strong1 supply0 supply1 table task time tran tranif0 tranif1 tri tri0 tri1
triand trior trireg unsigned use uwire vectored wait wand weak0 weak1 while wire wor xnor xor
"""

SYSTEM_VERILOG = """
accept_on alias always_comb always_ff always_latch assert assume before bind bins binsof bit break byte chandle
checker class clocking const constraint context continue cover covergroup coverpoint cross dist do endchecker endclass
endclocking endgroup endinterface endpackage endprogram endproperty endsequence enum eventually expect export extends
extern final first_match foreach forkjoin global iff ignore_bins illegal_bins implements implies import inside int
interconnect interface intersect let local logic longint matches modport nettype new nexttime null package packed
priority program property protected pure rand randc randcase randsequence ref reject_on restrict return s_always
s_eventually s_nexttime s_until s_until_with sequence shortint shortreal soft solve static string strong struct super
sync_accept_on sync_reject_on tagged this throughout timeprecision timeunit type typedef union unique unique0 until
until_with untyped var virtual void wait_order weak wildcard with within
"""

VHDL = """
abs access after alias all and architecture array assert assume assume_guarantee attribute begin block body buffer bus
case component configuration constant context cover default disconnect downto else elsif end entity exit fairness file
for force function generate generic group guarded if impure in inertial inout is label library linkage literal loop
map mod nand new next nor not null of on open or others out package parameter port postponed procedure process
property protected pure range record register reject release rem report restrict restrict_guarantee return rol ror
select sequence severity shared signal sla sll sra srl strong subtype then to transport type unaffected units until
use variable vmode vprop vunit wait when while with xnor xor work ieee std
"""

# Not reserved, but an entity of such a name hides the type or function that it needs.
VHDL_NAMES = """
bit bit_vector boolean character false integer integer_vector ieee natural now numeric_std positive real resize rising_edge
signed standard std_logic std_logic_1164 std_logic_vector string text textio time to_integer to_unsigned true unsigned
"""

RESERVED = {
    word: language
    for language, words in (("VHDL", VHDL_NAMES), ("VHDL", VHDL), ("SystemVerilog", SYSTEM_VERILOG), ("Verilog", VERILOG))
    for word in words.split()
}

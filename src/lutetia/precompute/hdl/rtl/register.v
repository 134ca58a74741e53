`default_nettype none

// A queue of DEPTH samples: a pipeline register when DEPTH is 1. Empty after a reset, latency 1.
// It accepts a sample in the cycle in which it hands one on, so a full one does not stop the stream.
// ROW: the place in a row of registers that hand on in every cycle, without an enable: 1 the first, 2 a middle one, 3 the last. The
// last is a queue that says no early enough to hold all that are under way, so DEPTH is 2 more than there are registers before it.
module lutetia_register #(
    parameter WIDTH = 1,  // bits of a sample
    parameter DEPTH = 1,
    parameter ROW = 0
) (
    input wire clk,
    input wire rst,
    input wire [WIDTH-1:0] in_data,
    input wire in_valid,
    output wire in_ready,
    output wire [WIDTH-1:0] out_data,
    output wire out_valid,
    input wire out_ready
);
    // Counters are as wide as they must be; the numbers beside them have 32 bits.
    /* verilator lint_off WIDTH */
    generate
        if (ROW == 1 || ROW == 2) begin : moving
            reg [WIDTH-1:0] data;
            reg full;
            assign in_ready = out_ready;
            assign out_valid = full;
            assign out_data = data;
            always @(posedge clk) full <= in_valid & !rst & (ROW == 2 | out_ready);
            always @(posedge clk) data <= in_data;
        end else if (ROW == 3) begin : ending
            // Fast: as many ones in `held` as there are samples, and pointers that know a step before that they will turn.
            reg [WIDTH-1:0] data [0:DEPTH-1];
            reg [$clog2(DEPTH)-1:0] first, last;
            reg first_turns, last_turns;
            reg [DEPTH-1:0] held;
            wire pop = out_valid & out_ready;
            assign in_ready = !held[1];
            assign out_valid = held[0];
            assign out_data = data[first];
            always @(posedge clk)
                if (in_valid) data[last] <= in_data;
            always @(posedge clk)
                if (rst) begin
                    {first, first_turns} <= 0;
                    {last, last_turns} <= 0;
                    held <= 0;
                end else begin
                    if (in_valid) begin
                        last <= last_turns ? 0 : last + 1;
                        last_turns <= last == DEPTH - 2;
                    end
                    if (pop) begin
                        first <= first_turns ? 0 : first + 1;
                        first_turns <= first == DEPTH - 2;
                    end
                    if (in_valid & !pop) held <= {held[DEPTH-2:0], 1'b1};
                    if (pop & !in_valid) held <= held >> 1;
                end
        end else if (DEPTH == 1) begin : single
            reg [WIDTH-1:0] data;
            reg full;
            assign in_ready = !full | out_ready;
            assign out_valid = full;
            assign out_data = data;
            always @(posedge clk)  // without an enable, which would put rst in front of it: one LUT less on the longest path
                if (rst) full <= 1'b0;
                else full <= in_valid | (full & !out_ready);
            always @(posedge clk)
                if (in_ready) data <= in_data;
        end else begin : queue
            reg [WIDTH-1:0] data [0:DEPTH-1];
            reg [$clog2(DEPTH)-1:0] first, last;
            reg [$clog2(DEPTH+1)-1:0] held;
            wire push = in_valid & in_ready;
            wire pop = out_valid & out_ready;
            assign in_ready = held != DEPTH | out_ready;
            assign out_valid = held != 0;
            assign out_data = data[first];
            always @(posedge clk)
                if (push) data[last] <= in_data;
            always @(posedge clk)
                if (rst) begin
                    first <= 0;
                    last <= 0;
                    held <= 0;
                end else begin
                    if (push) last <= last == DEPTH - 1 ? 0 : last + 1;
                    if (pop) first <= first == DEPTH - 1 ? 0 : first + 1;
                    if (push & !pop) held <= held + 1;
                    if (pop & !push) held <= held - 1;
                end
        end
    endgenerate
    /* verilator lint_on WIDTH */
endmodule

`default_nettype wire

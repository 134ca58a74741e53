`default_nettype none

// A queue of DEPTH samples: a pipeline register when DEPTH is 1. Empty after a reset, latency 1.
// It accepts a sample in the cycle in which it hands one on, so a full one does not stop the stream; with SKID it does not, and
// in_ready depends on no out_ready: there the path of ready signals through a row of registers ends. A DEPTH of 2 keeps it at full speed.
module lutetia_register #(
    parameter WIDTH = 1,  // bits of a sample
    parameter DEPTH = 1,
    parameter SKID = 0
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
        if (DEPTH == 1) begin : single
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
        end else if (DEPTH == 2 && SKID != 0) begin : skid
            // All that is seen from outside comes from flip-flops: the oldest sample, whether there is one, whether two.
            reg [WIDTH-1:0] data, spill;
            reg full, spilled;
            assign in_ready = !spilled;
            assign out_valid = full;
            assign out_data = data;
            always @(posedge clk)
                if (rst) begin
                    full <= 1'b0;
                    spilled <= 1'b0;
                end else begin
                    full <= in_valid | spilled | (full & !out_ready);
                    spilled <= full & !out_ready & (in_valid | spilled);
                end
            always @(posedge clk)
                if (!full | out_ready) data <= spilled ? spill : in_data;
            always @(posedge clk)
                if (!spilled) spill <= in_data;
        end else begin : queue
            reg [WIDTH-1:0] data [0:DEPTH-1];
            reg [$clog2(DEPTH)-1:0] first, last;
            reg [$clog2(DEPTH+1)-1:0] held;
            wire push = in_valid & in_ready;
            wire pop = out_valid & out_ready;
            assign in_ready = held != DEPTH | (out_ready & SKID == 0);
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

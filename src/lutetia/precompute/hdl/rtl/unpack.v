`default_nettype none

// One wide word in, PARTS samples out, the one in the lowest bits first. It holds no data: the word stays until its last part is taken.
module lutetia_unpack #(
    parameter BITS = 1,  // of a sample
    parameter PARTS = 2
) (
    input wire clk,
    input wire rst,
    input wire [BITS*PARTS-1:0] in_data,
    input wire in_valid,
    output wire in_ready,
    output wire [BITS-1:0] out_data,
    output wire out_valid,
    input wire out_ready
);
    // The counter is as wide as it must be; the numbers beside it have 32 bits.
    /* verilator lint_off WIDTH */
    reg [$clog2(PARTS)-1:0] part;
    wire last = part == PARTS - 1;
    assign out_data = in_data[BITS*part +: BITS];
    assign out_valid = in_valid;
    assign in_ready = out_ready & last;
    always @(posedge clk)
        if (rst) part <= 0;
        else if (in_valid & out_ready) part <= last ? 0 : part + 1;
    /* verilator lint_on WIDTH */
endmodule

`default_nettype wire

`default_nettype none

// Hands every sample to each of READERS readers once, in any order. The data goes past it: only valid and ready are here.
module lutetia_fork #(
    parameter READERS = 2
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    output wire [READERS-1:0] out_valid,
    input wire [READERS-1:0] out_ready
);
    reg [READERS-1:0] done;  // who has the present sample already
    assign out_valid = {READERS{in_valid}} & ~done;
    assign in_ready = &(done | out_ready);
    always @(posedge clk)
        if (rst | !in_valid | in_ready) done <= {READERS{1'b0}};
        else done <= done | out_ready;
endmodule

`default_nettype wire

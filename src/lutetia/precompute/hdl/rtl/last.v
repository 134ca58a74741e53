`default_nettype none

// The frame marker: high beside the last of every SAMPLES samples that are handed over.
module lutetia_last #(
    parameter SAMPLES = 1
) (
    input wire clk,
    input wire rst,
    input wire valid,
    input wire ready,
    output wire last
);
    // The counter is as wide as it must be; the numbers beside it have 32 bits.
    /* verilator lint_off WIDTH */
    generate
        if (SAMPLES == 1) begin : single
            assign last = 1'b1;
            wire unused = &{1'b0, clk, rst, valid, ready};
        end else begin : several
            reg [$clog2(SAMPLES)-1:0] place;  // of the present sample in its frame
            assign last = place == SAMPLES - 1;
            always @(posedge clk)
                if (rst) place <= 0;
                else if (valid & ready) place <= last ? 0 : place + 1;
        end
    endgenerate
    /* verilator lint_on WIDTH */
endmodule

`default_nettype wire

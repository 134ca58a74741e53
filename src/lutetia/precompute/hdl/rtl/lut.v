`default_nettype none

// A lookup table of K inputs, as a primitive: a synthesiser for such LUTs takes it as it is.
module lutetia_lut #(
    parameter K = 6,
    parameter [2**K-1:0] INIT = 0
) (
    input wire [K-1:0] i,
    output wire o
);
    assign o = INIT[i];
endmodule

`default_nettype wire

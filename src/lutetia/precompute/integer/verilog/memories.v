// A table memory: one row a cycle, the row after the address. Filled from a file.
module lutetia_rom #(
    parameter WIDTH = 8,
    parameter DEPTH = 2,
    parameter ADDRESS = 1,
    parameter FILE = ""
) (
    input wire clk,
    input wire [ADDRESS-1:0] address,
    output reg [WIDTH-1:0] data
);
    reg [WIDTH-1:0] rows [0:DEPTH-1];
    generate
        if (FILE != "") begin : filled
            initial $readmemh(FILE, rows);
        end
    endgenerate
    always @(posedge clk) data <= rows[address];
endmodule

// A memory that is written and read at once: what is read is what stood there before the cycle. With APART no word is read in the
// cycle in which it is written, so a block RAM needs no logic that looks at both addresses.
module lutetia_ram #(
    parameter WIDTH = 8,
    parameter DEPTH = 2,
    parameter ADDRESS = 1,
    parameter APART = 0
) (
    input wire clk,
    input wire [ADDRESS-1:0] address,
    output reg [WIDTH-1:0] data,
    input wire write,
    input wire [ADDRESS-1:0] write_address,
    input wire [WIDTH-1:0] write_data
);
    generate
        if (APART) begin : apart
            (* no_rw_check *) reg [WIDTH-1:0] rows [0:DEPTH-1];
            always @(posedge clk) begin
                if (write) rows[write_address] <= write_data;
                data <= rows[address];
`ifndef SYNTHESIS
                if (write && address == write_address) data <= {WIDTH{1'bx}};
`endif
            end
        end else begin : together
            reg [WIDTH-1:0] rows [0:DEPTH-1];
            always @(posedge clk) begin
                if (write) rows[write_address] <= write_data;
                data <= rows[address];
            end
        end
    endgenerate
endmodule

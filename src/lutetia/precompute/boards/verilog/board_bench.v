`timescale 1ns / 1ns

// Feeds a board at its serial pins. The file TOKENS has a word for each step, in hexadecimal digits:
//   0xx  send the byte xx; 1xx  send it without a stop bit; 2xx  send nothing for the time of xx bytes
//   300  cut the power: the registers that the device starts with are as at the start
// What comes back is printed, a byte a line, and a point after each step.
module lutetia_bench;
    localparam BIT = @BIT@; // cycles of clk
    reg clk = 0;
    reg rx = 1;
    wire tx, led;
    lutetia_board board (.clk(clk), .rx(rx), .tx(tx), .led(led));
    always #1 clk = !clk;

    integer file, found, at;
    reg [11:0] token;
    reg [1023:0] name;
    initial begin
        if (!$value$plusargs("tokens=%s", name)) name = "tokens.mem";
        file = $fopen(name, "r");
        repeat (@START@) @(posedge clk);
        found = $fscanf(file, "%h", token);
        while (found == 1) begin
            if (token[11:8] == 3) begin
                board.started = 0;
                board.rst = 1;
                repeat (@START@) @(posedge clk);
            end else if (token[11:8] == 2) repeat (10 * BIT * token[7:0]) @(posedge clk);
            else begin
                rx = 0;
                repeat (BIT) @(posedge clk);
                for (at = 0; at < 8; at = at + 1) begin
                    rx = token[at];
                    repeat (BIT) @(posedge clk);
                end
                rx = !token[8];
                repeat (BIT) @(posedge clk);
                rx = 1;
            end
            $display(".");
            $fflush;
            found = $fscanf(file, "%h", token);
        end
        $finish;
    end

    integer bits;
    reg [7:0] heard;
    always @(negedge tx) begin
        repeat (BIT / 2) @(posedge clk);
        for (bits = 0; bits < 8; bits = bits + 1) begin
            repeat (BIT) @(posedge clk);
            heard[bits] = tx;
        end
        repeat (BIT) @(posedge clk);
        if (tx) $display("%h", heard);
        else $display("broken");
        $fflush;
    end
endmodule

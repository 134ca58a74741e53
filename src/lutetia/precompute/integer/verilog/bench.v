// Feeds a prompt, then each answer back, and writes the answers after the prompt to outputs.mem, with the cycles of each.
`timescale 1ns / 1ps
module lutetia_bench;
    localparam PROMPT = @PROMPT@, COUNT = @COUNT@, STALLS = @STALLS@;
    reg clk = 0, rst = 1;
    reg [7:0] in_data = 0;
    reg in_valid = 0, out_ready = 0;
    wire in_ready, out_valid, out_error;
    wire [7:0] out_data;
    reg [7:0] prompt [0:PROMPT-1];
    reg [31:0] noise = 1;
    reg waiting = 0;
    integer sent = 0, written = 0, file, cycles = 0;

    lutetia_core core (.clk(clk), .rst(rst), .in_data(in_data), .in_valid(in_valid), .in_ready(in_ready),
                       .out_data(out_data), .out_error(out_error), .out_valid(out_valid), .out_ready(out_ready)@DRAWS@);

    always #5 clk = !clk;
    wire go = !STALLS || noise[0];

    initial begin
        $readmemh("prompt.mem", prompt);
        file = $fopen("outputs.mem", "w");
        repeat (4) @(posedge clk);
        rst <= 0;
    end

    // Ports are driven at the falling edge, so that no race decides what the core sees at the rising one.
    always @(negedge clk) if (!rst) begin
        noise = noise ^ (noise << 13);
        noise = noise ^ (noise >> 17);
        noise = noise ^ (noise << 5);
        out_ready = go;
        in_valid = !waiting && go;
    end

    always @(posedge clk) if (!rst) begin
        cycles <= cycles + 1;
        if (in_valid && in_ready) begin
            waiting <= 1;
            cycles <= 0;
        end
        if (out_valid && out_ready) begin
            waiting <= 0;
            sent <= sent + 1;
            if (sent >= PROMPT - 1) begin
                $fwrite(file, "%h %0d\n", out_data, cycles);
                in_data <= out_data;
                written <= written + 1;
                if (written + 1 == COUNT || out_error) begin
                    $fclose(file);
                    $finish;
                end
            end else in_data <= prompt[sent + 1];
        end
    end
    initial #1 in_data = prompt[0];
endmodule

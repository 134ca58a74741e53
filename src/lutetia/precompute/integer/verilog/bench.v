// Feeds a prompt, then each answer back, and writes the answers after the prompt to outputs.mem, with the cycles of each.
// Compiled once it runs many prompts: +prompt= the bytes in prompt.mem, +count= bytes to write, +stalls=1, +draw=1 and +seed=.
`timescale 1ns / 1ps
module lutetia_bench;
    localparam CONTEXT = @CONTEXT@;
    reg clk = 0, rst = 1;
    reg [7:0] in_data = 0;
    reg in_valid = 0, out_ready = 0;
    wire in_ready, out_valid, out_error;
    wire [7:0] out_data;
    reg [7:0] prompt [0:CONTEXT-1];
    reg [31:0] noise = 1, seed = 0;
    integer prompt_bytes = 1, count = 16, stalls = 0, draw = 0;
    reg waiting = 0;
    integer sent = 0, written = 0, file, cycles = 0;

    lutetia_core core (.clk(clk), .rst(rst), .in_data(in_data), .in_valid(in_valid), .in_ready(in_ready),
                       .out_data(out_data), .out_error(out_error), .out_valid(out_valid), .out_ready(out_ready)@DRAWS@);

    always #5 clk = !clk;
    wire go = stalls == 0 || noise[0];

    initial begin
        if ($value$plusargs("prompt=%d", prompt_bytes)) ;
        if ($value$plusargs("count=%d", count)) ;
        if ($value$plusargs("stalls=%d", stalls)) ;
        if ($value$plusargs("draw=%d", draw)) ;
        if ($value$plusargs("seed=%d", seed)) ;
        $readmemh("prompt.mem", prompt, 0, prompt_bytes - 1);
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
            if (sent >= prompt_bytes - 1) begin
                $fwrite(file, "%h %0d\n", out_data, cycles);
                in_data <= out_data;
                written <= written + 1;
                if (written + 1 == count || out_error) begin
                    $fclose(file);
                    $finish;
                end
            end else in_data <= prompt[sent + 1];
        end
    end
    initial #1 in_data = prompt[0];
endmodule

// Feeds samples, and writes the answers to outputs.mem, with the cycles of each.
`timescale 1ns / 1ps
module lutetia_bench;
    localparam COUNT = @COUNT@, BITS = @IN_BITS@;
    reg clk = 0, rst = 1;
    reg [BITS-1:0] samples [0:COUNT-1];
    reg in_valid = 0, out_ready = 0;
    wire in_ready, out_valid;
    wire [7:0] out_data;
    reg [31:0] noise = 1;
    reg waiting = 0;
    integer sent = 0, file, cycles = 0;

    lutetia_core core (.clk(clk), .rst(rst), .in_data(samples[sent]), .in_valid(in_valid), .in_ready(in_ready),
                       .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready));

    always #5 clk = !clk;

    initial begin
        $readmemh("samples.mem", samples);
        file = $fopen("outputs.mem", "w");
        repeat (4) @(posedge clk);
        rst <= 0;
    end

    // Ports are driven at the falling edge, so that no race decides what the core sees at the rising one; both sides pause.
    always @(negedge clk) if (!rst) begin
        noise = noise ^ (noise << 13);
        noise = noise ^ (noise >> 17);
        noise = noise ^ (noise << 5);
        out_ready = noise[0];
        in_valid = !waiting && noise[1] && sent < COUNT;
    end

    integer latency = 0;
    always @(posedge clk) if (!rst) begin
        cycles <= cycles + 1;
        if (in_valid && in_ready) begin
            waiting <= 1;
            cycles <= 0;
        end
        if (waiting && !out_valid) latency <= cycles + 1;
        if (out_valid && out_ready) begin
            waiting <= 0;
            sent <= sent + 1;
            $fwrite(file, "%h %0d\n", out_data, latency);
            if (sent + 1 == COUNT) begin
                $fclose(file);
                $finish;
            end
        end
    end
endmodule

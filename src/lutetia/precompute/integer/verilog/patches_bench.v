// Feeds images one after another, compares the answers with answers.mem, and writes them to outputs.mem, with the cycles of each
// from its last pixel. Both sides of the ports pause at random.
//   +slow    answers are taken so late that the next image has to wait for it
//   +resets  the core is reset while the first image comes, and again while it is answered; then that image is sent anew
`timescale 1ns / 1ps
module lutetia_bench;
    localparam COUNT = @COUNT@, PIXELS = @PIXELS@, BITS = @PIXEL_BITS@, OUT_BITS = @OUT_BITS@, CYCLES = @CYCLES@;
    localparam PER_IMAGE = @PER_IMAGE@;
    reg clk = 0, rst = 1;
    reg [BITS-1:0] images [0:COUNT*PIXELS-1];
    reg [OUT_BITS-1:0] answers [0:COUNT-1];
    reg in_valid = 0, out_ready = 0, was_valid = 0;
    wire in_ready, out_valid;
    wire [OUT_BITS-1:0] out_data;
    reg [31:0] noise = 1;
    reg [2:0] hold = 4; // cycles for which reset stays
    integer sent = 0, given = 0, wrong = 0, resets = 0, slow = 0, cycles = 0, took = 0, patience = 0, silent = 0, file;

    @TOP@

    always #5 clk = !clk;

    initial begin
        $readmemh("images.mem", images);
        $readmemh("answers.mem", answers);
        if ($test$plusargs("resets")) resets = 2;
        if ($test$plusargs("slow")) slow = 1;
        file = $fopen("outputs.mem", "w");
    end

    // Ports are driven at the falling edge, so that no race decides what the core sees at the rising one.
    always @(negedge clk) begin
        noise = noise ^ (noise << 13);
        noise = noise ^ (noise >> 17);
        noise = noise ^ (noise << 5);
        if ((resets == 2 && sent == PIXELS / 2) || (resets == 1 && sent == PIXELS && cycles == CYCLES / 2)) begin
            resets = resets - 1;
            hold = 4;
        end else if (hold != 0) hold = hold - 1;
        rst = hold != 0;
        patience = out_valid ? patience + 1 : 0;
        out_ready = slow ? patience > PER_IMAGE + 4 * PIXELS : noise[0];
        in_valid = !rst && noise[1] && sent < COUNT * PIXELS;
    end

    always @(posedge clk) begin
        cycles <= cycles + 1;
        silent <= (in_valid && in_ready) || (out_valid && out_ready) ? 0 : silent + 1;
        if (silent > 3 * (PER_IMAGE + 4 * PIXELS)) begin
            $fclose(file);
            $display("no answer to image %0d", given);
            $finish;
        end
        was_valid <= out_valid && !out_ready;
        if (rst) sent <= 0;
        else begin
            if (in_valid && in_ready) begin
                sent <= sent + 1;
                if ((sent + 1) % PIXELS == 0) cycles <= 0;
            end
            if (out_valid && out_ready) begin
                given <= given + 1;
                $fwrite(file, "%h %0d\n", out_data, was_valid ? took : cycles + 1);
                if (out_data !== answers[given]) wrong = wrong + 1;
                if (given + 1 == COUNT) begin
                    $fclose(file);
                    $display("%0d of %0d answers are those of the model", COUNT - wrong, COUNT);
                    $finish;
                end
            end else if (out_valid && !was_valid) took <= cycles + 1;
        end
    end
endmodule

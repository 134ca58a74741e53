// Feeds recordings one after another, compares the answers with answers.mem, and writes them to outputs.mem, with the cycles of
// each from the last sample of its window. Both sides of the ports pause at random.
//   +slow    answers are taken so late that the next window has to wait for it
//   +resets  the core is reset before its first window is full, and again while that is answered; then the recording begins anew
`timescale 1ns / 1ps
module lutetia_bench;
    localparam SAMPLES = @SAMPLES@, COUNT = @COUNT@, BITS = @SAMPLE_BITS@, OUT_BITS = @OUT_BITS@, CYCLES = @CYCLES@;
    localparam LENGTH = @LENGTH@, QUIET = 4 * (@CYCLES@ + @STEP@ + 64);
    reg clk = 0, rst = 1;
    reg [BITS+1:0] samples [0:SAMPLES-1]; // the highest bits: a window is full, and a recording ends
    reg [OUT_BITS-1:0] answers [0:COUNT-1];
    integer filled [0:COUNT-1]; // the cycle in which each window was full
    reg in_valid = 0, out_ready = 0, was_valid = 0;
    wire in_ready, out_valid;
    wire [OUT_BITS-1:0] out_data;
    reg [31:0] noise = 1;
    reg [2:0] hold = 4; // cycles for which reset stays
    integer sent = 0, given = 0, wrong = 0, resets = 0, slow = 0, full = 0, now = 0, took = 0, patience = 0, silent = 0, file;
    wire [BITS+1:0] sample = samples[sent < SAMPLES ? sent : 0];
    wire in_last = sample[BITS+1];

    @TOP@

    always #5 clk = !clk;

    initial begin
        $readmemh("samples.mem", samples);
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
        if ((resets == 2 && sent == LENGTH / 2) || (resets == 1 && full == 1 && now - filled[0] == CYCLES / 2)) begin
            resets = resets - 1;
            hold = 4;
        end else if (hold != 0) hold = hold - 1;
        rst = hold != 0;
        patience = out_valid ? patience + 1 : 0;
        out_ready = slow ? patience > 2 * (CYCLES + @STEP@) : noise[0];
        in_valid = !rst && noise[1] && sent < SAMPLES;
    end

    always @(posedge clk) begin
        now <= now + 1;
        silent <= (in_valid && in_ready) || (out_valid && out_ready) ? 0 : silent + 1;
        if (silent > QUIET) begin
            $fclose(file);
            $display("no answer to window %0d", given);
            $finish;
        end
        was_valid <= out_valid && !out_ready;
        if (rst) {sent, full} <= 0;
        else begin
            if (in_valid && in_ready) begin
                sent <= sent + 1;
                if (sample[BITS]) begin
                    filled[full] <= now;
                    full <= full + 1;
                end
            end
            if (out_valid && out_ready) begin
                given <= given + 1;
                $fwrite(file, "%h %0d\n", out_data, was_valid ? took : now - filled[given]);
                if (out_data !== answers[given]) wrong = wrong + 1;
                if (given + 1 == COUNT) begin
                    $fclose(file);
                    $display("%0d of %0d answers are those of the model", COUNT - wrong, COUNT);
                    $finish;
                end
            end else if (out_valid && !was_valid) took <= now - filled[given];
        end
    end
endmodule

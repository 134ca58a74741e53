// The next byte drawn by its score: weights of what each score lacks to the best, their running totals, a random number below the
// sum of all, and the first byte whose total is greater. The generator is a 32-bit xorshift, which starts with the seed at a reset.
module lutetia_draw #(
    parameter VOCAB = 2,
    parameter SUM_BITS = 2,
    parameter DROP = 0,
    parameter STEPS = 1,
    parameter STEP_BITS = 1
) (
    input wire clk,
    input wire rst,
    input wire [31:0] seed,
    input wire write,
    input wire [7:0] write_number,
    input wire signed [SUM_BITS-1:0] write_score,
    input wire signed [SUM_BITS-1:0] best,
    input wire go, // until done
    output wire done,
    output reg [7:0] chosen
);
    localparam REST = 0, WEIGH = 1, MASK = 2, TURN = 3, TEST = 4, PROBE = 5, MOVE = 6, DONE = 7;
    reg [2:0] state;
    reg [31:0] generator;
    reg [23:0] total, mask, random;
    reg [8:0] number, probe_bit;

    // Stages of WEIGH: the score, the step of the table of weights, the weight.
    reg [3:1] live;
    reg [7:0] number_1, number_2, number_3;
    wire signed [SUM_BITS-1:0] score;
    wire [SUM_BITS:0] lacking = {best[SUM_BITS-1], best} - {score[SUM_BITS-1], score};
    wire [SUM_BITS:0] steps = lacking >> DROP;
    reg [STEP_BITS-1:0] step;
    wire [15:0] weight;
    wire [23:0] sum = total + weight;
    lutetia_ram #(.WIDTH(SUM_BITS), .DEPTH(256), .ADDRESS(8)) score_memory (
        .clk(clk), .address(number[7:0]), .data(score), .write(write), .write_address(write_number), .write_data(write_score));
    lutetia_rom #(.WIDTH(16), .DEPTH(STEPS + 1), .ADDRESS(STEP_BITS), .FILE("weights.mem")) weight_memory (
        .clk(clk), .address(step), .data(weight));

    wire [8:0] probe = {1'b0, chosen} + probe_bit - 1;
    wire [23:0] running;
    lutetia_ram #(.WIDTH(24), .DEPTH(256), .ADDRESS(8)) total_memory (
        .clk(clk), .address(probe[7:0]), .data(running), .write(live[3]), .write_address(number_3), .write_data(sum));

    wire [31:0] shifted_left = generator ^ (generator << 13);
    wire [31:0] shifted_right = shifted_left ^ (shifted_left >> 17);
    wire [23:0] ones = total - 1;
    wire [23:0] ones_2 = ones | ones >> 1;
    wire [23:0] ones_4 = ones_2 | ones_2 >> 2;
    wire [23:0] ones_8 = ones_4 | ones_4 >> 4;
    wire [23:0] ones_16 = ones_8 | ones_8 >> 8;
    assign done = state == DONE;

    always @(posedge clk) begin
        live <= {live[2:1], state == WEIGH && number < VOCAB};
        {number_1, number_2, number_3} <= {number[7:0], number_1, number_2};
        step <= steps > STEPS ? STEPS : steps[STEP_BITS-1:0];
        if (live[3]) total <= sum;
        case (state)
            REST: if (go) begin
                state <= WEIGH;
                number <= 0;
                total <= 0;
            end
            WEIGH: if (number < VOCAB) number <= number + 1;
                else if (live == 0) state <= MASK;
            MASK: begin
                mask <= ones_16 | ones_16 >> 16;
                state <= TURN;
            end
            TURN: begin
                generator <= shifted_right ^ (shifted_right << 5);
                state <= TEST;
            end
            TEST: begin
                random <= generator[23:0] & mask;
                chosen <= 0;
                probe_bit <= 128;
                state <= (generator[23:0] & mask) < total ? PROBE : TURN;
            end
            PROBE: state <= probe_bit == 0 ? DONE : MOVE;
            MOVE: begin
                if (probe < VOCAB && running <= random) chosen <= chosen + probe_bit[7:0];
                probe_bit <= probe_bit >> 1;
                state <= PROBE;
            end
            default: state <= REST;
        endcase
        if (rst) begin
            state <= REST;
            live <= 0;
            generator <= seed == 0 ? 32'd2463534242 : seed;
        end
    end
endmodule

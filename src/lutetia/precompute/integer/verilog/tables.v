// Looks codes up in tables: K comparisons of codes are the number of a row, whose numbers are added to the sums. The answer is the
// greatest sum, or the only one. What is compared and the rows are in memories that are read from the first word to the last.
//
// The codes of all inputs are written; `start` comes for a cycle, after the last one. `done` is high in the cycle that ends with
// the answer in `out_data`: it waits there for one that nobody took.
module lutetia_tables (
    input wire clk,
    input wire rst,
    input wire write,
    input wire [@INPUT_BITS@-1:0] number, // of the input
    input wire [7:0] code,
    input wire start,
    output wire done,
    output reg @SIGNED@[@OUT_BITS@-1:0] out_data,
    output reg out_valid,
    input wire out_ready
);
@PARAMETERS@
    localparam IDLE = 0, LOOK = 1, BEST = 2;
    reg [1:0] state;
    wire is_constant;
    wire [INPUT_BITS-1:0] left;
    wire [RIGHT_BITS-1:0] right;
    reg [LANE_BITS-1:0] lane;
    reg [TICK_BITS-1:0] tick;
    reg looking;
    wire in_turn = looking && tick < K;
    lutetia_rom #(.WIDTH(INPUT_BITS + RIGHT_BITS + 1), .DEPTH(LANES), .ADDRESS(LANE_BITS), .FILE("lanes.mem")) lane_memory (
        .clk(clk), .address(lane), .data({is_constant, right, left}));
    wire [7:0] left_code, right_code;
    lutetia_ram #(.WIDTH(8), .DEPTH(INPUTS), .ADDRESS(INPUT_BITS), .APART(1)) left_codes (
        .clk(clk), .address(left), .data(left_code), .write(write), .write_address(number), .write_data(code));
    lutetia_ram #(.WIDTH(8), .DEPTH(INPUTS), .ADDRESS(INPUT_BITS), .APART(1)) right_codes (
        .clk(clk), .address(right[INPUT_BITS-1:0]), .data(right_code),
        .write(write), .write_address(number), .write_data(code));
    // Stages of a comparison: 1 the inputs, 2 their codes; of a row: 3 its number, 4 one number of it, 5 that in a register
    reg [2:1] compared, row_whole;
    reg is_constant_2;
    reg [7:0] constant_2;
    reg [K-1:0] row_bits;
    wire bit_2 = left_code > (is_constant_2 ? constant_2 : right_code);
    wire [K:0] row_next = {row_bits, bit_2};
    reg [K-1:0] row_3;
    reg [OUTPUT_BITS-1:0] output_3;
    reg reading_3, reading_4, reading_5;
    reg [BLOCK_BITS-1:0] block; // of the rows of one output of one table
    wire [W-1:0] row_4;
    reg [W-1:0] row_5;
    lutetia_rom #(.WIDTH(W), .DEPTH(BLOCKS << K), .ADDRESS(BLOCK_BITS + K), .FILE("rows.mem")) row_memory (
        .clk(clk), .address({block, row_3}), .data(row_4));

    // The sums stand in a ring, whose first is added to and goes to the end.
    reg [OUTPUTS*SUM_BITS-1:0] sums;
    wire signed [SUM_BITS-1:0] candidate = sums[SUM_BITS-1:0];
    wire [SUM_BITS-1:0] added = candidate + (reading_5 ? {{(SUM_BITS-W){1'b0}}, row_5} : {SUM_BITS{1'b0}});
    wire [(OUTPUTS+1)*SUM_BITS-1:0] turned = {added, sums};
    reg signed [SUM_BITS-1:0] best;
    reg [OUTPUT_BITS-1:0] output_number, best_number;
    wire unused = &{1'b0, row_next[K], turned[SUM_BITS-1:0], best_number}; // shifted out, or not asked
    wire better = output_number == 0 || candidate > best;
    wire closes = output_number == LAST_OUTPUTS;
    wire waits = out_valid && !out_ready;
    assign done = state == BEST && closes && !waits;

    always @(posedge clk) begin
        compared <= {compared[1], in_turn};
        row_whole <= {row_whole[1], tick == K - 1};
        is_constant_2 <= is_constant;
        constant_2 <= right[7:0];
        if (compared[2]) row_bits <= row_next[K-1:0];
        if (compared[2] && row_whole[2]) begin
            row_3 <= row_next[K-1:0];
            reading_3 <= 1;
            output_3 <= 0;
        end else if (reading_3) begin
            output_3 <= output_3 + 1;
            reading_3 <= output_3 != LAST_OUTPUTS;
        end
        if (reading_3) block <= block + 1;
        {reading_4, reading_5} <= {reading_3, reading_4};
        row_5 <= row_4;
        if (reading_5 || (state == BEST && !(closes && waits))) sums <= turned[(OUTPUTS+1)*SUM_BITS-1:SUM_BITS];

        if (out_valid && out_ready) out_valid <= 0;
        case (state)
            IDLE: begin
                lane <= 0;
                block <= 0;
                sums <= BIAS;
                tick <= 0;
                looking <= start;
                if (start) state <= LOOK;
            end
            LOOK: begin
                output_number <= 0;
                if (in_turn) lane <= lane + 1;
                if (looking) begin
                    tick <= tick == PERIOD - 1 ? 0 : tick + 1;
                    if (in_turn && lane == LAST_LANES) looking <= 0;
                end else if (!(compared[1] || compared[2] || reading_3 || reading_4 || reading_5)) state <= BEST;
            end
            BEST: if (!(closes && waits)) begin
                output_number <= output_number + 1;
                if (better) begin
                    best <= candidate;
                    best_number <= output_number;
                end
                if (closes) begin
                    out_data <= @ANSWER@;
                    out_valid <= 1;
                    state <= IDLE;
                end
            end
            default: state <= IDLE;
        endcase
        if (rst) begin
            state <= IDLE;
            looking <= 0;
            compared <= 0;
            reading_3 <= 0;
            reading_4 <= 0;
            reading_5 <= 0;
            out_valid <= 0;
        end
    end
endmodule

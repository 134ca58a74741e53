// A classifier of one layer of tables, whose D comparators, memories and adders are used GROUPS times for every sample.
//
// A sample is accepted by ready and valid, all inputs at once, and answered with the number of its class.
module lutetia_core (
    input wire clk,
    input wire rst,
    input wire [@IN_BITS@-1:0] in_data,
    input wire in_valid,
    output wire in_ready,
    output reg [7:0] out_data,
    output reg out_valid,
    input wire out_ready
);
@PARAMETERS@
    localparam IDLE = 0, RUN = 1, BEST = 2;
    localparam LANE = 2 * INDEX_BITS + B + 3;

    // What a group of lookups passes after its cycle in RUN, a cycle each; live[n] where a group is in stage n.
    //   1  what to compare, out of its memory    4  compared: the row of each bank
    //   2  this in registers                     5  the rows
    //   3  two numbers for every comparison      6  the sum over the banks
    reg [6:1] live;
    reg [1:0] state;
    reg issuing;
    reg [GROUP_BITS-1:0] g, g_1, g_2, g_3, g_4;
    reg [N*B-1:0] x;
    reg [D*K-1:0] cell_4;
    reg [7:0] number;
    reg signed [SUM_BITS-1:0] best;

    wire [D*K*LANE-1:0] lanes;
    reg [D*K*LANE-1:0] lanes_2;
    lutetia_rom #(.WIDTH(D * K * LANE), .DEPTH(GROUPS), .ADDRESS(GROUP_BITS), .FILE("lanes.mem")) lane_memory (
        .clk(clk), .address(g), .data(lanes));

    // Two's complement numbers of B + 1 bits: an input, or a constant from -1 on.
    wire [(N << SPREAD)-1:0] inputs; // one starts at a multiple of 2**SPREAD: choosing it is a tree of muxes
    genvar b, r, c;
    generate
        for (c = 0; c < N; c = c + 1) begin : input_of
            assign inputs[(c << SPREAD) +: (1 << SPREAD)] = x[c*B +: B];
        end
        for (b = 0; b < D; b = b + 1) begin : bank
            for (r = 0; r < K; r = r + 1) begin : lane
                wire [LANE-1:0] own = lanes_2[(b*K + r)*LANE +: LANE];
                wire [INDEX_BITS-1:0] left = own[0 +: INDEX_BITS];
                wire [INDEX_BITS-1:0] right = own[INDEX_BITS +: INDEX_BITS];
                reg signed [B:0] left_3, right_3;
                reg flip_3;
                always @(posedge clk) begin
                    left_3 <= {1'b0, inputs[{left, {SPREAD{1'b0}}} +: B]};
                    right_3 <= own[LANE-2] ? own[2*INDEX_BITS +: B + 1] : {1'b0, inputs[{right, {SPREAD{1'b0}}} +: B]};
                    flip_3 <= own[LANE-1];
                    cell_4[b*K + r] <= (left_3 > right_3) ^ flip_3;
                end
            end
        end
    endgenerate
@MEMORIES@
    wire [OUTPUTS*SUM_BITS-1:0] sums;
    wire accept = in_valid && in_ready;
    generate
        for (c = 0; c < OUTPUTS; c = c + 1) begin : total
            reg signed [SUM_BITS-1:0] sum, added, added_6;
            integer from;
            assign sums[c*SUM_BITS +: SUM_BITS] = sum;
            always @* begin
                added = 0;
                for (from = 0; from < D; from = from + 1)
                    added = added + rows[(from*OUTPUTS + c)*W +: W];
            end
            always @(posedge clk) begin
                added_6 <= added;
                if (accept) sum <= BIAS[c*SUM_BITS +: SUM_BITS];
                else if (live[6]) sum <= sum + added_6;
                else if (state == BEST) sum <= sums[((c + 1) % OUTPUTS)*SUM_BITS +: SUM_BITS];
            end
        end
    endgenerate

    wire signed [SUM_BITS-1:0] candidate = sums[SUM_BITS-1:0];
    wire better = number == 0 || candidate > best;
    assign in_ready = state == IDLE && !out_valid && !rst;

    always @(posedge clk) begin
        live <= {live[5:1], state == RUN && issuing};
        {g_1, g_2, g_3, g_4} <= {g, g_1, g_2, g_3};
        lanes_2 <= lanes;
        if (out_valid && out_ready) out_valid <= 0;
        case (state)
            IDLE: if (accept) begin
                x <= in_data;
                g <= 0;
                issuing <= 1;
                state <= RUN;
            end
            RUN: begin
                number <= 0;
                if (issuing) begin
                    g <= g + 1;
                    issuing <= g != GROUPS - 1;
                end else if (!(|live[5:1])) state <= BEST;
            end
            BEST: begin
                number <= number + 1;
                if (better) begin
                    best <= candidate;
                    out_data <= number;
                end
                if (number == OUTPUTS - 1) begin
                    out_valid <= 1;
                    state <= IDLE;
                end
            end
            default: state <= IDLE;
        endcase
        if (rst) begin
            state <= IDLE;
            live <= 0;
            issuing <= 0;
            out_valid <= 0;
        end
    end
endmodule

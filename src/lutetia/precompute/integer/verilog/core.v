// A language model of lookup tables: a byte in, the next byte out. Compare, look up, add; nothing is multiplied.
//
// Every accepted byte joins the window, the oldest leaving when it is full, and is answered by the best next byte. A byte that is
// not of the vocabulary is answered with out_error and leaves the window as it was. rst empties the window.
module lutetia_core (
    input wire clk,
    input wire rst,
    input wire [7:0] in_data,
    input wire in_valid,
    output wire in_ready,
    output reg [7:0] out_data,
    output reg out_error,
    output reg out_valid,
    input wire out_ready@DRAW_PORTS@
);
@PARAMETERS@
    // States, parts of a block, and what RUN does.
    localparam IDLE = 0, EMBED = 1, SCALE = 2, RANK = 3, RUN = 4, ADD = 5, BEST = 6, DRAW = 7;
    localparam ATTENTION = 0, FEED_FORWARD = 1, LAST = 2;
    localparam TAKE = 0, DETECT = 1, ATTEND = 2, FETCH = 3;

    reg [2:0] state;
    reg [1:0] part, step, op;
    reg [LAYER_BITS-1:0] layer;
    reg [PLACE_BITS-1:0] j, first, other, distance;
    reg [PLACE_BITS:0] length;
    reg refresh, issuing, theirs;
    reg [GROUP_BITS-1:0] g;
    reg [PLACE_BITS-1:0] i;
    reg [STEP_BITS-1:0] k;
    reg [TURN_BITS:0] turn, compared, counted;
    reg [CHUNK_BITS-1:0] chunk;
    reg [WIDTH_BITS:0] shifted;
    reg [NUMBER_BITS-1:0] number;
    reg [7:0] best_byte;
    reg signed [SUM_BITS-1:0] best;
    reg drawing;

    // What a group of detectors passes after its cycle in RUN, a cycle each; live[n] where a group is in stage n.
    //   1  out of the memories of anchors, keys and positions    5  the address of each bank's row
    //   2  these in registers                                    6  the rows
    //   3  the ranks of two channels for every anchor            7  these in registers
    //   4  compared: the cell of each bank's detector            8  the sum over the banks
    reg [8:1] live;
    reg [4:1] detects; // what is in stage n is a group of DETECT
    reg [LAYER_BITS-1:0] home_layer; // where its keys go: the next place may have begun
    reg [PLACE_BITS-1:0] home;
    reg [GROUP_BITS-1:0] g_1, g_2, g_3, g_4;
    reg [D*CELL_BITS-1:0] cell_4;

    // ---- places of the window: a ring, the oldest byte at `first` ---------------------------------------------------
    wire [PLACE_BITS:0] unwrapped = {1'b0, first} + {1'b0, j};
    wire [PLACE_BITS:0] wrapped = unwrapped >= CONTEXT ? unwrapped - CONTEXT : unwrapped;
    wire [PLACE_BITS-1:0] place = wrapped[PLACE_BITS-1:0];
    wire full = length == CONTEXT;
    wire accept = in_valid && in_ready;
    wire known = {1'b0, in_data} < VOCAB;
    wire [PLACE_BITS-1:0] newest = full ? first : length[PLACE_BITS-1:0];
    assign in_ready = state == IDLE && !out_valid && !rst;

    // ---- what depends on the layer ----------------------------------------------------------------------------------
@LAYERS@
    wire final_layer = layer == LAYERS - 1;
    wire [1:0] next_part = part == ATTENTION ? FEED_FORWARD : final_layer ? LAST : ATTENTION;
    wire [LAYER_BITS-1:0] next_layer = part == ATTENTION ? layer : layer + 1;

    // ---- memories ---------------------------------------------------------------------------------------------------
    wire [7:0] window_byte;
    lutetia_ram #(.WIDTH(8), .DEPTH(1 << PLACE_BITS), .ADDRESS(PLACE_BITS)) window_memory (
        .clk(clk), .address(place), .data(window_byte), .write(accept && known), .write_address(newest), .write_data(in_data));

    wire [WIDTH*16-1:0] embedded;
    lutetia_rom #(.WIDTH(WIDTH * 16), .DEPTH(VOCAB), .ADDRESS(8), .FILE("embedding.mem")) embedding_memory (
        .clk(clk), .address(window_byte), .data(embedded));

    wire [ANCHOR_ADDRESS-1:0] anchor_address = anchor_base + g;
    wire [D*PAIRS*2*WIDTH_BITS-1:0] anchors;
    lutetia_rom #(.WIDTH(D * PAIRS * 2 * WIDTH_BITS), .DEPTH(ANCHOR_ROWS), .ADDRESS(ANCHOR_ADDRESS), .FILE("anchors.mem"))
        anchor_memory (.clk(clk), .address(anchor_address), .data(anchors));

    // The index cache: K of every position.
    wire [PLACE_BITS-1:0] key_place = op != TAKE ? i : theirs ? other : place;
    wire [D*A-1:0] keys;
    wire [D*A-1:0] found;
    lutetia_ram #(.WIDTH(D * A), .DEPTH(1 << (LAYER_BITS + PLACE_BITS + GROUP_BITS)),
                  .ADDRESS(LAYER_BITS + PLACE_BITS + GROUP_BITS)) key_memory (
        .clk(clk), .address({layer, key_place, g}), .data(keys),
        .write(detects[4]), .write_address({home_layer, home, g_4}), .write_data(found));

    // What the attention of the first block saw at every position.
    wire [WIDTH*SUM_BITS-1:0] sums, seen;
    lutetia_ram #(.WIDTH(WIDTH * SUM_BITS), .DEPTH(1 << PLACE_BITS), .ADDRESS(PLACE_BITS)) seen_memory (
        .clk(clk), .address(place), .data(seen),
        .write(state == ADD && part == ATTENTION && layer == 0), .write_address(place), .write_data(sums));
@MEMORIES@
    // ---- the stream, the compared stream, its ranks and the sums: one of each for every channel ---------------------
    // The rank of a channel is how many channels are smaller. One channel is greater than another where its rank is, and a rank has
    // few bits to choose from. In every turn each channel is compared with SHOWN of them. A lane is as wide as a power of two, so
    // that choosing one is a tree of muxes.
    wire [(SHOWN << (TURN_BITS + LANE_BITS))-1:0] lanes;
    wire [(WIDTH << RANK_LANE_BITS)-1:0] ranks;
    reg [SHOWN*COMPARED_BITS-1:0] shown;
    reg [D*WIDTH*8-1:0] rows_7;
    reg clear, load, taking;
    function [2:0] ones(input [3:0] four);
        case (four)
            0: ones = 0;
            1, 2, 4, 8: ones = 1;
            3, 5, 6, 9, 10, 12: ones = 2;
            15: ones = 4;
            default: ones = 3;
        endcase
    endfunction
    genvar c, b, r, v;
    always @(posedge clk) rows_7 <= rows;
    generate
        for (c = 0; c < WIDTH; c = c + 1) begin : channel
            reg signed [STREAM_BITS-1:0] x;
            reg signed [COMPARED_BITS-1:0] s;
            reg signed [SUM_BITS-1:0] sum;
            wire signed [15:0] row = embedded[c*16 +: 16];
            wire signed [STREAM_BITS-1:0] wide_sum = sum;
            wire signed [STREAM_BITS-1:0] wide_row = row;
            wire signed [COMPARED_BITS-1:0] wide_x = x;
            reg signed [STREAM_BITS-1:0] joined;
            reg signed [SUM_BITS-1:0] added, added_8;
            reg [WIDTH_BITS-1:0] rank, smaller;
            reg [FOURS*4-1:0] above; // one bit for each channel that is shown: it is smaller
            integer bank, n;
            assign lanes[(c << LANE_BITS) +: (1 << LANE_BITS)] = s;
            assign ranks[(c << RANK_LANE_BITS) +: (1 << RANK_LANE_BITS)] = rank;
            assign sums[c*SUM_BITS +: SUM_BITS] = sum;
            always @* begin
                case (shift_choice)
@SHIFTS@
                endcase
            end
            always @* begin
                added = 0;
                for (bank = 0; bank < D; bank = bank + 1)
                    added = added + $signed(rows_7[(bank*WIDTH + c)*8 +: 8]);
            end
            always @* begin
                smaller = 0;
                for (n = 0; n < FOURS; n = n + 1)
                    smaller = smaller + ones(above[n*4 +: 4]);
            end
@DIGIT@
            always @(posedge clk) begin
                added_8 <= added;
                above <= 0;
                for (n = 0; n < SHOWN; n = n + 1)
                    above[n] <= s > $signed(shown[n*COMPARED_BITS +: COMPARED_BITS]);
                if (counted == 0) rank <= smaller;
                else if (!counted[TURN_BITS]) rank <= rank + smaller;
                if (step == 2) x <= wide_row <<< EMBEDDING_SHIFT;
                else if (state == ADD) x <= x + joined;
                if (state == SCALE) s <= @SCALED@;
                if (clear) sum <= 0;
                else if (load) sum <= seen[c*SUM_BITS +: SUM_BITS];
                else if (live[8]) sum <= taking ? sum - added_8 : sum + added_8;
                else if (state == BEST) sum <= sums[((c + 1) % WIDTH)*SUM_BITS +: SUM_BITS];
            end
        end
        for (c = WIDTH; c < (SHOWN << TURN_BITS); c = c + 1) begin : absent
            assign lanes[(c << LANE_BITS) +: (1 << LANE_BITS)] = {1'b0, {COMPARED_BITS-1{1'b1}}}; // greater than none
        end
        for (v = 0; v < SHOWN; v = v + 1) begin : showing
            wire [(1 << (TURN_BITS + LANE_BITS))-1:0] turns = lanes[(v << (TURN_BITS + LANE_BITS)) +: (1 << (TURN_BITS + LANE_BITS))];
            always @(posedge clk) shown[v*COMPARED_BITS +: COMPARED_BITS] <= turns[{turn[TURN_BITS-1:0], {LANE_BITS{1'b0}}} +: COMPARED_BITS];
        end
    endgenerate

    // ---- comparisons, and the row of each bank's detector -----------------------------------------------------------
    reg [D*A-1:0] queries [0:GROUPS-1];
    reg [D*A-1:0] keys_2, asked_2;
    reg [D*PAIRS*2*WIDTH_BITS-1:0] anchors_2;
    always @(posedge clk) begin
        anchors_2 <= anchors;
        keys_2 <= keys;
        asked_2 <= op == TAKE ? keys_2 : queries[g_1]; // TAKE reads the keys of its own place a cycle before the other's
    end
    generate
        for (b = 0; b < D; b = b + 1) begin : detector
            wire [PAIRS-1:0] index;
            wire [A-1:0] key = keys_2[b*A +: A];
            wire [A-1:0] asked = asked_2[b*A +: A];
            reg [CELL_BITS-1:0] cell_3;
            for (r = 0; r < PAIRS; r = r + 1) begin : pair
                wire [WIDTH_BITS-1:0] left = anchors_2[((b*PAIRS + r)*2)*WIDTH_BITS +: WIDTH_BITS];
                wire [WIDTH_BITS-1:0] right = anchors_2[((b*PAIRS + r)*2 + 1)*WIDTH_BITS +: WIDTH_BITS];
                reg [WIDTH_BITS-1:0] left_3, right_3;
                always @(posedge clk) begin
                    left_3 <= ranks[{left, {RANK_LANE_BITS{1'b0}}} +: WIDTH_BITS];
                    right_3 <= ranks[{right, {RANK_LANE_BITS{1'b0}}} +: WIDTH_BITS];
                end
                assign index[r] = left_3 > right_3;
            end
            always @(posedge clk) begin
                cell_3 <= @CELL@;
                cell_4[b*CELL_BITS +: CELL_BITS] <= detects[3] || op == FETCH ? index : cell_3;
            end
            assign found[b*A +: A] = cell_4[b*CELL_BITS +: A];
        end
    endgenerate

    // ---- the sequencer ----------------------------------------------------------------------------------------------
    wire [GROUP_BITS-1:0] last_group = op != FETCH ? GROUPS - 1 : part == LAST ? LAST_GROUPS - 1 : FF_GROUPS - 1;
    wire run_ends = state == RUN && !issuing && !(|live[3:1]) && (op == DETECT || !(|live[7:4]));
    wire signed [SUM_BITS-1:0] candidate = sums[SUM_BITS-1:0];
    wire better = number < VOCAB && (number == 0 || candidate > best);
    wire chunk_ends = state == BEST && shifted == WIDTH - 1;
@DRAW@

    // A cycle late, which rows never notice: they are added TO_SUMS cycles after their group at the earliest.
    always @(posedge clk) begin
        clear <= state == RANK || chunk_ends;
        load <= refresh && step == 1;
        taking <= op == TAKE;
    end

    task start(input [1:0] what);
        begin
            state <= RUN;
            op <= what;
            issuing <= 1;
            theirs <= 0;
            g <= 0;
        end
    endtask

    // A place of the window begins: what its first attention saw, less what it saw of the byte that left, or all of it anew.
    task begin_place(input [PLACE_BITS-1:0] which, input again);
        begin
            j <= which;
            distance <= which;
            refresh <= again;
            step <= 0;
            layer <= 0;
            part <= ATTENTION;
            if (again) start(TAKE);
            else state <= EMBED;
        end
    endtask

    always @(posedge clk) begin
        live <= {live[7:5], live[4] && !detects[4], live[3:1], state == RUN && issuing && (op != TAKE || theirs)};
        {g_1, g_2, g_3, g_4} <= {g, g_1, g_2, g_3};
        detects <= {detects[3:1], state == RUN && issuing && op == DETECT};
        if (detects[4]) queries[g_4] <= found;
        if (op == DETECT && issuing) {home_layer, home} <= {layer, place};
        if (step != 3) step <= step + 1;
        if (state != SCALE && !turn[TURN_BITS]) turn <= turn + 1;
        {compared, counted} <= {turn, compared};
        if (out_valid && out_ready) out_valid <= 0;
        case (state)
            IDLE: if (accept) begin
                drawing <= wants_draw;
                if (!known) begin
                    out_data <= 0;
                    out_error <= 1;
                    out_valid <= 1;
                end else if (full) begin
                    first <= first == CONTEXT - 1 ? 0 : first + 1;
                    other <= first;
                    begin_place(LAYERS > 1 ? 0 : CONTEXT - 1, LAYERS > 1 && CONTEXT > 1);
                end else begin
                    length <= length + 1;
                    begin_place(length[PLACE_BITS-1:0], 0);
                end
            end
            EMBED: if (step == 2) state <= SCALE;
            SCALE: begin
                k <= k + 1;
                turn <= 0;
                if (scaled) begin
                    k <= 0;
                    state <= RANK;
                end
            end
            RANK: begin // the first group may leave while the last turns go on: it takes two cycles to the ranks
                chunk <= 0;
                number <= 0;
                if (turn == TURNS - 1) start(part == ATTENTION ? DETECT : FETCH);
            end
            RUN: begin
                if (issuing && op == TAKE && !theirs) theirs <= 1;
                else if (issuing) begin
                    theirs <= 0;
                    g <= g + 1;
                    if (g == last_group) begin
                        g <= 0;
                        i <= i == CONTEXT - 1 ? 0 : i + 1;
                        distance <= distance - 1;
                        issuing <= op == ATTEND && distance != 0;
                        if (op == DETECT && refresh && final_layer) begin_place(j + 1, j != CONTEXT - 2);
                    end
                end else if (run_ends) begin
                    shifted <= 0;
                    case (op)
                        DETECT: begin
                            i <= first;
                            distance <= j - 1;
                            if (j == 0) state <= ADD;
                            else start(ATTEND);
                        end
                        FETCH: state <= part == LAST ? BEST : ADD;
                        default: state <= ADD;
                    endcase
                end
            end
            ADD: begin
                state <= SCALE;
                part <= next_part;
                layer <= next_layer;
            end
            BEST: begin
                shifted <= shifted + 1;
                number <= number + 1;
                if (better) begin
                    best <= candidate;
                    best_byte <= number[7:0];
                end
                if (chunk_ends && number >= VOCAB - 1 && drawing) state <= DRAW;
                else if (chunk_ends && number >= VOCAB - 1) begin
                    out_data <= better ? number[7:0] : best_byte;
                    out_error <= 0;
                    out_valid <= 1;
                    state <= IDLE;
                end else if (chunk_ends) begin
                    chunk <= chunk + 1;
                    start(FETCH);
                end
            end
            DRAW: if (drawn) begin
                out_data <= drawn_byte;
                out_error <= 0;
                out_valid <= 1;
                state <= IDLE;
            end
            default: state <= IDLE;
        endcase
        if (rst) begin
            state <= IDLE;
            length <= 0;
            first <= 0;
            out_valid <= 0;
            live <= 0;
            detects <= 0;
            step <= 3;
            k <= 0;
            turn <= TURNS;
            compared <= TURNS;
            counted <= TURNS;
            refresh <= 0;
            issuing <= 0;
        end
    end
endmodule

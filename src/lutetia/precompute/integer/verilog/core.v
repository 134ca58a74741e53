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
    localparam LAST_STEP = 6; // of a place: its last quarter of channels is there
    localparam IDLE = 0, EMBED = 1, SCALE = 2, RANK = 3, RUN = 4, ADD = 5, BEST = 6, DRAW = 7;
    localparam ATTENTION = 0, FEED_FORWARD = 1, LAST = 2;
    localparam TAKE = 0, DETECT = 1, ATTEND = 2, FETCH = 3;

    reg [2:0] state;
    reg [1:0] part, op, saved;
    reg [2:0] step;
    reg [LAYER_BITS-1:0] layer;
    reg [PLACE_BITS-1:0] j, place, first, other, distance;
    reg [PLACE_BITS:0] length;
    reg refresh, issuing, theirs;
    reg [GROUP_BITS-1:0] g;
    reg [PLACE_BITS-1:0] i;
    reg [STEP_BITS-1:0] k;
    reg [TURN_BITS:0] turn, compared;
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
    //   4  compared: the cell of each bank's detector            8  the sum over the banks: every channel has its own live[8]
    reg [7:1] live;
    wire add_next, best_next, chunk_ends; // of the sequencer
    reg [4:1] detects; // what is in stage n is a group of DETECT
    reg [LAYER_BITS-1:0] home_layer; // where its keys go: the next place may have begun
    reg [PLACE_BITS-1:0] home;
    reg [GROUP_BITS-1:0] g_1, g_2, g_3, g_4;
    reg [D*CELL_BITS-1:0] cell_4;

    // ---- places of the window: a ring, the oldest byte at `first` ---------------------------------------------------
    // The byte number j of the window lies at `place`.
    wire [PLACE_BITS-1:0] next_first = first == CONTEXT - 1 ? 0 : first + 1;
    wire [PLACE_BITS-1:0] next_place = place == CONTEXT - 1 ? 0 : place + 1;
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

    // What is needed once for each place comes in four parts of QUARTER channels, part p in the cycle of step p + 3: there is time,
    // and block RAMs are deep and narrow. It is asked for two steps before, so part p has p + 1 modulo 4 in its address.
    wire [QUARTER*16-1:0] embedded;
    reg [QUARTER*16-1:0] embedded_2;
    always @(posedge clk) embedded_2 <= embedded;
    lutetia_rom #(.WIDTH(QUARTER * 16), .DEPTH(VOCAB * 4), .ADDRESS(10), .FILE("embedding.mem")) embedding_memory (
        .clk(clk), .address({window_byte, step[1:0]}), .data(embedded));

    wire [ANCHOR_ADDRESS-1:0] anchor_address = anchor_base + g;
    wire [SIDES*CHOICE_BITS-1:0] anchors;
    lutetia_rom #(.WIDTH(SIDES * CHOICE_BITS), .DEPTH(ANCHOR_ROWS), .ADDRESS(ANCHOR_ADDRESS), .FILE("anchors.mem"))
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
    // It is written from the cycle after ADD on: the sums stay for the four cycles, and nobody reads it until the next byte.
    wire [WIDTH*SUM_BITS-1:0] sums;
    localparam SEEN = QUARTER * SUM_BITS;
    wire [4*SEEN-1:0] all_sums = sums;
    wire [2*SEEN-1:0] half_sums = saved[1] ? all_sums[4*SEEN-1:2*SEEN] : all_sums[2*SEEN-1:0];
    wire [SEEN-1:0] seen;
    reg [SEEN-1:0] seen_2, save_data;
    reg [PLACE_BITS+1:0] save_address;
    reg save;
    wire saving = (state == ADD && part == ATTENTION && layer == 0) || saved != 0;
    wire [1:0] saved_part = saved + 1;
    always @(posedge clk) begin
        seen_2 <= seen;
        save <= saving && !rst;
        save_address <= {place, saved_part};
        save_data <= saved[0] ? half_sums[2*SEEN-1:SEEN] : half_sums[SEEN-1:0];
    end
    lutetia_ram #(.WIDTH(SEEN), .DEPTH(4 << PLACE_BITS), .ADDRESS(PLACE_BITS + 2), .APART(1)) seen_memory (
        .clk(clk), .address({place, step[1:0]}), .data(seen),
        .write(save), .write_address(save_address), .write_data(save_data));
@MEMORIES@
    // ---- the stream, the compared stream, its ranks and the sums: one of each for every channel ---------------------
    // The rank of a channel is how many channels are smaller. One channel is greater than another where its rank is, and a rank has
    // few bits to choose from. In every turn each channel is compared with SHOWN of them. A lane is as wide as a power of two, so
    // that choosing one is a tree of muxes.
    wire [(SHOWN << (TURN_BITS + LANE_BITS))-1:0] lanes;
    wire [WIDTH*WIDTH_BITS-1:0] ranks;
    reg [SHOWN*COMPARED_BITS-1:0] shown;
    // What the sequencer tells them is decided a cycle before and lies in registers of every channel's own, as a wire across the
    // chip takes most of a cycle. `keep`, or yosys makes one register of those that are equal.
    wire scale_next = (state == EMBED && step == LAST_STEP) || state == ADD || (state == SCALE && !scaled);
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
    generate
        for (c = 0; c < WIDTH; c = c + 1) begin : channel
            reg signed [STREAM_BITS-1:0] x;
            reg signed [COMPARED_BITS-1:0] s;
            reg signed [SUM_BITS-1:0] sum;
            localparam PART = c / QUARTER, LANE = c % QUARTER;
            wire signed [15:0] row = embedded_2[LANE*16 +: 16];
            wire signed [STREAM_BITS-1:0] wide_sum = sum;
            wire signed [STREAM_BITS-1:0] wide_row = row;
            wire signed [COMPARED_BITS-1:0] wide_x = x;
            reg signed [STREAM_BITS-1:0] joined;
            reg signed [SUM_BITS-1:0] added, added_8;
            reg [WIDTH_BITS-1:0] rank, smaller;
            reg [FOURS*4-1:0] above; // one bit for each channel that is shown: it is smaller
            integer bank, n;
            wire [COMPARED_BITS-1:0] ordered = {~s[COMPARED_BITS-1], s[COMPARED_BITS-2:0]}; // without a sign, in the same order
            assign lanes[(c << LANE_BITS) +: (1 << LANE_BITS)] = ordered;
            assign ranks[c*WIDTH_BITS +: WIDTH_BITS] = rank;
            assign sums[c*SUM_BITS +: SUM_BITS] = sum;
            reg filling, loading, adding, emptying, scaling, counting, counts_first, clear, live_8, taking, shifting;
            reg [SHIFT_BITS-1:0] shift;
            (* keep *) always @(posedge clk) begin
                filling <= step == PART + 2;
                loading <= step == PART + 2 && refresh;
                adding <= add_next;
                shift <= shift_choice;
                emptying <= add_next || (state == EMBED && step == LAST_STEP - 1);
                scaling <= scale_next;
                counting <= !compared[TURN_BITS];
                counts_first <= compared == 0;
                clear <= state == RANK || chunk_ends;
                live_8 <= live[7];
                taking <= op == TAKE;
                shifting <= best_next;
            end
            wire [SUM_BITS:0] changed = {sum, 1'b1} + {added_8 ^ {SUM_BITS{taking}}, taking}; // one adder: -n is ~n + 1
            always @* begin
                case (shift)
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
                    above[n] <= shown[n*COMPARED_BITS +: COMPARED_BITS] < ordered; // yosys adds a test of equality to a >
                if (counting) rank <= counts_first ? smaller : rank + smaller;
                if (filling) x <= wide_row <<< EMBEDDING_SHIFT;
                else if (adding) x <= x + joined;
                if (emptying) s <= 0;
                else if (scaling) s <= @SCALED@;
                if (clear) sum <= 0;
                else if (loading) sum <= seen_2[LANE*SUM_BITS +: SUM_BITS];
                else if (live_8) sum <= changed[SUM_BITS:1];
                else if (shifting) sum <= sums[((c + 1) % WIDTH)*SUM_BITS +: SUM_BITS];
            end
        end
        for (c = WIDTH; c < (SHOWN << TURN_BITS); c = c + 1) begin : absent
            assign lanes[(c << LANE_BITS) +: (1 << LANE_BITS)] = {COMPARED_BITS{1'b1}}; // smaller than none
        end
        for (v = 0; v < SHOWN; v = v + 1) begin : showing
            wire [(1 << (TURN_BITS + LANE_BITS))-1:0] turns = lanes[(v << (TURN_BITS + LANE_BITS)) +: (1 << (TURN_BITS + LANE_BITS))];
            reg [TURN_BITS-1:0] own_turn;
            (* keep *) always @(posedge clk) own_turn <= state == SCALE ? 0 : turn + 1;
            always @(posedge clk) shown[v*COMPARED_BITS +: COMPARED_BITS] <= turns[{own_turn, {LANE_BITS{1'b0}}} +: COMPARED_BITS];
        end
    endgenerate

    // ---- comparisons, and the row of each bank's detector -----------------------------------------------------------
    reg [D*A-1:0] queries [0:GROUPS-1];
    reg [D*A-1:0] keys_2, asked_2;
    reg [SIDES*CHOICE_BITS-1:0] anchors_2;
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
            reg [WIDTH*WIDTH_BITS-1:0] own_ranks; // of each bank, as for channels
            (* keep *) always @(posedge clk) own_ranks <= ranks;
            reg [2*PAIRS*WIDTH_BITS-1:0] ranks_3;
            for (r = 0; r < 2 * PAIRS; r = r + 1) begin : side // left and right of a pair
                localparam SIDE = b*2*PAIRS + r, BITS = SIDE_BITS[SIDE*8 +: 8];
                wire [(1 << (BITS + RANK_LANE_BITS))-1:0] choices;
                wire [BITS-1:0] choice = anchors_2[SIDE*CHOICE_BITS +: BITS];
                for (c = 0; c < (1 << BITS); c = c + 1) begin : lane
                    localparam CHANNEL = CHANNELS[((SIDE << CHOICE_BITS) + c)*WIDTH_BITS +: WIDTH_BITS];
                    assign choices[(c << RANK_LANE_BITS) +: (1 << RANK_LANE_BITS)] = own_ranks[CHANNEL*WIDTH_BITS +: WIDTH_BITS];
                end
                always @(posedge clk)
                    ranks_3[r*WIDTH_BITS +: WIDTH_BITS] <= choices[{choice, {RANK_LANE_BITS{1'b0}}} +: WIDTH_BITS];
            end
            for (r = 0; r < PAIRS; r = r + 1) begin : pair
                assign index[r] = ranks_3[(2*r + 1)*WIDTH_BITS +: WIDTH_BITS] < ranks_3[2*r*WIDTH_BITS +: WIDTH_BITS];
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
    wire better = number < VOCAB && (number == 0 || best < candidate);
    assign chunk_ends = state == BEST && shifted == WIDTH - 1;
    assign add_next = run_ends && (op == DETECT ? j == 0 : op != FETCH || part != LAST);
    assign best_next = (run_ends && op == FETCH && part == LAST) || (state == BEST && !chunk_ends);
@DRAW@

    always @(posedge clk) saved <= saving && !rst ? saved + 1 : 0;

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
    task begin_place(input [PLACE_BITS-1:0] which, input [PLACE_BITS-1:0] where, input again);
        begin
            j <= which;
            place <= where;
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
        live <= {live[6:5], live[4] && !detects[4], live[3:1], state == RUN && issuing && (op != TAKE || theirs)};
        {g_1, g_2, g_3, g_4} <= {g, g_1, g_2, g_3};
        detects <= {detects[3:1], state == RUN && issuing && op == DETECT};
        if (detects[4]) queries[g_4] <= found;
        if (op == DETECT && issuing) {home_layer, home} <= {layer, place};
        if (step != LAST_STEP + 1) step <= step + 1;
        if (state != SCALE && !turn[TURN_BITS]) turn <= turn + 1;
        compared <= turn;
        if (out_valid && out_ready) out_valid <= 0;
        case (state)
            IDLE: if (accept) begin
                drawing <= wants_draw;
                if (!known) begin
                    out_data <= 0;
                    out_error <= 1;
                    out_valid <= 1;
                end else if (full) begin
                    first <= next_first;
                    other <= first;
                    begin_place(LAYERS > 1 ? 0 : CONTEXT - 1, LAYERS > 1 ? next_first : first, LAYERS > 1 && CONTEXT > 1);
                end else begin
                    length <= length + 1;
                    begin_place(length[PLACE_BITS-1:0], length[PLACE_BITS-1:0], 0);
                end
            end
            EMBED: if (step == LAST_STEP) state <= SCALE;
            SCALE: begin
                k <= k + 1;
                turn <= 0;
                if (scaled) begin
                    k <= 0;
                    state <= RANK;
                end
            end
            RANK: begin // the first group may leave before the ranks are counted: it takes two cycles to them
                chunk <= 0;
                number <= 0;
                if (turn[TURN_BITS]) start(part == ATTENTION ? DETECT : FETCH);
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
                        if (op == DETECT && refresh && final_layer) begin_place(j + 1, next_place, j != CONTEXT - 2);
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
            step <= LAST_STEP + 1;
            k <= 0;
            turn <= TURNS;
            compared <= TURNS;
            refresh <= 0;
            issuing <= 0;
        end
    end
endmodule

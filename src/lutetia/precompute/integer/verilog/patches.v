// Counters in a memory, for one owner after another: what was counted for another one is zero. An access adds one to a counter,
// clears it for all owners, or does neither; a cycle later `count` is what it was before.
module lutetia_counters #(
    parameter BITS = 8,
    parameter ADDRESS = 1,
    parameter OWNER = 1
) (
    input wire clk,
    input wire [OWNER-1:0] owner, // the same until the cycle after an access
    input wire [ADDRESS-1:0] address,
    input wire add,
    input wire clear,
    output wire [BITS-1:0] count
);
    wire [OWNER+BITS-1:0] held;
    wire [OWNER-1:0] of;
    reg [ADDRESS-1:0] address_1;
    reg [OWNER+BITS-1:0] written;
    reg add_1, clear_1, again_1; // again: the counter of the last access, whose memory is written only now
    wire [BITS-1:0] found;
    assign {of, found} = again_1 ? written : held;
    assign count = of == owner ? found : {BITS{1'b0}};
    wire [OWNER+BITS-1:0] later = {owner, clear_1 ? {BITS{1'b0}} : count + 1'b1};
    lutetia_ram #(.WIDTH(OWNER + BITS), .DEPTH(1 << ADDRESS), .ADDRESS(ADDRESS), .APART(1)) memory (
        .clk(clk), .address(address), .data(held), .write(add_1 || clear_1), .write_address(address_1), .write_data(later));
    always @(posedge clk) begin
        address_1 <= address;
        add_1 <= add;
        clear_1 <= clear;
        again_1 <= (add_1 || clear_1) && address == address_1;
        written <= later;
    end
endmodule

// How far two pixels are apart: the first less the second in one channel, or the distances in all channels added up.
module lutetia_apart #(
    parameter CHANNELS = 1,
    parameter CHANNEL_BITS = 1,
    parameter BITS = 10
) (
    input wire [CHANNELS*8-1:0] first,
    input wire [CHANNELS*8-1:0] second,
    input wire [CHANNEL_BITS-1:0] channel,
    input wire all,
    output reg signed [BITS-1:0] apart
);
    integer c;
    reg signed [BITS-1:0] one, other;
    always @* begin
        apart = 0;
        for (c = 0; c < CHANNELS; c = c + 1) begin
            one = {{(BITS-8){1'b0}}, first[c*8 +: 8]};
            other = {{(BITS-8){1'b0}}, second[c*8 +: 8]};
            if (all) apart = apart + (one > other ? one - other : other - one);
            else if (channel == c[CHANNEL_BITS-1:0]) apart = one - other;
        end
    end
endmodule

// The edges of an input that a value has passed, in the PER steps that one word of memory is about.
module lutetia_passed #(
    parameter PER = 16,
    parameter STEP_BITS = 1,
    parameter VALUE_BITS = 8
) (
    input wire [PER*STEP_BITS-1:0] word,
    input wire [VALUE_BITS-1:0] value, // less what the words before were about
    input wire spent, // it was used up by these
    output reg [PER*STEP_BITS-1:0] passed
);
    integer j;
    always @* begin
        passed = 0;
        for (j = 0; j < PER; j = j + 1)
            if (!spent && value >= j[VALUE_BITS-1:0]) passed[j*STEP_BITS +: STEP_BITS] = word[j*STEP_BITS +: STEP_BITS];
    end
endmodule

// The sum of PER numbers, a power of two of them, two by two.
module lutetia_total #(
    parameter PER = 16,
    parameter STEP_BITS = 1
) (
    input wire [PER*STEP_BITS-1:0] numbers,
    output wire [7:0] total
);
    integer j, span;
    reg [PER*8-1:0] parts;
    assign total = parts[7:0];
    always @* begin
        for (j = 0; j < PER; j = j + 1) parts[j*8 +: 8] = {{(8-STEP_BITS){1'b0}}, numbers[j*STEP_BITS +: STEP_BITS]};
        for (span = PER / 2; span > 0; span = span / 2)
            for (j = 0; j < span; j = j + 1) parts[j*8 +: 8] = parts[j*8 +: 8] + parts[(j + span)*8 +: 8];
    end
endmodule

// Counts patterns in an image, and looks up its counts and pixels in tables.
//
// The pixels of an image come one after another, row by row, all channels of a pixel at once, and one answer goes out. What is
// compared, counted and looked up is in memories that are read from the first word to the last for every image:
//   COUNT  a detector is asked at each position: C comparisons a cycle, STEPS cycles a position
//   CODE   each of its counts that is needed, at last each pixel, becomes a code: the number of its edges that it has passed
//   ANSWER the tables: see lutetia_tables
module lutetia_core (
    input wire clk,
    input wire rst,
    input wire [@PIXEL_BITS@-1:0] in_data,
    input wire in_valid,
    output wire in_ready,
    output wire @SIGNED@[@OUT_BITS@-1:0] out_data,
    output wire out_valid,
    input wire out_ready
);
@PARAMETERS@
    localparam CLEAR = 0, LOAD = 1, SET = 2, COUNT = 3, FETCH = 4, READ = 5, TAKE = 6, CODE = 7, REST = 8, ANSWER = 9;
    localparam APART_BITS = DISTANCE_BITS + 1; // of a difference, which has a sign
    localparam BITS = CHANNELS * 8;
    localparam CELL_BITS = SLOT_BITS + 4;

    reg [3:0] state;
    reg [PLACE_BITS-1:0] place; // of a pixel that comes, or the first of a position
    reg [DETECTOR_BITS-1:0] detector;
    reg set; // the memories have answered
    assign in_ready = state == LOAD && !rst;
    wire accept = in_valid && in_ready;

    // ---- the positions of a detector: place, step and cell --------------------------------------------------------
    wire [DISTANCE_BITS-1:0] threshold;
    wire [CHANNEL_BITS-1:0] channel;
    wire all;
    wire [SIDE_BITS-1:0] across, down;
    lutetia_rom #(.WIDTH(DISTANCE_BITS + CHANNEL_BITS + 1 + 2 * SIDE_BITS), .DEPTH(DETECTORS), .ADDRESS(DETECTOR_BITS),
                  .FILE("detectors.mem")) detector_memory (
        .clk(clk), .address(detector), .data({down, across, all, channel, threshold}));

    reg issuing;
    reg [STEP_BITS-1:0] step;
    reg [SIDE_BITS-1:0] row, column;
    reg [PLACE_BITS-1:0] line; // the first place of the row
    // Four times the row less the rows of the cells before, as the remainder of a division by `down`; the same of columns.
    reg [SIDE_BITS:0] below, beside;
    reg [1:0] from_top, from_left;
    reg [PAIR_BITS-1:0] pair; // of the step
    reg [PAIR_BITS-1:0] first_pair; // of the detector
    wire last_step = step == LAST_STEPS;
    wire last_column = column == across - 1'b1;
    wire last_row = row == down - 1'b1;
    wire [SIDE_BITS:0] more_below = below + 4, more_beside = beside + 4;

    // What a step passes after its cycle, a cycle each; live[n] where one is in stage n.
    //   1  offsets of its pixels    3  pixels               5  how far apart           7  its slot
    //   2  their places             4  these in registers   6  the address is whole    8  counters before
    reg [8:1] live;
    reg [7:1] whole; // this was the last step of a position
    reg [4*7-1:0] cells;
    reg [PLACE_BITS-1:0] place_1;
    wire [2*C*PLACE_BITS-1:0] offsets;
    lutetia_rom #(.WIDTH(2 * C * PLACE_BITS), .DEPTH(PAIRS), .ADDRESS(PAIR_BITS), .FILE("offsets.mem")) offset_memory (
        .clk(clk), .address(pair), .data(offsets));

    // ---- the inputs in the order in which they become codes --------------------------------------------------------
    wire is_last;
    wire [1:0] kind; // 0 to 2: a count of the image, a quarter, a cell; 3: a pixel
    wire [SOURCE_BITS-1:0] source;
    wire [WORD_BITS-1:0] last_word;
    reg [INPUT_BITS-1:0] number;
    reg [STEPPED_BITS-1:0] stepped;
    reg [WORD_BITS-1:0] word_number;
    wire ends = state == CODE && word_number == last_word;
    wire [INPUT_BITS-1:0] next_number = state == LOAD ? 0 : ends ? number + 1 : number;
    wire [STEPPED_BITS-1:0] next_stepped = state == LOAD ? 0 : state == CODE ? stepped + 1 : stepped;
    lutetia_rom #(.WIDTH(WORD_BITS + SOURCE_BITS + 3), .DEPTH(INPUTS), .ADDRESS(INPUT_BITS), .FILE("inputs.mem")) input_memory (
        .clk(clk), .address(next_number), .data({is_last, kind, source, last_word}));

    // ---- the image, once for each pixel that is read in a cycle ----------------------------------------------------
    wire [2*C*BITS-1:0] pixels;
    reg [2*C*BITS-1:0] pixels_4;
    wire signed [C*APART_BITS-1:0] aparts;
    reg [C*APART_BITS-1:0] aparts_5;
    wire [C-1:0] bits;
    genvar g;
    generate
        for (g = 0; g < 2 * C; g = g + 1) begin : copy
            reg [PLACE_BITS-1:0] place_2;
            always @(posedge clk)
                place_2 <= g == 0 && state == FETCH ? source[PLACE_BITS-1:0] : place_1 + offsets[g*PLACE_BITS +: PLACE_BITS];
            lutetia_ram #(.WIDTH(BITS), .DEPTH(PIXELS), .ADDRESS(PLACE_BITS), .APART(1)) image (
                .clk(clk), .address(place_2), .data(pixels[g*BITS +: BITS]),
                .write(accept), .write_address(place), .write_data(in_data));
        end
        for (g = 0; g < C; g = g + 1) begin : comparison
            lutetia_apart #(.CHANNELS(CHANNELS), .CHANNEL_BITS(CHANNEL_BITS), .BITS(APART_BITS)) distance (
                .first(pixels_4[2*g*BITS +: BITS]), .second(pixels_4[(2*g + 1)*BITS +: BITS]), .channel(channel), .all(all),
                .apart(aparts[g*APART_BITS +: APART_BITS]));
            wire signed [APART_BITS-1:0] own = aparts_5[g*APART_BITS +: APART_BITS];
            assign bits[g] = own > $signed({1'b0, threshold});
        end
    endgenerate
    reg [C*STEPS-1:0] address_6;
    wire [C*STEPS+C-1:0] joined = {bits, address_6};

    // ---- counters, of the image, of quarters and of cells ----------------------------------------------------------
    wire [SLOT_BITS-1:0] slot_7;
    lutetia_rom #(.WIDTH(SLOT_BITS), .DEPTH(DETECTORS << PATTERN_BITS), .ADDRESS(DETECTOR_BITS + PATTERN_BITS),
                  .FILE("slots.mem")) slot_memory (
        .clk(clk), .address({detector, address_6[PATTERN_BITS-1:0]}), .data(slot_7));

    reg [CELL_BITS-1:0] cleared;
    wire clear = state == CLEAR;
    wire add = live[7] && whole[7];
    wire [3:0] cell_7 = cells[6*4 +: 4];
    wire [SLOT_BITS-1:0] image_at = clear ? cleared[SLOT_BITS-1:0] : add ? slot_7 : source[SLOT_BITS-1:0];
    wire [SLOT_BITS+1:0] quarter_at =
        clear ? cleared[SLOT_BITS+1:0] : add ? {slot_7, cell_7[3], cell_7[1]} : source[SLOT_BITS+1:0];
    wire [CELL_BITS-1:0] cell_at = clear ? cleared : add ? {slot_7, cell_7} : source[CELL_BITS-1:0];
    wire [COUNT_BITS-1:0] in_image, in_quarter, in_cell;
    lutetia_counters #(.BITS(COUNT_BITS), .ADDRESS(SLOT_BITS), .OWNER(DETECTOR_BITS)) image_counters (
        .clk(clk), .owner(detector), .address(image_at), .add(add), .clear(clear), .count(in_image));
    lutetia_counters #(.BITS(COUNT_BITS), .ADDRESS(SLOT_BITS + 2), .OWNER(DETECTOR_BITS)) quarter_counters (
        .clk(clk), .owner(detector), .address(quarter_at), .add(add), .clear(clear), .count(in_quarter));
    lutetia_counters #(.BITS(COUNT_BITS), .ADDRESS(CELL_BITS), .OWNER(DETECTOR_BITS)) cell_counters (
        .clk(clk), .owner(detector), .address(cell_at), .add(add), .clear(clear), .count(in_cell));

    // ---- codes -----------------------------------------------------------------------------------------------------
    wire [BITS-1:0] chosen = pixels[BITS-1:0] >> {@CHANNEL@, 3'b000};
    reg [COUNT_BITS-1:0] count_of;
    reg [VALUE_BITS-1:0] value;
    reg spent; // the value was used up by the words before
    wire [PER*EDGE_BITS-1:0] word, passed;
    // Stages of a word: 1 what was passed, 2 how much that is
    reg [PER*EDGE_BITS-1:0] passed_1;
    wire [7:0] total_1;
    reg [7:0] total_2, code;
    reg [2:1] summing, final_word;
    reg [INPUT_BITS-1:0] number_1, number_2;
    wire [7:0] coded = code + total_2;
    wire coded_now = summing[2] && final_word[2];
    lutetia_rom #(.WIDTH(PER * EDGE_BITS), .DEPTH(STEPPED), .ADDRESS(STEPPED_BITS), .FILE("edges.mem")) edge_memory (
        .clk(clk), .address(next_stepped), .data(word));
    lutetia_passed #(.PER(PER), .STEP_BITS(EDGE_BITS), .VALUE_BITS(VALUE_BITS)) passing (
        .word(word), .value(value), .spent(spent), .passed(passed));
    lutetia_total #(.PER(PER), .STEP_BITS(EDGE_BITS)) adding (.numbers(passed_1), .total(total_1));

    // ---- tables ----------------------------------------------------------------------------------------------------
    wire start = state == REST && !(|summing); // the last code is written
    wire done;
    lutetia_tables tables (
        .clk(clk), .rst(rst), .write(coded_now), .number(number_2), .code(coded), .start(start), .done(done),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready));
    wire unused = &{1'b0, joined[C-1:0], chosen}; // shifted out, or not asked

    always @(posedge clk) begin
        live <= {live[7:1], issuing};
        whole <= {whole[6:1], last_step};
        cells <= {cells[4*6-1:0], from_top, from_left};
        place_1 <= place;
        pixels_4 <= pixels;
        aparts_5 <= aparts;
        if (live[5]) address_6 <= joined[C*STEPS+C-1:C];

        number <= next_number;
        stepped <= next_stepped;
        passed_1 <= passed;
        total_2 <= total_1;
        summing <= {summing[1], state == CODE};
        final_word <= {final_word[1], ends};
        {number_1, number_2} <= {number, number_1};
        if (summing[2]) code <= final_word[2] ? 1 : coded;
        count_of <= kind == 0 ? in_image : kind == 1 ? in_quarter : in_cell;

        case (state)
            CLEAR: begin
                cleared <= cleared + 1; // at last to zero again
                if (&cleared) state <= LOAD;
            end
            LOAD: begin
                detector <= 0;
                first_pair <= 0;
                set <= 0;
                if (accept) begin
                    place <= place + 1;
                    if (place == LAST_PIXELS) begin
                        place <= 0;
                        state <= SET;
                    end
                end
            end
            SET: begin
                set <= 1;
                {row, column, below, beside, from_top, from_left, step, place, line} <= 0;
                pair <= first_pair;
                issuing <= set;
                if (set) state <= COUNT;
            end
            COUNT: if (issuing) begin
                step <= last_step ? 0 : step + 1;
                pair <= last_step ? first_pair : pair + 1;
                if (last_step) begin
                    column <= last_column ? 0 : column + 1;
                    place <= last_column ? line + IMAGE_WIDTH : place + 1;
                    beside <= last_column ? 0 : more_beside >= {1'b0, across} ? more_beside - {1'b0, across} : more_beside;
                    from_left <= last_column ? 0 : from_left + (more_beside >= {1'b0, across});
                    if (last_column) begin
                        row <= row + 1;
                        line <= line + IMAGE_WIDTH;
                        below <= more_below >= {1'b0, down} ? more_below - {1'b0, down} : more_below;
                        from_top <= from_top + (more_below >= {1'b0, down});
                        issuing <= !last_row;
                    end
                end
            end else if (!(|live)) state <= FETCH;
            FETCH: state <= READ;
            READ: state <= TAKE;
            TAKE: begin
                value <= kind == 3 ? {{(VALUE_BITS-8){1'b0}}, chosen[7:0]} : {{(VALUE_BITS-COUNT_BITS){1'b0}}, count_of};
                spent <= 0;
                word_number <= 0;
                state <= CODE;
            end
            CODE: begin
                spent <= spent || value < PER;
                value <= value - PER;
                word_number <= word_number + 1;
                if (ends) begin
                    state <= FETCH;
                    if (is_last) begin
                        if (detector != LAST_DETECTORS) begin
                            detector <= detector + 1;
                            first_pair <= first_pair + STEPS;
                            set <= 0;
                            state <= SET;
                        end else if (!HAS_PIXELS || kind == 3) begin // else the pixels follow
                            state <= REST;
                        end
                    end
                end
            end
            REST: if (start) state <= ANSWER;
            ANSWER: if (done) begin
                place <= 0;
                state <= CLEAR;
            end
            default: state <= CLEAR;
        endcase
        if (rst) begin
            state <= CLEAR;
            cleared <= 0;
            place <= 0;
            live <= 0;
            issuing <= 0;
            code <= 1;
            summing <= 0;
        end
    end
endmodule

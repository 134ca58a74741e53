// Bytes from a serial line: a start bit, 8 data bits with the lowest first, a stop bit; no parity.
module lutetia_receiver #(
    parameter DIVISOR = 104, // cycles of a bit
    parameter BITS = 7
) (
    input wire clk,
    input wire rst,
    input wire rx,
    output reg [7:0] data,
    output reg valid // for one cycle; not where there is no stop bit
);
    localparam [BITS-1:0] WHOLE = DIVISOR - 1, HALF = DIVISOR / 2 - 1;
    reg [1:0] line; // rx is of another clock
    reg [BITS-1:0] count; // cycles until a bit is read, in its middle
    reg [3:0] left; // bits to read
    always @(posedge clk) begin
        line <= {line[0], rx};
        valid <= 0;
        if (left == 0) begin
            count <= HALF;
            if (!line[1]) left <= 10;
        end else if (count != 0) count <= count - 1'b1;
        else begin
            count <= WHOLE;
            left <= left == 10 && line[1] ? 4'd0 : left - 1'b1; // a start bit that is too short is none
            if (left == 1) valid <= line[1];
            else data <= {line[1], data[7:1]};
        end
        if (rst) begin
            line <= 2'b11;
            left <= 0;
        end
    end
endmodule

// Bytes to a serial line.
module lutetia_sender #(
    parameter DIVISOR = 104,
    parameter BITS = 7
) (
    input wire clk,
    input wire rst,
    input wire [7:0] data,
    input wire valid,
    output wire ready,
    output wire tx
);
    localparam [BITS-1:0] WHOLE = DIVISOR - 1;
    reg [9:0] line; // the bit that is sent is the lowest
    reg [BITS-1:0] count;
    reg [3:0] left;
    assign ready = left == 0;
    assign tx = line[0];
    always @(posedge clk)
        if (rst) begin
            line <= ~10'd0;
            left <= 0;
        end else if (ready) begin
            count <= WHOLE;
            if (valid) begin
                line <= {1'b1, data, 1'b0};
                left <= 10;
            end
        end else if (count != 0) count <= count - 1'b1;
        else begin
            count <= WHOLE;
            line <= {1'b1, line[9:1]};
            left <= left - 1'b1;
        end
endmodule

// A checksum (CRC-16, polynomial 0x1021) and one more byte; it is sent inverted.
module lutetia_checksum (
    input wire [15:0] sum,
    input wire [7:0] data,
    output wire [15:0] more
);
    wire [7:0] first = sum[15:8] ^ data;
    wire [7:0] mixed = {first[7:4], first[3:0] ^ first[7:4]};
    assign more = {sum[7:0], 8'd0} ^ {mixed[3:0], 12'd0} ^ {3'd0, mixed, 5'd0} ^ {8'd0, mixed};
endmodule

// @TITLE@ on a board, asked over a serial line.
//
// A request is a frame: a number, the identity of the circuit in 4 bytes, WORDS words of WORD_BYTES bytes, a checksum in 2 bytes, an
// END. The answer is a frame too: the number, a status, the identity, the answer, a checksum, an END. END and ESC within a frame are
// two bytes each. A frame that is damaged, or comes while a question of many words is answered, has no answer. A whole frame of
// another identity or length is answered with status 1, without an answer: so a board says what it holds.
module lutetia_board (
    input wire clk,
    input wire rx,
    output wire tx,
    output wire led // switched at each answer
);
    localparam DIVISOR = @DIVISOR@, DIVISOR_BITS = @DIVISOR_BITS@;
    localparam WORDS = @WORDS@, WORD_BYTES = @WORD_BYTES@, COUNT_BITS = @COUNT_BITS@, PLACE_BITS = @PLACE_BITS@;
    localparam OUT_BITS = @OUT_BITS@, ANSWER_BYTES = @ANSWER_BYTES@, AT_BITS = @AT_BITS@;
    localparam [15:0] WHOLE = 16'h1d0f; // the checksum of a frame and its checksum
    localparam [31:0] IDENTITY = 32'h@IDENTITY@;
    localparam [7:0] END = 8'hc0, ESC = 8'hdb, ESC_END = 8'hdc, ESC_ESC = 8'hdd;

@CLOCK@
    // A device reads its block memories wrong for some microseconds after it is loaded, and is reset for longer than that.
    reg [7:0] started = 0;
    reg rst = 1;
    always @(posedge clock) begin
        rst <= !started[7];
        if (!started[7]) started <= started + 1'b1;
    end

    // ---- the bytes of a frame ----------------------------------------------------------------------------------------
    wire [7:0] heard;
    wire has_heard;
    lutetia_receiver #(.DIVISOR(DIVISOR), .BITS(DIVISOR_BITS)) receiver (
        .clk(clock), .rst(rst), .rx(rx), .data(heard), .valid(has_heard));

    localparam HEAD = 0, WORD = 1, CHECK = 2, BEYOND = 3;
    reg [1:0] part; // of the frame
    reg [PLACE_BITS-1:0] place; // of the next byte in its part
    reg [COUNT_BITS-1:0] word; // the number of the word
    reg escaped, lost, same; // lost: a byte that nobody took
    reg fed, full; // words of this frame are in the circuit, one waits to be taken
    reg [15:0] sum;
    reg [7:0] number;
    reg [8*WORD_BYTES-1:0] given;
    wire ends = has_heard && heard == END;
    wire escapes = has_heard && heard == ESC && !escaped;
    wire takes = has_heard && !ends && !escapes;
    wire [7:0] plain = escaped ? (heard == ESC_END ? END : ESC) : heard;
    wire last_byte = place == WORD_BYTES - 1;
    wire last_word = word == WORDS - 1;
    wire [15:0] more;
    lutetia_checksum received (.sum(sum), .data(plain), .more(more));
    wire whole = sum == WHOLE && !lost && !escaped && part != HEAD;
    wire exact = part == CHECK && place == 2 && same;

    wire in_ready, begins;
    reg asked; // all of a question is here, and its last word goes into the circuit
    reg has_answer;
    reg on; // an answer is sent
    wire busy = asked || has_answer;
    wire stores = takes && part == WORD && !asked;
    wire next_word = stores && last_byte && !last_word;
    reg drop; // what is in the circuit is of a frame that was damaged

    always @(posedge clock) begin
        drop <= 0;
        if (escapes) escaped <= 1;
        if (takes) begin
            escaped <= 0;
            sum <= more;
            place <= place + 1'b1;
            case (part)
                HEAD: begin
                    if (place == 0) number <= plain;
                    else same <= same && plain == IDENTITY[8*(4-place[2:0]) +: 8];
                    if (place == 4) begin
                        part <= WORD;
                        place <= 0;
                    end
                end
                WORD: begin
                    if (asked || full || (WORDS > 1 && has_answer)) lost <= 1;
                    if (last_byte) begin
                        place <= 0;
                        word <= word + 1'b1;
                        if (last_word) part <= CHECK;
                    end
                end
                CHECK: if (place == 2) part <= BEYOND;
                default: place <= 0;
            endcase
        end
        if (ends || rst) begin
            part <= HEAD;
            place <= 0;
            word <= 0;
            escaped <= 0;
            lost <= 0;
            same <= 1;
            fed <= 0;
            sum <= 16'hffff;
            drop <= fed && !(whole && exact);
        end
        // Words but the last are taken as they come.
        if (next_word && same && !lost && !has_answer) begin
            full <= 1;
            fed <= 1;
        end else if (full && in_ready) full <= 0;
        if (rst || drop) full <= 0;
    end

    integer i;
    always @(posedge clock)
        for (i = 0; i < WORD_BYTES; i = i + 1) if (stores && place == i[PLACE_BITS-1:0]) given[8*i +: 8] <= plain;

    // ---- the circuit -------------------------------------------------------------------------------------------------
    // One question is asked at a time, and only when its answer has where to go.
    wire out_valid;
    wire [OUT_BITS-1:0] out_data;
    reg waits; // for an answer
    wire in_last = asked;
    wire in_valid = full || (asked && !waits && !on);
    reg [7:0] asked_number;
    reg [OUT_BITS-1:0] answer;
    always @(posedge clock) begin
        if (ends && whole && exact && !busy) begin
            asked <= 1;
            asked_number <= number;
        end
        if (asked && in_valid && in_ready) waits <= 1;
        if (out_valid) begin
            answer <= out_data;
            has_answer <= 1;
            asked <= 0;
            waits <= 0;
        end
        if (begins && has_answer) has_answer <= 0;
        if (rst) begin
            asked <= 0;
            has_answer <= 0;
            waits <= 0;
        end
    end
@CIRCUIT@

    // ---- the answer --------------------------------------------------------------------------------------------------
    localparam [AT_BITS-1:0] FIRST = 6, SUM = FIRST + ANSWER_BYTES, LAST = SUM + 2;
    // It is sent when a core takes the next question. A circuit always does, but its in_ready may wait for in_valid.
    wire is_other = ends && whole && !exact && !busy && !on;
    assign begins = (has_answer && (WORDS == 1 || in_ready) && !on) || is_other;
    reg [AT_BITS-1:0] at;
    reg [7:0] told_number;
    reg other, escaping, lit;
    reg [8*ANSWER_BYTES-1:0] told;
    reg [15:0] told_sum;
    reg [7:0] byte_at;
    wire [15:0] told_more;
    lutetia_checksum sent (.sum(told_sum), .data(byte_at), .more(told_more));
    always @*
        case (at)
            0: byte_at = told_number;
            1: byte_at = {7'd0, other};
            2: byte_at = IDENTITY[31:24];
            3: byte_at = IDENTITY[23:16];
            4: byte_at = IDENTITY[15:8];
            5: byte_at = IDENTITY[7:0];
            SUM: byte_at = ~told_sum[15:8];
            SUM + 1'b1: byte_at = ~told_sum[7:0];
            default: byte_at = told[7:0];
        endcase
    wire at_end = at == LAST;
    wire special = !at_end && (byte_at == END || byte_at == ESC);
    wire [7:0] escape = escaping ? (byte_at == END ? ESC_END : ESC_ESC) : ESC;
    wire ready;
    assign led = @LED@;
    lutetia_sender #(.DIVISOR(DIVISOR), .BITS(DIVISOR_BITS)) sender (
        .clk(clock), .rst(rst), .data(at_end ? END : special ? escape : byte_at), .valid(on), .ready(ready), .tx(tx));
    always @(posedge clock) begin
        if (begins) begin
            on <= 1;
            at <= 0;
            escaping <= 0;
            lit <= !lit;
            told_number <= is_other ? number : asked_number;
            other <= is_other;
            told <= @ANSWER@;
            told_sum <= 16'hffff;
        end else if (on && ready) begin
            if (special && !escaping) escaping <= 1;
            else begin
                escaping <= 0;
                at <= other && at == FIRST - 1'b1 ? SUM : at + 1'b1;
                if (at < SUM) told_sum <= told_more;
                if (at >= FIRST && at < SUM) told <= told >> 8;
                if (at_end) on <= 0;
            end
        end
        if (rst) begin
            on <= 0;
            lit <= 1;
        end
    end
endmodule

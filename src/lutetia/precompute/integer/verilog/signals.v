// What is made of two samples, or of one and the mean: the sample, how far it is from the other, or whether both are on one side
// of the mean. Of a sample of a shape: twice the sample where it is raised, else the sample taken away.
module lutetia_taken #(
    parameter BITS = 16
) (
    // 0 the sample; 1 less the mean; 2 how far from the mean; 3 how far from the other; 4 one side; 5 not; 6 of a shape
    input wire [2:0] take,
    input wire raised,
    input wire signed [BITS-1:0] sample,
    input wire signed [BITS-1:0] other,
    input wire signed [BITS-1:0] mean,
    output reg signed [BITS:0] taken
);
    wire signed [BITS-1:0] from = take == 3 ? other : mean;
    wire signed [BITS:0] apart = {sample[BITS-1], sample} - {from[BITS-1], from};
    wire same = (sample > mean) == (other > mean);
    always @*
        case (take)
            0: taken = {sample[BITS-1], sample};
            1: taken = apart;
            2, 3: taken = apart[BITS] ? -apart : apart;
            6: taken = raised ? {sample, 1'b0} : -{sample[BITS-1], sample};
            default: taken = {{BITS{1'b0}}, same ^ take[0]};
        endcase
endmodule

// The mean of a window, rounded down, below zero too: a sum over LENGTH, a bit a cycle. BITS is a power of two.
module lutetia_mean #(
    parameter BITS = 16,
    parameter LENGTH = 8,
    parameter LENGTH_BITS = 4,
    parameter TOTAL_BITS = 21,
    parameter COUNT_BITS = 4
) (
    input wire clk,
    input wire begins, // with the sum
    input wire signed [TOTAL_BITS-1:0] sum,
    output wire ends, // BITS cycles later
    output wire [BITS-1:0] mean // then, and until the next one begins
);
    // The least sample counts as zero here, so that all are positive: the remainder is always less than LENGTH.
    localparam [TOTAL_BITS-1:0] LEAST = LENGTH << (BITS - 1);
    localparam [LENGTH_BITS:0] DIVISOR = LENGTH;
    wire [TOTAL_BITS-1:0] raised = sum + LEAST;
    reg [LENGTH_BITS-1:0] remainder;
    reg [BITS-1:0] digits; // of the sum that are not used yet, then those of the mean
    reg [COUNT_BITS-1:0] count;
    reg running;
    wire [LENGTH_BITS:0] more = {remainder, digits[BITS-1]};
    wire fits = more >= DIVISOR;
    wire [LENGTH_BITS:0] rest = fits ? more - DIVISOR : more;
    wire unused = &{1'b0, rest[LENGTH_BITS], raised[TOTAL_BITS-1:BITS+LENGTH_BITS]};
    assign ends = &count;
    assign mean = {!digits[BITS-1], digits[BITS-2:0]};
    always @(posedge clk) begin
        count <= begins ? 0 : count + 1;
        running <= begins || (running && !ends);
        if (begins) {remainder, digits} <= raised[BITS+LENGTH_BITS-1:0];
        else if (running) {remainder, digits} <= {rest[LENGTH_BITS-1:0], digits[BITS-2:0], fits};
    end
endmodule

// Windows of signals: what is made of each becomes codes, which are looked up in tables.
//
// A sample of all signals comes at a time. After LENGTH of them, and then after every STEP, a window is full, and one answer goes
// out; `in_last` says that the next sample is the first of another recording. The last samples are kept in a ring, which has room
// for ROOM more than a window: so many are taken while one is answered, as long as no other window is full.
//   RUN    a pass over a part of a signal: a sum, the least and the greatest sample, and their places; or of a shape, nine
//          samples `lag` apart at each place, the count of places where their sum is above a constant
//   MEAN   the sum of a whole window becomes the mean that later passes over this signal take
//   CODE   what a pass gives becomes a code: one more than the number of edges that it is above
//   ANSWER the tables: see lutetia_tables
module lutetia_core (
    input wire clk,
    input wire rst,
    input wire [@SAMPLE_BITS@-1:0] in_data,
    input wire in_last,
    input wire in_valid,
    output wire in_ready,
    output wire @SIGNED@[@OUT_BITS@-1:0] out_data,
    output wire out_valid,
    input wire out_ready
);
@PARAMETERS@
    localparam IDLE = 0, FETCH = 1, SET = 2, RUN = 3, TAKE = 4, MEAN = 5, CODE = 6, REST = 7, ANSWER = 8;
    localparam SUM = 0, LOW = 1, HIGH = 2, RANGE = 3, LOW_AT = 4; // what a pass gives; 5: the place of the greatest
    localparam WIDTH = SIGNALS * BITS;

    reg [3:0] state;
    wire [TOTAL_BITS-1:0] edge_1; // the word of edge_memory
    reg [PASS_BITS-1:0] pass;
    wire is_last, is_coded, is_mean;
    wire [COUNTED_BITS-1:0] n_edges;
    wire [PLACE_BITS-1:0] lag, first;
    wire [LENGTH_BITS-1:0] n_samples;
    wire [2:0] give, take;
    wire [SIGNAL_BITS-1:0] signal;
    wire [RAISED_BITS-1:0] raises; // which of the nine samples of a shape are raised
    wire [ABOVE_BITS-1:0] above;
    lutetia_rom #(.WIDTH(SIGNAL_BITS + 6 + LENGTH_BITS + 2 * PLACE_BITS + COUNTED_BITS + 3 + RAISED_BITS + ABOVE_BITS),
                  .DEPTH(PASSES), .ADDRESS(PASS_BITS), .FILE("passes.mem")) pass_memory (
        .clk(clk), .address(pass),
        .data({above, raises, is_last, is_coded, is_mean, n_edges, lag, first, n_samples, give, take, signal}));

    // ---- samples ---------------------------------------------------------------------------------------------------
    reg [PLACE_BITS-1:0] head, base; // where the next sample goes; the oldest one of the window that is answered
    reg [LEFT_BITS-1:0] left; // samples until a window is full
    reg [PLACE_BITS-1:0] more; // samples that came since the window was full
    wire busy = state != IDLE;
    wire due = left == 1;
    assign in_ready = !rst && (!busy || (!due && more != ROOM));
    wire accept = in_valid && in_ready;
    reg [PLACE_BITS-1:0] start, place, place_before; // where a shape begins, or the sample; the two that are read
    wire [WIDTH-1:0] samples, samples_before;
    lutetia_ram #(.WIDTH(WIDTH), .DEPTH(1 << PLACE_BITS), .ADDRESS(PLACE_BITS), .APART(1)) ring (
        .clk(clk), .address(place), .data(samples), .write(accept), .write_address(head), .write_data(in_data));
    lutetia_ram #(.WIDTH(WIDTH), .DEPTH(1 << PLACE_BITS), .ADDRESS(PLACE_BITS), .APART(1)) ring_before (
        .clk(clk), .address(place_before), .data(samples_before), .write(accept), .write_address(head), .write_data(in_data));
    wire [WIDTH-1:0] chosen = samples >> {signal, {COUNT_BITS{1'b0}}};
    wire [WIDTH-1:0] chosen_before = samples_before >> {signal, {COUNT_BITS{1'b0}}};

    // ---- a pass: 1 the samples, 2 those of its signal, 3 what is made of them -----------------------------------------
    reg [LENGTH_BITS-1:0] remaining, at;
    wire issuing = state == RUN && remaining != 0;
    wire is_shape = HAS_SHAPES && take == 6;
    reg [3:0] tap; // of the nine samples of a shape
    wire whole = !is_shape || tap == 8;
    wire [15:0] masks = {{(16-RAISED_BITS){1'b0}}, raises};
    reg [3:1] live, ends_place;
    reg [2:1] raised;
    reg signed [INNER_BITS-1:0] inner; // the sum of a shape
    wire signed [INNER_BITS-1:0] inner_next = inner + {{(INNER_BITS-BITS-1){taken_3[BITS]}}, taken_3};
    wire signed [INNER_BITS-1:0] above_now = {{(INNER_BITS-ABOVE_BITS){above[ABOVE_BITS-1]}}, above};
    wire found = ends_place[3] && inner_next > above_now;
    reg signed [BITS-1:0] sample_2, before_2, sample_3, low, high;
    reg [LENGTH_BITS-1:0] low_at, high_at;
    wire signed [BITS:0] taken_2;
    reg signed [BITS:0] taken_3;
    reg signed [TOTAL_BITS-1:0] sum, value;
    wire signed [BITS:0] range = {high[BITS-1], high} - {low[BITS-1], low};
    wire [BITS-1:0] mean;
    wire mean_ends;
    lutetia_taken #(.BITS(BITS)) taking (.take(take), .raised(raised[2]), .sample(sample_2), .other(before_2), .mean(mean), .taken(taken_2));
    lutetia_mean #(.BITS(BITS), .LENGTH(LENGTH), .LENGTH_BITS(LENGTH_BITS), .TOTAL_BITS(TOTAL_BITS), .COUNT_BITS(COUNT_BITS))
        dividing (.clk(clk), .begins(state == TAKE && is_mean), .sum(sum), .ends(mean_ends), .mean(mean));

    // ---- codes -----------------------------------------------------------------------------------------------------
    reg [EDGE_BITS-1:0] edge_number;
    reg [COUNTED_BITS-1:0] edges_left;
    reg [7:0] code;
    reg [INPUT_BITS-1:0] number;
    wire asks = state == CODE && edges_left != 0;
    wire [EDGE_BITS-1:0] next_edge = asks ? edge_number + 1 : edge_number;
    wire ends = state == CODE && edges_left == 0;
    wire signed [TOTAL_BITS-1:0] edge_now = edge_1;
    lutetia_rom #(.WIDTH(TOTAL_BITS), .DEPTH(EDGES), .ADDRESS(EDGE_BITS), .FILE("edges.mem")) edge_memory (
        .clk(clk), .address(next_edge), .data(edge_1));
    wire done;
    lutetia_tables tables (
        .clk(clk), .rst(rst), .write(ends && is_coded), .number(number), .code(code), .start(state == REST), .done(done),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready));
    wire unused = &{1'b0, chosen, chosen_before};

    always @(posedge clk) begin
        if (accept) begin
            head <= head + 1;
            left <= in_last ? LENGTH : due ? STEP : left - 1;
            more <= due ? 0 : more + 1;
        end

        start <= state == SET ? base + first : whole ? start + 1 : start;
        place <= state == SET ? base + first : whole ? start + 1 : place + lag;
        place_before <= state == SET ? base + first - lag : place_before + 1;
        tap <= !issuing || whole ? 0 : tap + 1;
        live <= {live[2:1], issuing};
        ends_place <= {ends_place[2:1], whole};
        raised <= {raised[1], masks[tap]};
        sample_2 <= chosen[BITS-1:0];
        before_2 <= chosen_before[BITS-1:0];
        sample_3 <= sample_2;
        taken_3 <= taken_2;
        if (state == SET) begin
            sum <= 0;
            at <= 0;
            inner <= 0;
        end else if (live[3]) begin
            inner <= ends_place[3] ? 0 : inner_next;
            sum <= sum + (is_shape ? {{(TOTAL_BITS-1){1'b0}}, found} : {{(TOTAL_BITS-BITS-1){taken_3[BITS]}}, taken_3});
            at <= at + 1;
            if (at == 0 || sample_3 < low) {low, low_at} <= {sample_3, at};
            if (at == 0 || sample_3 > high) {high, high_at} <= {sample_3, at};
        end

        edge_number <= next_edge;
        case (state)
            IDLE: begin
                pass <= 0;
                number <= 0;
                edge_number <= 0;
                base <= head + (ROOM + 1); // LENGTH - 1 back, around the ring
                if (accept && due) state <= FETCH;
            end
            FETCH: state <= SET;
            SET: begin
                remaining <= n_samples;
                state <= RUN;
            end
            RUN: begin
                if (issuing && whole) remaining <= remaining - 1;
                if (!issuing && !(|live)) state <= TAKE;
            end
            TAKE: begin
                case (give)
                    SUM: value <= sum;
                    LOW: value <= {{(TOTAL_BITS-BITS){low[BITS-1]}}, low};
                    HIGH: value <= {{(TOTAL_BITS-BITS){high[BITS-1]}}, high};
                    RANGE: value <= {{(TOTAL_BITS-BITS-1){range[BITS]}}, range};
                    default: value <= {{(TOTAL_BITS-LENGTH_BITS){1'b0}}, give == LOW_AT ? low_at : high_at};
                endcase
                code <= 1;
                edges_left <= n_edges;
                state <= is_mean ? MEAN : CODE;
            end
            MEAN: if (mean_ends) state <= CODE;
            CODE: begin
                if (asks) begin
                    edges_left <= edges_left - 1;
                    if (value > edge_now) code <= code + 1;
                end else begin
                    if (is_coded) number <= number + 1;
                    pass <= pass + 1;
                    state <= is_last ? REST : FETCH;
                end
            end
            REST: state <= ANSWER;
            ANSWER: if (done) state <= IDLE;
            default: state <= IDLE;
        endcase
        if (rst) begin
            state <= IDLE;
            head <= 0;
            left <= LENGTH;
            live <= 0;
        end
    end
endmodule

`default_nettype none

// Sliding windows over frames of HEIGHT x WIDTH samples, in raster order, PAD_Y and PAD_X places of padding in front,
// END_Y and END_X behind.
// One step per place: inside the frame it accepts a sample, in the padding it takes FILL. After the place of a window's last tap
// the window is valid; it does not step on while that waits. Frames follow each other without a reset. Latency 1.
module lutetia_window #(
    parameter BITS = 1,      // of a sample
    parameter HEIGHT = 1,
    parameter WIDTH = 0,     // 0: an endless row
    parameter PAD_Y = 0,
    parameter PAD_X = 0,
    parameter END_Y = 0,
    parameter END_X = 0,
    parameter FIELD_Y = 0,   // places before the last tap of the first window
    parameter FIELD_X = 0,
    parameter STRIDE_Y = 1,
    parameter STRIDE_X = 1,
    parameter DEPTH = 1,     // samples that are kept
    parameter TAPS = 1,
    parameter [32*TAPS-1:0] OFFSETS = 0,  // of each tap, in samples before the newest one; tap 0 in the lowest bits
    parameter [BITS-1:0] FILL = 0
) (
    input wire clk,
    input wire rst,
    input wire [BITS-1:0] in_data,
    input wire in_valid,
    output wire in_ready,
    output wire [BITS*TAPS-1:0] out_data,  // tap 0 in the lowest bits
    output wire out_valid,
    input wire out_ready
);
    localparam COLUMNS = WIDTH + PAD_X + END_X, ROWS = HEIGHT + PAD_Y + END_Y;
    localparam MOST_X = FIELD_X > STRIDE_X - 1 ? FIELD_X : STRIDE_X - 1;
    localparam MOST_Y = FIELD_Y > STRIDE_Y - 1 ? FIELD_Y : STRIDE_Y - 1;
    localparam X_BITS = COLUMNS > 1 ? $clog2(COLUMNS) : 1, Y_BITS = ROWS > 1 ? $clog2(ROWS) : 1;
    localparam WAIT_X_BITS = MOST_X > 0 ? $clog2(MOST_X + 1) : 1, WAIT_Y_BITS = MOST_Y > 0 ? $clog2(MOST_Y + 1) : 1;

    // Counters are as wide as they must be; the numbers beside them have 32 bits.
    /* verilator lint_off WIDTH */
    /* verilator lint_off UNSIGNED */
    /* verilator lint_off CMPCONST */
    reg [BITS*DEPTH-1:0] line;  // the newest sample in the lowest bits
    reg full;
    reg [X_BITS-1:0] x;
    reg [Y_BITS-1:0] y;
    reg [WAIT_X_BITS-1:0] wait_x;  // places left to the next window
    reg [WAIT_Y_BITS-1:0] wait_y;
    wire in_columns = PAD_X + END_X == 0 || (x >= PAD_X && x < PAD_X + WIDTH);
    wire in_rows = PAD_Y + END_Y == 0 || (y >= PAD_Y && y < PAD_Y + HEIGHT);
    wire in_frame = in_columns & in_rows;
    wire free = !full | out_ready;
    wire move = free & (in_valid | !in_frame);
    wire due = (MOST_X == 0 || wait_x == 0) && (MOST_Y == 0 || wait_y == 0);
    wire [BITS-1:0] sample = in_frame ? in_data : FILL;
    wire [BITS*(DEPTH+1)-1:0] longer = {line, sample};
    wire end_of_row = WIDTH != 0 && (COLUMNS == 1 || x == COLUMNS - 1);
    wire end_of_frame = ROWS == 1 || y == ROWS - 1;
    assign in_ready = free & in_frame;
    assign out_valid = full;
    genvar tap;
    generate
        for (tap = 0; tap < TAPS; tap = tap + 1) begin : taps
            assign out_data[BITS*tap +: BITS] = line[BITS*OFFSETS[32*tap +: 32] +: BITS];
        end
    endgenerate
    // The line has no reset, so that a synthesiser can make shift registers of it: nothing is valid before it is filled.
    always @(posedge clk)
        if (move) line <= longer[BITS*DEPTH-1:0];
    always @(posedge clk)
        if (rst) begin
            full <= 1'b0;
            x <= 0;
            y <= 0;
            wait_x <= FIELD_X;
            wait_y <= FIELD_Y;
        end else begin
            full <= move & due | full & !out_ready;
            if (move) begin
                if (end_of_row) begin
                    x <= 0;
                    wait_x <= FIELD_X;
                    y <= end_of_frame ? 0 : y + 1;
                    wait_y <= end_of_frame ? FIELD_Y : wait_y == 0 ? STRIDE_Y - 1 : wait_y - 1;
                end else begin
                    if (WIDTH != 0) x <= x + 1;
                    wait_x <= wait_x == 0 ? STRIDE_X - 1 : wait_x - 1;
                end
            end
        end
    wire unused = &{1'b0, longer};
    /* verilator lint_on CMPCONST */
    /* verilator lint_on UNSIGNED */
    /* verilator lint_on WIDTH */
endmodule

`default_nettype wire

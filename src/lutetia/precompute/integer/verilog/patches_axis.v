// The core as an AXI4-Stream component: pixels in, tlast with the last pixel of an image, and one answer out, a frame of its own.
//
// An image whose tlast comes too early or too late is left out: `dropped` is high for a cycle, and the next image begins behind its
// tlast. `identity` is a constant, the number of the core.
module lutetia_core_axis (
    input wire aclk,
    input wire aresetn,
    input wire [@PIXEL_BITS@-1:0] s_axis_tdata,
    input wire s_axis_tvalid,
    output wire s_axis_tready,
    input wire s_axis_tlast,
    output reg [@ANSWER_BITS@-1:0] m_axis_tdata,
    output reg m_axis_tvalid,
    input wire m_axis_tready,
    output wire m_axis_tlast,
    output reg dropped,
    output wire [31:0] identity
);
    localparam LAST_PIXEL = @LAST_PIXEL@, PLACE_BITS = @PLACE_BITS@;
    reg [PLACE_BITS-1:0] place; // of the pixel that comes
    reg skipping; // what is behind the last pixel of an image that is too long
    wire ready, answered;
    wire [@OUT_BITS@-1:0] answer;
    // An image begins once the answer to the one before is here, so that a reset of the core loses none.
    wire taken = s_axis_tvalid && s_axis_tready;
    wire fits = s_axis_tlast == (place == LAST_PIXEL);
    wire takes_answer = !m_axis_tvalid || m_axis_tready;
    assign s_axis_tready = aresetn && (skipping || (ready && !answered));
    assign m_axis_tlast = 1'b1;
    assign identity = 32'h@IDENTITY@;

    lutetia_core core (
        .clk(aclk), .rst(!aresetn || dropped),
        .in_data(s_axis_tdata), .in_valid(taken && !skipping && fits), .in_ready(ready),
        .out_data(answer), .out_valid(answered), .out_ready(takes_answer));

    always @(posedge aclk) begin
        dropped <= taken && !skipping && !fits;
        if (taken) begin
            place <= s_axis_tlast ? 0 : place + 1;
            skipping <= (skipping || !fits) && !s_axis_tlast;
        end
        if (takes_answer) begin
            m_axis_tdata <= @ANSWER@;
            m_axis_tvalid <= answered;
        end
        if (!aresetn) begin
            place <= 0;
            skipping <= 0;
            dropped <= 0;
            m_axis_tvalid <= 0;
        end
    end
endmodule

// The core as an AXI4-Stream component: samples of all signals in, tlast with the last one of a recording, and one answer out for
// each window, a frame of its own. `identity` is a constant, the number of the core.
module lutetia_core_axis (
    input wire aclk,
    input wire aresetn,
    input wire [@SAMPLE_BITS@-1:0] s_axis_tdata,
    input wire s_axis_tvalid,
    output wire s_axis_tready,
    input wire s_axis_tlast,
    output reg [@ANSWER_BITS@-1:0] m_axis_tdata,
    output reg m_axis_tvalid,
    input wire m_axis_tready,
    output wire m_axis_tlast,
    output wire [31:0] identity
);
    wire answered;
    wire [@OUT_BITS@-1:0] answer;
    wire takes_answer = !m_axis_tvalid || m_axis_tready;
    assign m_axis_tlast = 1'b1;
    assign identity = 32'h@IDENTITY@;

    lutetia_core core (
        .clk(aclk), .rst(!aresetn),
        .in_data(s_axis_tdata), .in_last(s_axis_tlast), .in_valid(s_axis_tvalid), .in_ready(s_axis_tready),
        .out_data(answer), .out_valid(answered), .out_ready(takes_answer));

    always @(posedge aclk) begin
        if (takes_answer) begin
            m_axis_tdata <= @ANSWER@;
            m_axis_tvalid <= answered;
        end
        if (!aresetn) m_axis_tvalid <= 0;
    end
endmodule

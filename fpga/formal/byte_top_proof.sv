// SPDX-License-Identifier: MIT
// The byte_top module sends nothing before it has a whole command, nothing between the last byte of
// a reply and the next command, and takes back no byte that it offers.
module byte_top_proof (
    input logic       clk,
    input logic       in_valid,
    input logic [7:0] in_data,
    input logic       out_ready
);

  logic [1:0] resets = 2'd3;  // cycles of reset left
  logic       reset;
  logic       in_ready, out_valid, out_last;
  logic [7:0] out_data;

  assign reset = resets != 2'd0;

  byte_top #(.R(1), .C(2), .D(8), .NK(4), .NL(2), .MATMUL(0), .SOFTMAX(0)) top (.*);

  stream_rules #(.WIDTH(9)) rules (
      .clk(clk), .reset(reset), .valid(out_valid), .ready(out_ready),
      .payload({out_last, out_data}));

  // Bytes taken since the last reply, as far as a command has them.
  logic [4:0] taken = 5'd0;

  always_ff @(posedge clk) begin
    if (reset) resets <= resets - 2'd1;
    if (reset || (out_valid && out_ready && out_last)) taken <= 5'd0;
    else if (in_valid && in_ready && taken != 5'd16) taken <= taken + 5'd1;
  end

  always_comb begin
    if (!reset) command_first : assert (!out_valid || taken == 5'd16);
    a_command : cover (!reset && taken == 5'd16);
  end

endmodule

// SPDX-License-Identifier: MIT
// SOFTMAX: an aligned weight times its row's reciprocal, rounded to 0.16 and held below 1; three
// cycles from `emit` to `value`.
module probability (
  input  logic        clk,
  input  logic        reset,
  input  logic        emit_valid,
  input  logic [16:0] emit,
  input  logic [16:0] reciprocal,
  output logic        valid,
  output logic [15:0] value
);
  logic signed [35:0] product, half_up;
  logic [2:1]         valids;
  multiplier #(.A(18), .B(18)) times (
    .clk(clk), .enable(1'b1), .a({1'b0, emit}), .b({1'b0, reciprocal}), .product(product));
  assign half_up = product + 36'sd131072;
  logic unused_bits;
  assign unused_bits = |half_up[17:0] | half_up[35];

  always_ff @(posedge clk) begin
    valids <= {valids[1], emit_valid};
    valid  <= valids[2];
    value  <= half_up[34] ? 16'hffff : half_up[33:18];
    if (reset) begin
      valids <= 2'd0;
      valid  <= 1'b0;
    end
  end
endmodule

// SPDX-License-Identifier: MIT
// A signed product, two cycles behind its operands: a register on them and one on the product, both
// held while `enable` is low. This body leaves it to the tools how a product is made.
module multiplier #(
  parameter int A = 18,
  parameter int B = 18
) (
  input  logic                  clk,
  input  logic                  enable,
  input  logic signed [A-1:0]   a,
  input  logic signed [B-1:0]   b,
  output logic signed [A+B-1:0] product
);
  logic signed [A-1:0] left;
  logic signed [B-1:0] right;

  always_ff @(posedge clk) if (enable) begin
    left    <= a;
    right   <= b;
    product <= left * right;
  end
endmodule

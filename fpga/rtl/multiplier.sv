// SPDX-License-Identifier: MIT
// Signed product, two cycles after its operands: one register holds the operands, one the product.
//
// This body suits any part: synthesis makes it of logic or of the part's multipliers. A build reads
// one of multiplier*.sv; they have the same ports, the same latency and the same values.
module multiplier #(
    parameter int A = 18,
    parameter int B = 18
) (
    input  logic                  clk,
    input  logic                  enable,  // holds both registers while 0
    input  logic signed [A-1:0]   a,
    input  logic signed [B-1:0]   b,
    output logic signed [A+B-1:0] product
);

  logic signed [A-1:0] held_a;
  logic signed [B-1:0] held_b;

  always_ff @(posedge clk) begin
    if (enable) begin
      held_a  <= a;
      held_b  <= b;
      product <= held_a * held_b;
    end
  end

endmodule

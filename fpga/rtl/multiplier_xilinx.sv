// SPDX-License-Identifier: MIT
// The multiplier of multiplier.sv in one DSP48 of a Xilinx part: synthesis packs both registers
// into the block (AREG, BREG, MREG), and the attribute keeps narrow products out of the logic.
(* use_dsp = "yes" *)
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

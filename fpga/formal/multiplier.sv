// SPDX-License-Identifier: MIT
// Stands for any multiplier in a proof: its product may be anything, because no handshake reads it.
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

  (* anyseq *) logic signed [A+B-1:0] any;

  always_ff @(posedge clk) if (enable) product <= any;

endmodule

// SPDX-License-Identifier: MIT
// Splits beats of C bytes into int16 scores, one at a time. Owns the beat in hand. A pass may end
// within a beat: `drop`, with the last score that is taken, discards the rest of it.
module score_input #(
  parameter int C = 16
) (
  input  logic           clk,
  input  logic           reset,
  input  logic           in_valid,
  output logic           in_ready,
  input  logic [C*8-1:0] in_data,
  output logic           ready,   // there is a score
  output logic [15:0]    score,
  input  logic           take,
  input  logic           drop     // what is left of the beat behind it
);
  localparam int COUNT = C / 2;
  localparam int LEFT  = $clog2(COUNT + 1);
  logic [C*8-1:0]  beat;
  logic [LEFT-1:0] left;

  assign ready    = left != LEFT'(0);
  assign score    = beat[15:0];
  assign in_ready = ~ready | (take & (left == LEFT'(1)));

  always_ff @(posedge clk) begin
    if (in_valid & in_ready) begin
      beat <= in_data;
      left <= LEFT'(COUNT);
    end else if (drop) begin
      left <= LEFT'(0);
    end else if (take) begin
      beat <= beat >> 16;
      left <= left - LEFT'(1);
    end
    if (reset) left <= LEFT'(0);
  end
endmodule

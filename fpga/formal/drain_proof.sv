// SPDX-License-Identifier: MIT
// The drain sends as many beats as a tile has, whatever the receiver does; it marks the last beat
// of the command's last tile, and no other; and the rows' results may be overwritten only when all
// of them are out.
module drain_proof (
    input logic clk,
    input logic start,
    input logic final_tile,
    input logic out_ready
);

  localparam int R = 2, C = 2, NC = 2, NL = 2;
  localparam int Statistics = 4 / NL;

  (* anyconst *) logic statistics;
  (* anyseq *) logic [R*C*18-1:0] results;
  (* anyseq *) logic [R*17-1:0]   reciprocals;
  (* anyseq *) logic [R*8-1:0]    maxima;
  (* anyseq *) logic [R*29-1:0]   sums;

  logic reset = 1'b1;
  logic idle, advance, out_valid, out_last;
  logic [0:0] read_chunk;
  logic [NL*16-1:0] out_data;

  drain #(.R(R), .C(C), .NC(NC), .LC(1), .LR(1), .NL(NL), .DELAY(1)) drains (.*);

  stream_rules #(.WIDTH(NL * 16 + 1)) rules (
      .clk(clk), .reset(reset), .valid(out_valid), .ready(out_ready),
      .payload({out_last, out_data}));

  // Beats of the tile, and how many of them have been taken.
  logic [5:0] beats, taken = 6'd0;
  logic       running = 1'b0, marked = 1'b0;
  assign beats = 6'(R * (NC * C / NL)) + (statistics ? 6'(R * Statistics) : 6'd0);

  always_ff @(posedge clk) begin
    reset <= 1'b0;
    if (start) begin
      running <= 1'b1;
      marked  <= final_tile;
      taken   <= 6'd0;
    end else if (out_valid && out_ready) begin
      taken <= taken + 6'd1;
    end
  end

  always_comb begin
    // The sequencer starts a tile only when the one before it is out.
    only_when_idle : assume (!start || (!reset && idle && !out_valid));
    if (!reset) begin
      none_unasked : assert (!out_valid || (running && taken < beats));
      last_marked : assert (!out_valid || out_last == (marked && taken == beats - 6'd1));
      none_lost : assert (!(running && idle) || start || taken + 6'(out_valid) == beats);
    end
    whole_tile : cover (marked && running && idle && !out_valid);
  end

endmodule

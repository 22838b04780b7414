// SPDX-License-Identifier: MIT
// Carries the results of a tile out while the next one runs: for each row D words, each its aligned
// sum times the row's reciprocal, rounded to Q8.8, then the statistics, if wanted. Begins DELAY
// cycles after `start`, late enough that the last row's reciprocal is ready at its turn. Owns the
// place within the tile.
//
//   cycle  0  row, chunk and group    1  the rows' results    2  the row's
//          3  the group's, reciprocal 5  products             6  the output's beat
//
// A beat that is not taken stops the whole line.
module drain #(
  parameter int R     = 4,
  parameter int C     = 16,
  parameter int NC    = 4,
  parameter int LC    = 2,
  parameter int LR    = 2,
  parameter int NL    = 4,
  parameter int DELAY = 40
) (
  input  logic              clk,
  input  logic              reset,
  input  logic              start,
  input  logic              final_tile,
  input  logic              statistics,
  output logic              idle,        // the tile's results may be overwritten
  // rows
  output logic              advance,
  output logic [LC-1:0]     read_chunk,
  input  logic [R*C*18-1:0] results,
  input  logic [R*17-1:0]   reciprocals,
  input  logic [R*8-1:0]    maxima,
  input  logic [R*29-1:0]   sums,
  // stream
  output logic              out_valid,
  input  logic              out_ready,
  output logic              out_last,
  output logic [NL*16-1:0]  out_data
);
  localparam int GROUPS     = C / NL;
  localparam int STATISTICS = (NL >= 4) ? 1 : 4 / NL;  // beats
  localparam int LG         = $clog2((GROUPS > STATISTICS) ? GROUPS : STATISTICS) + 1;
  localparam int LD         = $clog2(DELAY + 1);

  // ------------------------------------------------------------------ place
  logic [LD-1:0] delay;
  logic          active, final_held, in_statistics;
  logic [LR-1:0] row;
  logic [LC-1:0] chunk;
  logic [LG-1:0] group;
  logic          group_ends, row_ends, tile_ends;
  assign group_ends = group == (in_statistics ? LG'(STATISTICS - 1) : LG'(GROUPS - 1));
  assign row_ends   = group_ends & (in_statistics | (~statistics & (chunk == LC'(NC - 1))));
  assign tile_ends  = row_ends & (row == LR'(R - 1));
  assign advance    = out_ready | ~out_valid;
  assign read_chunk = chunk;

  logic [5:1]      valid, last, statistic;
  logic [5*LR-1:0] rows;    // of cycles 1 to 5
  logic [5*LG-1:0] groups;
  always_ff @(posedge clk) begin
    if (start) begin
      idle       <= 1'b0;
      delay      <= LD'(DELAY);
      final_held <= final_tile;
    end else if (delay != LD'(0)) begin
      delay <= delay - LD'(1);
      if (delay == LD'(1)) begin
        active        <= 1'b1;
        in_statistics <= 1'b0;
        row           <= LR'(0);
        chunk         <= LC'(0);
        group         <= LG'(0);
      end
    end
    if (active & advance) begin
      group <= group_ends ? LG'(0) : group + LG'(1);
      if (group_ends & ~in_statistics) chunk <= chunk + LC'(1);
      if (row_ends) begin
        in_statistics <= 1'b0;
        row           <= row + LR'(1);
      end else if (group_ends & ~in_statistics & (chunk == LC'(NC - 1))) in_statistics <= 1'b1;
      if (tile_ends) active <= 1'b0;
    end
    if (advance) begin
      valid     <= {valid[4:1], active};
      last      <= {last[4:1], tile_ends};
      statistic <= {statistic[4:1], in_statistics};
      rows      <= {rows[4*LR-1:0], row};
      groups    <= {groups[4*LG-1:0], group};
      if (valid[5] & last[5]) idle <= 1'b1;
    end
    if (reset) begin
      idle   <= 1'b1;
      active <= 1'b0;
      delay  <= LD'(0);
      valid  <= 5'd0;
    end
  end

  // ------------------------------------------------------------------ products
  genvar i;
  logic [C*18-1:0]   row_result [0:R-1];
  logic [16:0]       row_reciprocal [0:R-1];
  logic [36:0]       row_statistics [0:R-1];
  logic [NL*18-1:0]  group_result [0:GROUPS-1];
  logic [C*18-1:0]   chosen;
  logic [NL*18-1:0]  lanes;
  logic [16:0]       reciprocal;
  generate
    for (i = 0; i < R; i++) begin : of_rows
      assign row_result[i]     = results[i*C*18+:C*18];
      assign row_reciprocal[i] = reciprocals[i*17+:17];
      assign row_statistics[i] = {maxima[i*8+:8], sums[i*29+:29]};
    end
    for (i = 0; i < GROUPS; i++) begin : of_groups
      assign group_result[i] = chosen[i*NL*18+:NL*18];
    end
  endgenerate
  logic [LR-1:0] row1, row2, row5;
  /* verilator lint_off UNUSEDSIGNAL */  // a group, or a beat of the statistics: one is narrower
  logic [LG-1:0] group2, group5;
  /* verilator lint_on UNUSEDSIGNAL */
  assign row1   = rows[LR-1:0];
  assign row2   = rows[2*LR-1:LR];
  assign row5   = rows[5*LR-1:4*LR];
  assign group2 = groups[2*LG-1:LG];
  assign group5 = groups[5*LG-1:4*LG];
  localparam int GI = (GROUPS > 1) ? $clog2(GROUPS) : 1;
  always_ff @(posedge clk) if (advance) begin
    chosen     <= row_result[row1];
    lanes      <= group_result[group2[GI-1:0]];
    reciprocal <= row_reciprocal[row2];
  end

  // ------------------------------------------------------------------ beats
  logic [36:0]      now;
  logic [63:0]      words;      // of the statistics: maximum, sum, zero
  logic [NL*16-1:0] rounded, statistics_beat;
  assign now   = row_statistics[row5];
  assign words = {16'd0, 3'd0, now[28:0], {8{now[36]}}, now[36:29]};
  generate
    for (i = 0; i < NL; i++) begin : of_lanes
      logic signed [35:0] product, half_up;
      multiplier #(.A(18), .B(18)) times (
        .clk(clk), .enable(advance), .a(lanes[i*18+:18]), .b({1'b0, reciprocal}),
        .product(product));
      assign half_up = product + 36'sd131072;
      assign rounded[i*16+:16] =
        (half_up[35:33] == {3{half_up[35]}}) ? half_up[33:18] : {half_up[35], {15{~half_up[35]}}};
      logic unused_bits;
      assign unused_bits = |half_up[17:0];
    end
    if (NL >= 4) begin : one_beat
      assign statistics_beat = (NL*16)'(words);
    end else begin : beats
      logic [NL*16-1:0] beat [0:STATISTICS-1];
      for (i = 0; i < STATISTICS; i++) begin : of_beats
        assign beat[i] = words[i*NL*16+:NL*16];
      end
      assign statistics_beat = beat[group5[$clog2(STATISTICS)-1:0]];
    end
  endgenerate
  always_ff @(posedge clk) begin
    if (advance) begin
      out_valid <= valid[5];
      out_last  <= last[5] & final_held;
      out_data  <= statistic[5] ? statistics_beat : rounded;
    end
    if (reset) out_valid <= 1'b0;
  end
endmodule

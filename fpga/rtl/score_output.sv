// SPDX-License-Identifier: MIT
// The output path of results that come one at a time, two words each in MATMUL and one in SOFTMAX:
// a queue, and the beat that they fill. Owns the room: R entries are reserved for each key before
// it enters the array, which cannot stop.
module score_output #(
  parameter int R       = 4,
  parameter int NL      = 4,
  parameter int ENTRIES = 64,
  parameter int COUNT   = 16   // bits of the number of results of a tile
) (
  input  logic             clk,
  input  logic             reset,
  input  logic             start,
  input  logic             pairs,        // of words: MATMUL
  input  logic [COUNT-1:0] tile_results,
  input  logic             issued,       // nothing will be reserved any more
  output logic             room,
  input  logic             reserve,
  output logic             idle,
  input  logic             write,
  input  logic [31:0]      data,
  output logic             out_valid,
  input  logic             out_ready,
  output logic             out_last,
  output logic [NL*16-1:0] out_data
);
  localparam int LE = $clog2(ENTRIES);
  localparam int LP = $clog2(NL);

  // ------------------------------------------------------------------ room
  logic [LE:0] reserved;
  logic        take;
  always_ff @(posedge clk) begin
    if (reset) reserved <= (LE+1)'(0);
    else       reserved <= reserved + (reserve ? (LE+1)'(R) : (LE+1)'(0)) - (LE+1)'(take);
    room <= reserved <= (LE+1)'(ENTRIES - R);
  end
  assign idle = (reserved == (LE+1)'(0)) & ~out_valid;

  // ------------------------------------------------------------------ queue
  logic [31:0]   entries [0:ENTRIES-1];
  logic [31:0]   head;
  logic [LE-1:0] write_at, read_at;
  logic          head_valid, fetch;
  assign fetch = (write_at != read_at) & (~head_valid | take);
  always_ff @(posedge clk) begin
    if (write) entries[write_at] <= data;
    if (fetch) head <= entries[read_at];
    if (write) write_at <= write_at + LE'(1);
    if (fetch) read_at <= read_at + LE'(1);
    if (fetch | take) head_valid <= fetch;
    if (reset) begin
      write_at   <= LE'(0);
      read_at    <= LE'(0);
      head_valid <= 1'b0;
    end
  end

  // ------------------------------------------------------------------ beat
  logic [LP-1:0]    place;
  logic [LP:0]      next_place;
  logic [COUNT-1:0] results_left;
  logic             tile_ends, beat_ends;
  assign take       = head_valid & (~out_valid | out_ready);
  assign next_place = (LP+1)'(place) + (pairs ? (LP+1)'(2) : (LP+1)'(1));
  assign tile_ends  = results_left == COUNT'(1);
  assign beat_ends  = tile_ends | (next_place == (LP+1)'(NL));
  assign out_last   = issued & (reserved == (LE+1)'(0));
  always_ff @(posedge clk) begin
    if (take) begin
      for (int word = 0; word < NL; word++)
        if (place == LP'(word))
          out_data[word*16+:16] <= head[15:0];
        else if (pairs & (word != 0) & (place == LP'(word - 1)))
          out_data[word*16+:16] <= head[31:16];
        else if (place == LP'(0))
          out_data[word*16+:16] <= 16'd0;
      place        <= beat_ends ? LP'(0) : next_place[LP-1:0];
      results_left <= tile_ends ? tile_results : results_left - COUNT'(1);
    end
    if (take | out_ready) out_valid <= take & beat_ends;
    if (start) begin
      place        <= LP'(0);
      results_left <= tile_results;
    end
    if (reset) out_valid <= 1'b0;
  end
endmodule

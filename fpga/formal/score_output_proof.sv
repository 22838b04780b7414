// SPDX-License-Identifier: MIT
// The queue of scores loses and invents none: if there is room for R entries before each key, no
// entry is overwritten, and results leave in the order in which they came.
module score_output_proof (
    input logic clk,
    input logic reserve,
    input logic write,
    input logic bit_in,
    input logic out_ready
);

  localparam int R = 2, NL = 2, Entries = 4;

  // One result of a command, any of them, is watched from its writing to its leaving: a bit of it,
  // for the bits are alike.
  (* anyconst *) logic [3:0] watched;
  (* anyconst *) logic       watched_bit;
  (* anyconst *) logic [3:0] tile_results;

  logic reset = 1'b1, started = 1'b0, start;
  logic room, idle, out_valid, out_last;
  logic [NL*16-1:0] out_data;
  logic [3:0] reserved = 4'd0, written = 4'd0, taken = 4'd0;
  logic       reserved_before = 1'b0;

  assign start = !reset && !started;

  // MATMUL with NL = 2: each result is a beat of its own.
  score_output #(.R(R), .NL(NL), .ENTRIES(Entries), .COUNT(4)) queue (
      .clk(clk), .reset(reset), .start(start), .pairs(1'b1), .tile_results(tile_results),
      .issued(1'b0), .room(room), .reserve(reserve), .idle(idle), .write(write),
      .data({31'd0, bit_in}), .out_valid(out_valid), .out_ready(out_ready), .out_last(out_last),
      .out_data(out_data));

  stream_rules #(.WIDTH(1)) rules (
      .clk(clk), .reset(reset), .valid(out_valid), .ready(out_ready), .payload(out_data[0]));

  always_ff @(posedge clk) begin
    reset           <= 1'b0;
    started         <= started | start;
    reserved_before <= reserve;
    if (reserve && !reset) reserved <= reserved + 4'(R);
    if (write && !reset) written <= written + 4'd1;
    if (out_valid && out_ready && !reset) taken <= taken + 4'd1;
  end

  always_comb begin
    // The sequencer reserves where there is room, with a cycle of rest between two; the rows write
    // what was reserved.
    after_start : assume (!(reserve || write) || started);
    where_room : assume (!reserve || room);
    not_twice : assume (!(reserve && reserved_before));
    what_was_reserved : assume (!write || written < reserved);
    no_wrap : assume (reserved < 4'd12);
    tile_is_there : assume (tile_results != 4'd0);
    the_watched : assume (!write || written != watched || bit_in == watched_bit);
    if (!reset) begin
      none_invented : assert (!out_valid || taken < written);
      none_lost : assert (!idle || !started || (taken == written && written == reserved));
      in_order : assert (!out_valid || taken != watched || out_data[0] == watched_bit);
    end
    all_through : cover (taken == 4'd2 && idle);
  end

endmodule

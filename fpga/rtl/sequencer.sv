// SPDX-License-Identifier: MIT
// Decides what enters the first row in each cycle: a slot is one chunk of one key. A tile is R
// queries; its slots run without a gap unless scores or room for the output are missing, and the
// normalisation follows them:
//
//   TILE -> RUN (keys x NC slots) -> GAP (NC + 3) -> NORMALISE -> TILE ...        ATTENTION
//   TILE -> RUN -> TILE ...                                                       MATMUL
//   TILE -> RUN -> GAP -> NORMALISE -> DIVIDE -> TILE -> RUN -> TILE ...          SOFTMAX
//
// The last chunk of a key, and the normalisation, are events for the values' stream, which follows
// at a fixed distance (value_slots). Owns the place within the command.
module sequencer #(
  parameter int R       = 4,
  parameter int NC      = 4,
  parameter int LC      = 2,
  parameter int LR      = 2,
  parameter int JW      = 11,
  parameter int HIDDEN  = 3,
  parameter int ADDRESS = 12
) (
  input  logic               clk,
  input  logic               reset,
  // the command, still while it runs; `start` is its first cycle
  input  logic               start,
  input  logic               matmul,
  input  logic               softmax,
  input  logic               causal,
  input  logic [15:0]        queries,
  input  logic [JW-1:0]      keys,
  input  logic signed [17:0] offset,
  output logic               issued,         // every slot of the command is
  // queries' banks
  output logic               queries_wanted,
  input  logic               queries_loaded,
  // scores from the stream (SOFTMAX) and room for results (MATMUL, SOFTMAX)
  input  logic               score_ready,
  output logic               score_take,
  output logic               scores_end,     // of a pass: the rest of its last beat is padding
  input  logic               room,
  output logic               reserve,        // room for R results
  // drain (ATTENTION)
  input  logic               drain_idle,
  output logic               drain_start,
  output logic               final_tile,     // with drain_start
  // slots; address, chunk and bank at once, `hidden` a cycle later
  output logic               slot_valid,
  output logic               slot_first,
  output logic               slot_bank,
  output logic [LC-1:0]      slot_chunk,
  output logic [ADDRESS-1:0] slot_address,
  output logic [HIDDEN-1:0]  hidden,
  // events of the values' stream
  output logic               event_valid,
  output logic [1:0]         event_kind      // as row_output has them
);
  localparam logic [2:0] REST = 3'd0, PREPARE = 3'd1, TILE = 3'd2, RUN = 3'd3, GAP = 3'd4,
                         NORMALISE = 3'd5, DIVIDE = 3'd6, ISSUED = 3'd7;
  localparam logic [1:0] FIRST = 2'd0, NEXT = 2'd1, NORMALISED = 2'd2, EMITTED = 2'd3;
  localparam int BW = 20;  // bits of a difference between positions

  logic [2:0]           state;
  logic [4:0]           wait_left;
  logic [15:0]          tiles_left;
  logic                 emitting;   // second pass of SOFTMAX
  logic                 waiting;    // a bank is loaded and not yet in use
  logic                 bank;
  logic                 tile_starts, goes, key_ends, pass_ends, last_pass, drain_begins;
  logic [JW-1:0]        visible;    // keys that the tile runs

  // ------------------------------------------------------------------ place
  logic [LC-1:0]        chunk;
  logic                 first;
  logic [JW-1:0]        keys_left;
  logic [ADDRESS-1:0]   address;
  logic                 reserving, taking;  // conditions of the slot's start
  assign reserving   = (matmul | emitting) & (chunk == LC'(0));
  assign taking      = softmax & ((LC+1)'(chunk) < (LC+1)'(R));
  assign tile_starts = (state == TILE) & (softmax | waiting);
  assign goes        = (state == RUN) & (~reserving | room) & (~taking | score_ready);
  assign key_ends    = goes & (chunk == LC'(NC - 1));
  assign pass_ends   = key_ends & (keys_left == JW'(1));
  assign last_pass   = ~softmax | emitting;
  assign reserve     = goes & reserving;
  assign score_take  = goes & taking;
  assign scores_end  = score_take & (keys_left == JW'(1)) & ((LC+1)'(chunk) == (LC+1)'(R - 1));

  always_ff @(posedge clk) begin
    if (tile_starts) begin
      chunk     <= LC'(0);
      first     <= 1'b1;
      keys_left <= visible;
      address   <= ADDRESS'(0);
    end else if (goes) begin
      chunk   <= chunk + LC'(1);
      address <= address + ADDRESS'(1);
      if (key_ends) begin
        first     <= 1'b0;
        keys_left <= keys_left - JW'(1);
      end
    end
  end

  // ------------------------------------------------------------------ mask
  // `base` is the position of the tile's first query among the keys, `ahead` how far the key is
  // ahead of it: so many of the tile's rows do not see the key.
  logic signed [BW-1:0] base, ahead, seen;
  logic                 sees_none, sees_all, ahead_none, ahead_all;
  logic [HIDDEN-1:0]    ahead_low;
  logic [JW-1:0]        seen_low;
  always_ff @(posedge clk) begin
    if (start)                      base <= BW'(offset);
    else if (pass_ends & last_pass) base <= base + BW'(R);
    if (tile_starts)   ahead <= -base;
    else if (key_ends) ahead <= ahead + BW'(1);

    seen      <= base + BW'(R);
    sees_none <= seen < BW'(1);
    sees_all  <= seen >= $signed({{(BW-JW){1'b0}}, keys});
    seen_low  <= seen[JW-1:0];
    if (~causal | matmul | softmax | sees_all) visible <= keys;
    else if (sees_none)                        visible <= JW'(1);
    else                                       visible <= seen_low;

    ahead_none <= ~causal | ahead[BW-1] | (ahead == BW'(0));
    ahead_all  <= ahead >= BW'(R);
    ahead_low  <= ahead[HIDDEN-1:0];
    if (ahead_none)     hidden <= HIDDEN'(0);
    else if (ahead_all) hidden <= HIDDEN'(R);
    else                hidden <= ahead_low;
  end

  // ------------------------------------------------------------------ slots and events
  always_ff @(posedge clk) begin
    slot_valid   <= goes;
    slot_first   <= first & ~emitting;
    slot_bank    <= bank;
    slot_chunk   <= chunk;
    slot_address <= address;
    event_valid  <= (key_ends & ~matmul) | drain_begins;
    if (drain_begins)  event_kind <= NORMALISED;
    else if (emitting) event_kind <= EMITTED;
    else               event_kind <= first ? FIRST : NEXT;
    drain_start  <= drain_begins & ~softmax;
    final_tile   <= tiles_left == 16'd0;
    if (reset) begin
      slot_valid  <= 1'b0;
      event_valid <= 1'b0;
      drain_start <= 1'b0;
    end
  end

  // ------------------------------------------------------------------ course of the command
  assign drain_begins   = (state == NORMALISE) & (softmax | drain_idle);
  assign queries_wanted = ~waiting & (tiles_left != 16'd0) & ~softmax & (state != REST);
  assign issued         = state == ISSUED;

  always_ff @(posedge clk) begin
    if (start) begin
      tiles_left <= queries >> ((R > 1) ? LR : 0);
      waiting    <= 1'b0;
      bank       <= 1'b1;
    end else begin
      if (tile_starts & ~emitting) tiles_left <= tiles_left - 16'd1;
      if (queries_loaded)          waiting <= 1'b1;
      else if (tile_starts)        waiting <= 1'b0;
      if (tile_starts)             bank <= ~bank;
    end

    if (wait_left != 5'd0) wait_left <= wait_left - 5'd1;
    case (state)
      PREPARE: if (wait_left == 5'd0) state <= TILE;
      TILE:    if (tile_starts) state <= RUN;
      RUN:
        if (pass_ends) begin
          wait_left <= 5'(NC + 2);
          if (matmul | emitting) state <= (tiles_left == 16'd0) ? ISSUED : TILE;
          else                   state <= GAP;
          emitting <= 1'b0;
        end
      GAP:     if (wait_left == 5'd0) state <= NORMALISE;
      NORMALISE:
        if (drain_begins) begin
          wait_left <= 5'd24;
          emitting  <= softmax;
          if (softmax) state <= DIVIDE;
          else         state <= (tiles_left == 16'd0) ? ISSUED : TILE;
        end
      DIVIDE:  if (wait_left == 5'd0) state <= TILE;
      default: ;
    endcase
    if (start) begin
      state     <= PREPARE;
      wait_left <= 5'd3;
      emitting  <= 1'b0;
    end
    if (reset) begin
      state      <= REST;
      tiles_left <= 16'd0;
      emitting   <= 1'b0;
    end
  end
endmodule

// SPDX-License-Identifier: MIT
// The loader writes each beat that it accepts once, in its place: keys, then values, from the first
// address on, then queries of a tile row by row. It accepts nothing that it was not asked to load.
module loader_proof (
    input logic clk,
    input logic in_valid,
    input logic queries_wanted
);

  localparam int R = 2, NC = 2, Address = 3;

  (* anyconst *) logic [2:0] keys;
  (* anyconst *) logic       loads;
  (* anyconst *) logic       values_too;

  logic reset = 1'b1, started = 1'b0, start;
  logic queries_loaded, in_ready, key_write, value_write;
  logic [Address-1:0] buffer_address;
  logic [R-1:0]       query_write;
  logic [1:0]         query_address;

  assign start = !reset && !started;

  loader #(.R(R), .NC(NC), .LC(1), .LR(1), .JW(3), .ADDRESS(Address)) loads_operands (
      .clk(clk), .reset(reset), .start(start & loads), .values_too(values_too), .keys(keys),
      .queries_wanted(queries_wanted), .queries_loaded(queries_loaded), .restart_bank(start),
      .in_valid(in_valid), .in_ready(in_ready), .key_write(key_write), .value_write(value_write),
      .buffer_address(buffer_address), .query_write(query_write), .query_address(query_address));

  // Beats that the command has accepted, and those of keys and values among them.
  logic [5:0] accepted = 6'd0, before = 6'd0, buffers, buffer_beats;
  logic       any = 1'b0, wanted = 1'b0;
  assign buffer_beats = 6'(keys) * 6'(NC);
  assign buffers      = !loads ? 6'd0 : values_too ? buffer_beats << 1 : buffer_beats;

  always_ff @(posedge clk) begin
    reset   <= 1'b0;
    started <= started | start;
    any     <= in_valid & in_ready & ~reset;
    before  <= accepted;
    wanted  <= queries_wanted;
    if (in_valid && in_ready && !reset) accepted <= accepted + 6'd1;
  end

  logic is_key, is_value, is_query;
  logic [5:0] place, query;
  assign is_key   = loads && before < buffer_beats;
  assign is_value = loads && !is_key && before < buffers;
  assign is_query = !is_key && !is_value;
  assign place    = is_value ? before - buffer_beats : before;
  assign query    = before - buffers;

  always_comb begin
    fits : assume (keys >= 3'd1 && keys <= 3'd4);
    wanted_later : assume (!queries_wanted || started);
    stays_wanted : assume (!wanted || queries_wanted || wanted_was_loaded);
    no_wrap : assume (accepted < 6'd40);
    if (!reset && started) begin
      once : assert ({1'b0, key_write} + {1'b0, value_write} +
                     {1'b0, query_write[0]} + {1'b0, query_write[1]} == {1'b0, any});
      if (any) begin
        key : assert (key_write == is_key);
        value : assert (value_write == is_value);
        address : assert (is_query || buffer_address == Address'(place));
        row : assert (!is_query || query_write == R'(1) << query[1]);
        chunk : assert (!is_query || query_address[0] == query[0]);
        bank : assert (!is_query || query_address[1] == query[2]);
      end
    end
    whole_tile : cover (loads && values_too && queries_loaded);
  end

  logic wanted_was_loaded = 1'b0;
  always_ff @(posedge clk) wanted_was_loaded <= queries_loaded;

endmodule

// SPDX-License-Identifier: MIT
// A row of the array: one query of the tile. Keys and values, with their control, come from the row
// before and leave to the next a cycle later, so that no wire is longer than a row. Owns the links'
// registers; row_score, row_softmax and row_output own the rest. A key's weight is ready in cycle
// 18 of its last chunk, when the first chunk of its value stands in cycle 1.
module array_row #(
  parameter int C       = 16,
  parameter int NC      = 4,
  parameter int LC      = 2,
  parameter int SW      = 22,
  parameter int HIDDEN  = 3,   // bits of a number of rows, 0 to R
  parameter int ROW     = 0,
  parameter int SOFTMAX = 1
) (
  input  logic              clk,
  // what the command says, still while it runs
  input  logic              softmax,
  input  logic [15:0]       mantissa,
  input  logic [1:0]        shift,
  // queries
  input  logic              query_write,
  input  logic [LC:0]       query_address,
  input  logic [C*8-1:0]    query_data,
  // keys; `hidden` counts the rows from this one on that do not see the key
  input  logic              key_valid_in,
  input  logic              key_first_in,
  input  logic              key_bank_in,
  input  logic [LC-1:0]     key_chunk_in,
  input  logic [HIDDEN-1:0] key_hidden_in,
  input  logic [C*8-1:0]    key_data_in,
  output logic              key_valid_out,
  output logic              key_first_out,
  output logic              key_bank_out,
  output logic [LC-1:0]     key_chunk_out,
  output logic [HIDDEN-1:0] key_hidden_out,
  output logic [C*8-1:0]    key_data_out,
  // values
  input  logic              value_valid_in,
  input  logic [1:0]        value_kind_in,
  input  logic [LC-1:0]     value_chunk_in,
  input  logic [C*8-1:0]    value_data_in,
  output logic              value_valid_out,
  output logic [1:0]        value_kind_out,
  output logic [LC-1:0]     value_chunk_out,
  output logic [C*8-1:0]    value_data_out,
  // results
  input  logic              drain_advance,
  input  logic [LC-1:0]     drain_chunk,
  output logic [C*18-1:0]   result,
  output logic [16:0]       reciprocal,
  output logic signed [7:0] final_maximum,
  output logic [28:0]       final_sum,
  // one at a time in all rows together; zeros otherwise
  output logic              score_valid,
  output logic [SW-1:0]     score_bits,
  output logic              emit_valid,
  output logic [17:0]       emit,
  output logic [16:0]       emit_reciprocal
);
  // ------------------------------------------------------------------ links
  logic key_sees;
  always_ff @(posedge clk) begin
    key_valid_out  <= key_valid_in;
    key_first_out  <= key_first_in;
    key_bank_out   <= key_bank_in;
    key_chunk_out  <= key_chunk_in;
    key_sees       <= key_hidden_in == HIDDEN'(0);
    key_hidden_out <= (key_hidden_in == HIDDEN'(0)) ? HIDDEN'(0) : key_hidden_in - HIDDEN'(1);
    key_data_out   <= key_data_in;
    value_valid_out <= value_valid_in;
    value_kind_out  <= value_kind_in;
    value_chunk_out <= value_chunk_in;
    value_data_out  <= value_data_in;
  end

  // A copy of the settings for each row: nothing far away drives its logic.
  (* keep *) logic [15:0] mantissa_here;
  (* keep *) logic [1:0]  shift_here;
  always_ff @(posedge clk) begin
    mantissa_here <= mantissa;
    shift_here    <= shift;
  end

  // ------------------------------------------------------------------ score
  logic signed [SW-1:0] score;
  row_score #(.C(C), .NC(NC), .LC(LC), .SW(SW), .ROW(ROW), .SOFTMAX(SOFTMAX)) scores (
    .clk(clk), .softmax(softmax),
    .query_write(query_write), .query_address(query_address), .query_data(query_data),
    .key_address({key_bank_in, key_chunk_in}),
    .key_valid(key_valid_out), .key_chunk(key_chunk_out), .key_data(key_data_out),
    .score_valid(score_valid), .score(score));
  assign score_bits = score_valid ? score : SW'(0);

  // Flags of the chunk that completes a score, from cycle 1 to cycle 6.
  logic [6:2] first, hidden;
  always_ff @(posedge clk) begin
    first  <= {first[5:2], key_first_out};
    hidden <= {hidden[5:2], ~key_sees};
  end

  // ------------------------------------------------------------------ weight
  logic [16:0] weight;
  logic [4:0]  rescale;
  logic        rescale_all;
  logic signed [7:0] maximum;
  row_softmax #(.SW(SW)) weights (
    .clk(clk), .mantissa(mantissa_here), .shift(shift_here),
    .score_valid(score_valid), .score_first(first[6]), .score_hidden(hidden[6]), .score(score),
    .weight(weight), .rescale(rescale), .rescale_all(rescale_all), .maximum(maximum));

  // ------------------------------------------------------------------ output
  row_output #(.C(C), .NC(NC), .LC(LC), .SOFTMAX(SOFTMAX)) outputs (
    .clk(clk), .chunk_next(value_chunk_in),
    .valid(value_valid_out), .kind(value_kind_out), .chunk(value_chunk_out),
    .values(value_data_out), .weight(weight), .rescale(rescale), .rescale_all(rescale_all),
    .maximum(maximum),
    .drain_advance(drain_advance), .drain_chunk(drain_chunk), .result(result),
    .reciprocal(reciprocal), .final_maximum(final_maximum), .final_sum(final_sum),
    .emit_valid(emit_valid), .emit(emit));
  assign emit_reciprocal = emit_valid ? reciprocal : 17'd0;
endmodule

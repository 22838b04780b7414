// SPDX-License-Identifier: MIT
// Takes operands from the input stream: keys and values into their buffers, then the queries of a
// tile at a time into the bank of the rows that is not in use. Owns the write addresses. It writes
// a beat one cycle after it accepts it.
module loader #(
  parameter int R       = 4,
  parameter int NC      = 4,
  parameter int LC      = 2,
  parameter int LR      = 2,
  parameter int JW      = 11,  // bits of a number of keys
  parameter int ADDRESS = 12   // bits of a buffer's address
) (
  input  logic               clk,
  input  logic               reset,
  input  logic               start,          // of a command that loads the buffers
  input  logic               values_too,
  input  logic [JW-1:0]      keys,
  input  logic               queries_wanted, // a bank is free and a tile is left to fill it
  output logic               queries_loaded,
  input  logic               restart_bank,   // a new command begins with bank 0
  // stream
  input  logic               in_valid,
  output logic               in_ready,
  // writes
  output logic               key_write,
  output logic               value_write,
  output logic [ADDRESS-1:0] buffer_address,
  output logic [R-1:0]       query_write,
  output logic [LC:0]        query_address
);
  localparam logic [1:0] REST = 2'd0, KEYS = 2'd1, VALUES = 2'd2, QUERIES = 2'd3;
  logic [1:0]         phase;
  logic [ADDRESS-1:0] address, last_address;
  logic [LC-1:0]      chunk;
  logic [LR-1:0]      row;
  logic               bank, accepted, buffer_ends, row_ends, tile_ends;

  assign in_ready       = phase != REST;
  assign accepted       = in_valid & in_ready;
  assign buffer_ends    = address == last_address;
  assign row_ends       = chunk == LC'(NC - 1);
  assign tile_ends      = row_ends & (row == LR'(R - 1));
  assign queries_loaded = accepted & (phase == QUERIES) & tile_ends;

  always_ff @(posedge clk) begin
    key_write      <= accepted & (phase == KEYS);
    value_write    <= accepted & (phase == VALUES);
    buffer_address <= address;
    for (int r = 0; r < R; r++)
      query_write[r] <= accepted & (phase == QUERIES) & (row == LR'(r));
    query_address  <= {bank, chunk};

    last_address <= ADDRESS'({keys, {LC{1'b0}}} - (JW+LC)'(1));
    if (phase == REST) begin
      address <= ADDRESS'(0);
      chunk   <= LC'(0);
      row     <= LR'(0);
    end else if (accepted) begin
      address <= buffer_ends ? ADDRESS'(0) : address + ADDRESS'(1);
      chunk   <= chunk + LC'(1);
      if (row_ends) row <= row + LR'(1);
    end

    if (restart_bank)        bank <= 1'b0;
    else if (queries_loaded) bank <= ~bank;

    if (reset) phase <= REST;
    else
      case (phase)
        REST:    if (start) phase <= KEYS; else if (queries_wanted) phase <= QUERIES;
        KEYS:    if (accepted & buffer_ends) phase <= values_too ? VALUES : REST;
        VALUES:  if (accepted & buffer_ends) phase <= REST;
        default: if (accepted & tile_ends) phase <= REST;
      endcase
  end
endmodule

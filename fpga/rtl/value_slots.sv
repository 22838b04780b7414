// SPDX-License-Identifier: MIT
// The values' stream: each event of the keys' stream returns as NC slots, LAG cycles later, when
// the weights of its key are ready. Owns the delay line of events and the place in the buffer.
module value_slots #(
  parameter int NC      = 4,
  parameter int LC      = 2,
  parameter int ADDRESS = 12,
  parameter int LAG     = 16
) (
  input  logic               clk,
  input  logic               reset,
  input  logic               event_valid,
  input  logic [1:0]         event_kind,
  output logic               slot_valid,
  output logic [1:0]         slot_kind,
  output logic [LC-1:0]      slot_chunk,
  output logic [ADDRESS-1:0] slot_address
);
  localparam logic [1:0] FIRST = 2'd0;
  logic [LAG-1:0]   valid_line;
  logic [2*LAG-1:0] kind_line;
  logic             arrives;
  logic [1:0]       arrived;
  assign arrives = valid_line[LAG-1];
  assign arrived = kind_line[2*LAG-1:2*LAG-2];

  always_ff @(posedge clk) begin
    valid_line <= {valid_line[LAG-2:0], event_valid};
    kind_line  <= {kind_line[2*LAG-3:0], event_kind};
    if (arrives) begin
      slot_valid <= 1'b1;
      slot_kind  <= arrived;
      slot_chunk <= LC'(0);
    end else begin
      if (slot_chunk == LC'(NC - 1)) slot_valid <= 1'b0;
      slot_chunk <= slot_chunk + LC'(1);
    end
    if (arrives & (arrived == FIRST))    slot_address <= ADDRESS'(0);
    else if (slot_valid & ~slot_kind[1]) slot_address <= slot_address + ADDRESS'(1);
    if (reset) begin
      valid_line <= LAG'(0);
      slot_valid <= 1'b0;
    end
  end
endmodule

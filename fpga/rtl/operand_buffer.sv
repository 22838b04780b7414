// SPDX-License-Identifier: MIT
// Keys or values on chip, a chunk of C bytes an entry. `read_data` follows `read_address` by two
// cycles: the block RAM's own register and one after it. The sequencer never reads an entry while
// it is written; `no_rw_check` tells synthesis so.
module operand_buffer #(
  parameter int WIDTH   = 32,
  parameter int ENTRIES = 1024,
  parameter int ADDRESS = $clog2(ENTRIES)
) (
  input  logic               clk,
  input  logic               write,
  input  logic [ADDRESS-1:0] write_address,
  input  logic [WIDTH-1:0]   write_data,
  input  logic [ADDRESS-1:0] read_address,
  output logic [WIDTH-1:0]   read_data
);
  (* no_rw_check *) logic [WIDTH-1:0] entries [0:ENTRIES-1];
  logic [WIDTH-1:0] read;

  always_ff @(posedge clk) begin
    if (write) entries[write_address] <= write_data;
    read      <= entries[read_address];
    read_data <= read;
  end
endmodule

// SPDX-License-Identifier: MIT
// The score of a row's query with each key: C products a cycle, summed over the NC chunks of a key.
// Owns the query, in two banks, one of which is loaded while the other is used. In SOFTMAX the
// keys' stream carries the scores instead, that of row ROW in chunk ROW.
//
//   cycle  0  address of a query's chunk    1  key and query       3  products
//          4  sums of four                  5  sum of a chunk
//          6  score, behind a key's last chunk
module row_score #(
  parameter int C       = 16,
  parameter int NC      = 4,
  parameter int LC      = 2,   // bits of a chunk's number
  parameter int SW      = 22,  // bits of a score
  parameter int ROW     = 0,
  parameter int SOFTMAX = 1
) (
  input  logic                 clk,
  input  logic                 softmax,
  input  logic                 query_write,
  input  logic [LC:0]          query_address,  // bank, chunk
  input  logic [C*8-1:0]       query_data,
  input  logic [LC:0]          key_address,    // cycle 0: bank, chunk
  input  logic                 key_valid,      // cycle 1
  input  logic [LC-1:0]        key_chunk,
  input  logic [C*8-1:0]       key_data,
  output logic                 score_valid,    // cycle 6
  output logic signed [SW-1:0] score
);
  localparam int GROUPS = (C + 3) / 4;

  (* no_rw_check *) logic [C*8-1:0] queries [0:2*NC-1];
  logic [C*8-1:0] query;
  always_ff @(posedge clk) begin
    if (query_write) queries[query_address] <= query_data;
    query <= queries[key_address];
  end

  // Control of cycles 2 to 5: is there a chunk, the first of a key, the last.
  logic [5:2] valid, first, last;
  always_ff @(posedge clk) begin
    valid <= {valid[4:2], key_valid};
    first <= {first[4:2], key_chunk == LC'(0)};
    last  <= {last[4:2], key_chunk == LC'(NC - 1)};
  end

  genvar i;
  logic signed [15:0]   product [0:4*GROUPS-1];
  logic signed [17:0]   partial [0:GROUPS-1];
  logic signed [SW-1:0] chunk_sum, chunk_sum_next;
  generate
    for (i = 0; i < 4 * GROUPS; i++) begin : lanes
      if (i < C) begin : live
        multiplier #(.A(8), .B(8)) times (
          .clk(clk), .enable(1'b1), .a(key_data[i*8+:8]), .b(query[i*8+:8]), .product(product[i]));
      end else begin : absent
        assign product[i] = 16'sd0;
      end
    end
    for (i = 0; i < GROUPS; i++) begin : sums
      always_ff @(posedge clk)
        partial[i] <= (18'(product[4*i])     + 18'(product[4*i + 1]))
                    + (18'(product[4*i + 2]) + 18'(product[4*i + 3]));
    end
  endgenerate
  always_comb begin
    chunk_sum_next = SW'(0);
    for (int g = 0; g < GROUPS; g++) chunk_sum_next = chunk_sum_next + SW'(partial[g]);
  end
  always_ff @(posedge clk) chunk_sum <= chunk_sum_next;

  // A key's given score is held from its last chunk on, long enough for cycle 5 of that chunk.
  logic signed [15:0] given;
  generate
    if (SOFTMAX != 0) begin : gives
      logic signed [15:0] taken;
      always_ff @(posedge clk) begin
        if (key_valid & (key_chunk == LC'(ROW))) taken <= key_data[15:0];
        if (valid[2] & last[2]) given <= taken;
      end
    end else begin : gives_none
      assign given = 16'sd0;
    end
  endgenerate

  always_ff @(posedge clk) begin
    score_valid <= valid[5] & last[5];
    if (valid[5]) begin
      if ((SOFTMAX != 0) & softmax) score <= SW'(given);
      else if (first[5])            score <= chunk_sum;
      else                          score <= score + chunk_sum;
    end
  end
endmodule

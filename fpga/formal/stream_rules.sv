// SPDX-License-Identifier: MIT
// The rule of every output stream: an offer that is not taken stays, with the same payload.
module stream_rules #(
    parameter int WIDTH = 8
) (
    input logic             clk,
    input logic             reset,
    input logic             valid,
    input logic             ready,
    input logic [WIDTH-1:0] payload
);

  logic             stands = 1'b0;
  logic [WIDTH-1:0] offered;

  always_ff @(posedge clk) begin
    stands  <= valid & ~ready & ~reset;
    offered <= payload;
  end

  always_comb
    if (stands && !reset) begin
      stays : assert (valid);
      keeps : assert (payload == offered);
    end

endmodule

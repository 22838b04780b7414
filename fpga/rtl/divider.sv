// SPDX-License-Identifier: MIT
// min(floor(2^34 / divisor), 2^17 - 1) of a divisor in [2^17, 2^18), one bit a cycle: valid 18
// cycles after `start`. With a divisor of 2^17 the remainder never changes, so all bits are ones.
// With `zero` the quotient is zero.
module divider (
  input  logic        clk,
  input  logic        start,
  input  logic        zero,
  input  logic [17:0] divisor,
  output logic [16:0] quotient
);
  logic [17:0] held, remainder;
  logic [18:0] difference;
  logic [4:0]  bits_left;
  logic        fits;

  assign difference = {remainder, 1'b0} - {1'b0, held};
  assign fits       = ~difference[18];

  always_ff @(posedge clk)
    if (start) begin
      held      <= divisor;
      remainder <= 18'h20000;
      quotient  <= 17'd0;
      bits_left <= zero ? 5'd0 : 5'd17;
    end else if (bits_left != 5'd0) begin
      remainder <= fits ? difference[17:0] : {remainder[16:0], 1'b0};
      quotient  <= {quotient[15:0], fits};
      bits_left <= bits_left - 5'd1;
    end
endmodule

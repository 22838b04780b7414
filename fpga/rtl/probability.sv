// SPDX-License-Identifier: MIT
// SOFTMAX: an aligned weight times its row's reciprocal, rounded to 0.16 and held below 1; three
// cycles from `emit` to `value`. The weight has 18 unsigned bits, one more than a factor of the
// multiplier: 2^17 is subtracted from it, and 2^17 reciprocals are added to the product.
module probability (
  input  logic        clk,
  input  logic        reset,
  input  logic        emit_valid,
  input  logic [17:0] emit,
  input  logic [16:0] reciprocal,
  output logic        valid,
  output logic [15:0] value
);
  logic signed [35:0] product;
  logic [17:0]        back1, back2;  // 2^17 of these; with half of the share's last bit
  logic [34:0]        half_up;
  logic [2:1]         valids;
  multiplier #(.A(18), .B(18)) times (
    .clk(clk), .enable(1'b1), .a({~emit[17], emit[16:0]}), .b({1'b0, reciprocal}),
    .product(product));
  assign half_up = product[34:0] + {back2, 17'd0};
  logic unused_bits;
  assign unused_bits = |{product[35], half_up[17:0]};

  always_ff @(posedge clk) begin
    back1  <= {1'b0, reciprocal} + 18'd1;
    back2  <= back1;
    valids <= {valids[1], emit_valid};
    valid  <= valids[2];
    value  <= half_up[34] ? 16'hffff : half_up[33:18];
    if (reset) begin
      valids <= 2'd0;
      valid  <= 1'b0;
    end
  end
endmodule

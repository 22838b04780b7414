// SPDX-License-Identifier: MIT
// The part of ECP5's MULT18X18D that multiplier_ecp5.sv uses, for simulation: signed operands, one
// register on each of them and one on the product, all on CLK0 and CE0. Any other mode is an error.
module MULT18X18D #(
    parameter REG_INPUTA_CLK = "NONE",
    parameter REG_INPUTA_CE = "CE0",
    parameter REG_INPUTB_CLK = "NONE",
    parameter REG_INPUTB_CE = "CE0",
    parameter REG_OUTPUT_CLK = "NONE",
    parameter REG_OUTPUT_CE = "CE0",
    parameter SOURCEB_MODE = "B_SHIFT",
    parameter RESETMODE = "SYNC",
    parameter GSR = "ENABLED"
) (
    input  logic CLK0, CE0, RST0, SIGNEDA, SIGNEDB, SOURCEA, SOURCEB,
    input  logic
    A0, A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11,
    A12, A13, A14, A15, A16, A17,
    input  logic
    B0, B1, B2, B3, B4, B5, B6, B7, B8, B9, B10, B11,
    B12, B13, B14, B15, B16, B17,
    output logic
    P0, P1, P2, P3, P4, P5, P6, P7, P8, P9, P10, P11,
    P12, P13, P14, P15, P16, P17, P18, P19, P20, P21, P22, P23,
    P24, P25, P26, P27, P28, P29, P30, P31, P32, P33, P34, P35
);

  localparam bit Registered = REG_INPUTA_CLK == "CLK0" && REG_INPUTB_CLK == "CLK0" &&
      REG_OUTPUT_CLK == "CLK0" && REG_INPUTA_CE == "CE0" && REG_INPUTB_CE == "CE0" &&
      REG_OUTPUT_CE == "CE0";
  localparam bit Plain = SOURCEB_MODE == "B_SHIFT" && RESETMODE == "SYNC" && GSR == "DISABLED";

  logic signed [17:0] a;
  logic signed [17:0] b;
  logic signed [35:0] product;

  always_ff @(posedge CLK0) begin
    if (!Registered || !Plain || !SIGNEDA || !SIGNEDB || SOURCEA || SOURCEB)
      $fatal(1, "MULT18X18D: a mode that this model lacks");
    if (RST0) begin
      a       <= 18'd0;
      b       <= 18'd0;
      product <= 36'd0;
    end else if (CE0) begin
      a <= {
      A17, A16, A15, A14, A13, A12, A11, A10, A9,
      A8, A7, A6, A5, A4, A3, A2, A1, A0
      };
      b <= {
      B17, B16, B15, B14, B13, B12, B11, B10, B9,
      B8, B7, B6, B5, B4, B3, B2, B1, B0
      };
      product <= a * b;
    end
  end

  assign {
      P35, P34, P33, P32, P31, P30, P29, P28, P27,
      P26, P25, P24, P23, P22, P21, P20, P19, P18,
      P17, P16, P15, P14, P13, P12, P11, P10, P9,
      P8, P7, P6, P5, P4, P3, P2, P1, P0
  } = product;

endmodule

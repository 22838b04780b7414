// SPDX-License-Identifier: MIT
// The multiplier of multiplier.sv in one MULT18X18D of a Lattice ECP5, with the registers of the
// block: Yosys packs none into it, and a product that leaves the block unregistered costs 4 ns.
module multiplier #(
    parameter int A = 18,
    parameter int B = 18
) (
    input  logic                  clk,
    input  logic                  enable,
    input  logic signed [A-1:0]   a,
    input  logic signed [B-1:0]   b,
    output logic signed [A+B-1:0] product
);

  logic signed [17:0] wide_a;
  logic signed [17:0] wide_b;
  // The block has all 36 bits; narrower operands leave the upper ones as copies of the sign.
  /* verilator lint_off UNUSEDSIGNAL */
  logic signed [35:0] wide_product;
  /* verilator lint_on UNUSEDSIGNAL */

  assign wide_a  = 18'(a);
  assign wide_b  = 18'(b);
  assign product = wide_product[A+B-1:0];

  MULT18X18D #(
      .REG_INPUTA_CLK("CLK0"),
      .REG_INPUTA_CE ("CE0"),
      .REG_INPUTB_CLK("CLK0"),
      .REG_INPUTB_CE ("CE0"),
      .REG_OUTPUT_CLK("CLK0"),
      .REG_OUTPUT_CE ("CE0"),
      .SOURCEB_MODE  ("B_SHIFT"),
      .RESETMODE     ("SYNC"),
      .GSR           ("DISABLED")
  ) block (
      .CLK0(clk), .CE0(enable), .RST0(1'b0),
      .SIGNEDA(1'b1), .SIGNEDB(1'b1), .SOURCEA(1'b0), .SOURCEB(1'b0),
      .A0(wide_a[0]), .A1(wide_a[1]), .A2(wide_a[2]), .A3(wide_a[3]), .A4(wide_a[4]),
      .A5(wide_a[5]), .A6(wide_a[6]), .A7(wide_a[7]), .A8(wide_a[8]), .A9(wide_a[9]),
      .A10(wide_a[10]), .A11(wide_a[11]), .A12(wide_a[12]), .A13(wide_a[13]), .A14(wide_a[14]),
      .A15(wide_a[15]), .A16(wide_a[16]), .A17(wide_a[17]),
      .B0(wide_b[0]), .B1(wide_b[1]), .B2(wide_b[2]), .B3(wide_b[3]), .B4(wide_b[4]),
      .B5(wide_b[5]), .B6(wide_b[6]), .B7(wide_b[7]), .B8(wide_b[8]), .B9(wide_b[9]),
      .B10(wide_b[10]), .B11(wide_b[11]), .B12(wide_b[12]), .B13(wide_b[13]), .B14(wide_b[14]),
      .B15(wide_b[15]), .B16(wide_b[16]), .B17(wide_b[17]),
      .P0(wide_product[0]), .P1(wide_product[1]), .P2(wide_product[2]),
      .P3(wide_product[3]), .P4(wide_product[4]), .P5(wide_product[5]),
      .P6(wide_product[6]), .P7(wide_product[7]), .P8(wide_product[8]),
      .P9(wide_product[9]), .P10(wide_product[10]), .P11(wide_product[11]),
      .P12(wide_product[12]), .P13(wide_product[13]), .P14(wide_product[14]),
      .P15(wide_product[15]), .P16(wide_product[16]), .P17(wide_product[17]),
      .P18(wide_product[18]), .P19(wide_product[19]), .P20(wide_product[20]),
      .P21(wide_product[21]), .P22(wide_product[22]), .P23(wide_product[23]),
      .P24(wide_product[24]), .P25(wide_product[25]), .P26(wide_product[26]),
      .P27(wide_product[27]), .P28(wide_product[28]), .P29(wide_product[29]),
      .P30(wide_product[30]), .P31(wide_product[31]), .P32(wide_product[32]),
      .P33(wide_product[33]), .P34(wide_product[34]), .P35(wide_product[35])
  );

endmodule

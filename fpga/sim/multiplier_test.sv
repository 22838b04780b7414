// SPDX-License-Identifier: MIT
// Holds the body of the multiplier that the build reads to its definition, at every width that the
// array has: corners first, then random operands, with the enable at rest one cycle in four.
module multiplier_test;

  localparam int Cycles = 20000;

  logic clk = 1'b0;
  logic enable;
  logic [35:0] random;
  int   cycle = 0;
  logic [5:0] failed;

  always #1 clk = ~clk;

  // The low two bits of the cycle choose a corner, so that every pair of corners comes up.
  always_ff @(negedge clk) begin
    enable <= cycle < 64 || $urandom_range(3) != 0;
    random <= {$urandom, 4'($urandom)};
    cycle  <= cycle + 1;
    if (|failed) $fatal(1, "multiplier: differs from a * b at widths %b", failed);
    if (cycle == Cycles) begin
      $display("multiplier: %0d cycles agree", Cycles);
      $finish;
    end
  end

  multiplier_check #(.A(8),  .B(8))  lane  (.fails(failed[0]), .*);
  multiplier_check #(.A(18), .B(8))  value (.fails(failed[1]), .*);
  multiplier_check #(.A(18), .B(18)) full  (.fails(failed[2]), .*);
  multiplier_check #(.A(13), .B(17)) low   (.fails(failed[3]), .*);
  multiplier_check #(.A(11), .B(17)) high  (.fails(failed[4]), .*);
  multiplier_check #(.A(2),  .B(2))  tiny  (.fails(failed[5]), .*);

endmodule

module multiplier_check #(
    parameter int A = 18,
    parameter int B = 18
) (
    input  logic        clk,
    input  logic        enable,
    input  logic [35:0] random,
    input  int          cycle,
    output logic        fails
);

  localparam logic signed [A-1:0] MostA = {1'b0, {(A - 1) {1'b1}}};
  localparam logic signed [B-1:0] MostB = {1'b0, {(B - 1) {1'b1}}};

  logic signed [A-1:0] a;
  logic signed [B-1:0] b;
  logic signed [A+B-1:0] product, expected, delayed;
  int accepted = 0;

  always_comb begin
    a = random[A-1:0];
    b = random[35-:B];
    if (cycle < 64) begin
      a = cycle[0] ? MostA : ~MostA;
      b = cycle[1] ? MostB : ~MostB;
    end
  end

  multiplier #(.A(A), .B(B)) body (.*);

  always_ff @(posedge clk) begin
    if (enable) begin
      delayed  <= (A + B)'(a) * (A + B)'(b);
      expected <= delayed;
      accepted <= accepted + 1;
    end
    fails <= accepted > 2 && product !== expected;
  end

endmodule

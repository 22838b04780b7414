// SPDX-License-Identifier: MIT
// 2^(-index / 1024) in 1.16, rounded; `value` follows `index` by two cycles: the block RAM's own
// register and one after it.
module exponent_table (
  input  logic        clk,
  input  logic [9:0]  index,
  output logic [16:0] value
);
  (* rom_style = "block" *) logic [16:0] rom [0:1023];
  initial
    for (int i = 0; i < 1024; i++)
      rom[i] = 17'($rtoi(65536.0 * $pow(2.0, -1.0 * i / 1024.0) + 0.5));

  logic [16:0] read;
  always_ff @(posedge clk) begin
    read  <= rom[index];
    value <= read;
  end
endmodule

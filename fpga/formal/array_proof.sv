// SPDX-License-Identifier: MIT
// The array takes a command only when it is at rest, with no output of the last command under way.
// It never takes back an offer, and at rest it neither takes nor gives a beat.
module array_proof (
    input logic         clk,
    input logic         command_valid,
    input logic [127:0] command,
    input logic         s_valid,
    input logic [15:0]  s_data,
    input logic         m_ready
);

  localparam int R = 1, C = 2, D = 8, NK = 4, NL = 2;

  logic reset = 1'b1;
  logic command_ready, s_ready, m_valid, m_last;
  logic [NL*16-1:0] m_data;
  logic [31:0] busy_cycles;

  attention_array #(.R(R), .C(C), .D(D), .NK(NK), .NL(NL), .MATMUL(0), .SOFTMAX(0)) array (.*);

  stream_rules #(.WIDTH(NL * 16 + 1)) rules (
      .clk(clk), .reset(reset), .valid(m_valid), .ready(m_ready), .payload({m_last, m_data}));

  // High from the cycle that takes a command to the cycle that takes its last beat.
  logic under_way = 1'b0;

  always_ff @(posedge clk) begin
    reset <= 1'b0;
    if (command_valid && command_ready && !reset) under_way <= 1'b1;
    else if (m_valid && m_ready && m_last) under_way <= 1'b0;
  end

  always_comb begin
    attention : assume (command[1:0] == 2'd0);
    queries : assume (command[31:16] == 16'd1);
    keys : assume (command[47:32] >= 16'd1 && command[47:32] <= 16'd4);
    if (!reset) begin
      one_at_a_time : assert (!(command_ready && under_way));
      gives_at_rest : assert (!(command_ready && m_valid));
      takes_at_rest : assert (!(command_ready && s_ready));
    end
  end

endmodule

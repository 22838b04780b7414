// SPDX-License-Identifier: MIT
// The array behind a stream of bytes each way, which any small board has pins for. In: 16 bytes of
// a command, then the data of the command's input stream. Out: the output stream, then the cycles
// that the array was busy, 4 bytes, the last of them with `out_last`. The next command may follow
// when the last byte is out. Owns the beats on their way in and out.
module byte_top #(
  parameter int R       = 2,
  parameter int C       = 4,
  parameter int D       = 64,
  parameter int NK      = 256,
  parameter int NL      = 4,
  parameter int MATMUL  = 1,
  parameter int SOFTMAX = 1
) (
  input  logic       clk,
  input  logic       reset,
  input  logic       in_valid,
  output logic       in_ready,
  input  logic [7:0] in_data,
  output logic       out_valid,
  input  logic       out_ready,
  output logic       out_last,
  output logic [7:0] out_data
);
  localparam int OUT   = (NL * 16 > 32) ? NL * 16 : 32;  // bits in hand on the way out
  localparam int LEFT  = $clog2(OUT / 8 + 1);
  localparam logic [1:0] COMMAND = 2'd0, ISSUE = 2'd1, RUN = 2'd2, REPLY = 2'd3;

  logic reset_here;
  always_ff @(posedge clk) reset_here <= reset;

  logic             command_ready, s_valid, s_ready, m_valid, m_ready;
  logic [127:0]     command;
  logic [C*8-1:0]   s_data;
  logic [NL*16-1:0] m_data;
  logic [31:0]      busy_cycles;
  logic [1:0]       phase;

  /* verilator lint_off PINCONNECTEMPTY */  // the reply, not the array's last beat, ends a command
  attention_array #(.R(R), .C(C), .D(D), .NK(NK), .NL(NL), .MATMUL(MATMUL), .SOFTMAX(SOFTMAX))
  array (
    .clk(clk), .reset(reset_here),
    .command_valid(phase == ISSUE), .command_ready(command_ready), .command(command),
    .s_valid(s_valid), .s_ready(s_ready), .s_data(s_data),
    .m_valid(m_valid), .m_ready(m_ready), .m_last(), .m_data(m_data),
    .busy_cycles(busy_cycles));
  /* verilator lint_on PINCONNECTEMPTY */

  // ------------------------------------------------------------------ in: bytes to commands, beats
  logic [3:0]       collected;
  logic             accepted, command_ends, beat_ends;
  assign in_ready     = (phase == COMMAND) | ((phase == RUN) & ~s_valid);
  assign accepted     = in_valid & in_ready;
  assign command_ends = accepted & (phase == COMMAND) & (collected == 4'd15);
  assign beat_ends    = accepted & (phase == RUN) & (collected == 4'(C - 1));
  always_ff @(posedge clk) begin
    if (accepted & (phase == COMMAND)) command <= {in_data, command[127:8]};
    if (accepted & (phase == RUN))     s_data  <= {in_data, s_data[C*8-1:8]};
    if (beat_ends)    s_valid <= 1'b1;
    else if (s_ready) s_valid <= 1'b0;
    if (command_ends | beat_ends) collected <= 4'd0;
    else if (accepted)            collected <= collected + 4'd1;
    // Bytes that the command did not ask for are dropped: the next one begins with its own.
    if (reset_here | replies) begin
      collected <= 4'd0;
      s_valid   <= 1'b0;
    end
  end

  // ------------------------------------------------------------------ out: beats, reply to bytes
  logic [OUT-1:0]   held;
  logic [LEFT-1:0]  left;
  logic             empties, replies;
  assign out_valid = left != LEFT'(0);
  assign out_data  = held[7:0];
  assign out_last  = (phase == REPLY) & (left == LEFT'(1));
  assign m_ready   = left == LEFT'(0);
  assign empties   = out_valid & out_ready;
  assign replies   = (phase == RUN) & command_ready & ~m_valid & ~out_valid;
  always_ff @(posedge clk) begin
    if (m_valid & m_ready) begin
      held <= OUT'(m_data);
      left <= LEFT'(NL * 2);
    end else if (replies) begin
      held <= OUT'(busy_cycles);
      left <= LEFT'(4);
    end else if (empties) begin
      held <= held >> 8;
      left <= left - LEFT'(1);
    end
    if (reset_here) left <= LEFT'(0);
  end

  always_ff @(posedge clk) begin
    case (phase)
      COMMAND: if (command_ends) phase <= ISSUE;
      ISSUE:   if (command_ready) phase <= RUN;
      RUN:     if (replies) phase <= REPLY;
      default: if (empties & out_last) phase <= COMMAND;
    endcase
    if (reset_here) phase <= COMMAND;
  end
endmodule

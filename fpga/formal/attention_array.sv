// SPDX-License-Identifier: MIT
// Stands for the array in a proof: it may do anything that array_proof.sv allows.
module attention_array #(
    parameter int R       = 1,
    parameter int C       = 2,
    parameter int D       = 8,
    parameter int NK      = 4,
    parameter int NL      = 2,
    parameter int MATMUL  = 0,
    parameter int SOFTMAX = 0
) (
    input  logic             clk,
    input  logic             reset,
    input  logic             command_valid,
    output logic             command_ready,
    input  logic [127:0]     command,
    input  logic             s_valid,
    output logic             s_ready,
    input  logic [C*8-1:0]   s_data,
    output logic             m_valid,
    input  logic             m_ready,
    output logic             m_last,
    output logic [NL*16-1:0] m_data,
    output logic [31:0]      busy_cycles
);

  (* anyseq *) logic             finishes, takes, gives, last;
  (* anyseq *) logic [NL*16-1:0] data;
  (* anyseq *) logic [31:0]      cycles;
  logic                          busy;

  assign command_ready = ~busy;
  assign s_ready       = busy & takes;
  assign m_valid       = busy & gives;
  assign m_last        = last;
  assign m_data        = data;
  assign busy_cycles   = cycles;

  always_ff @(posedge clk)
    if (reset) busy <= 1'b0;
    else if (command_valid & command_ready) busy <= 1'b1;
    else if (finishes) busy <= 1'b0;

endmodule

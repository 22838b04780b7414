// SPDX-License-Identifier: MIT
// A linear systolic array of attention rows. A command names an operation; the input stream brings
// beats of C bytes, the output stream takes beats of NL words of 16 bits; csrc/fpga/array.h says
// what they carry. Parameters:
//   R    queries of a tile, a row of the array each (a power of two)
//   C    elements of the head dimension D at a time; a key takes NC = D / C cycles (a power of two
//        from 4 to 16, and no less than R where MATMUL or SOFTMAX is built)
//   NK   keys that the buffers hold (a power of two)
//   NL   words of an output beat, a divisor of C; with MATMUL or SOFTMAX at least 2
//   MATMUL, SOFTMAX  which operations are built besides ATTENTION
//
//   loader -> buffers -> [row 0] -> [row 1] -> ... -> [row R-1]
//   sequencer -------------^  |        |                  |
//                             +--------+------------------+-> drain, or score_output -> out
//
// Owns the command that runs; one at a time.
module attention_array #(
  parameter int R       = 4,
  parameter int C       = 16,
  parameter int D       = 64,
  parameter int NK      = 1024,
  parameter int NL      = 4,
  parameter int MATMUL  = 1,
  parameter int SOFTMAX = 1
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
  output logic [31:0]      busy_cycles  // of the last command, or of this one so far
);
  localparam int NC      = D / C;
  localparam int LC      = $clog2(NC);
  localparam int LR      = (R > 1) ? $clog2(R) : 1;
  localparam int JW      = (SOFTMAX != 0) ? 13 : $clog2(NK) + 1;
  localparam int ADDRESS = $clog2(NK * NC);
  localparam int HIDDEN  = $clog2(R + 1);
  localparam int SW      = 16 + $clog2(D);
  localparam int LAG     = 16;   // of the values behind the keys: see array_row
  localparam int DELAY   = 39;   // of the drain behind the normalisation

  // ------------------------------------------------------------------ the command
  logic        busy, start, finished;
  logic        is_matmul, is_softmax, loads, causal, statistics;
  logic [1:0]  shift;
  logic [15:0] queries, mantissa;
  logic [JW-1:0]      keys;
  logic signed [17:0] offset;
  assign command_ready = ~busy;
  always_ff @(posedge clk) begin
    start <= command_valid & command_ready & ~reset;
    if (command_valid & command_ready) begin
      is_matmul  <= (MATMUL != 0) & (command[1:0] == 2'd1);
      is_softmax <= (SOFTMAX != 0) & (command[1:0] == 2'd2);
      loads      <= command[2];
      causal     <= command[3];
      statistics <= command[4];
      shift      <= command[6:5];
      queries    <= command[31:16];
      keys       <= command[32+:JW];
      offset     <= command[65:48];
      mantissa   <= command[95:80];
    end
    if (reset)                              busy <= 1'b0;
    else if (command_valid & command_ready) busy <= 1'b1;
    else if (finished)                      busy <= 1'b0;
    if (command_valid & command_ready) busy_cycles <= 32'd0;
    else if (busy)                     busy_cycles <= busy_cycles + 32'd1;
  end
  logic unused_command;
  assign unused_command = |{command[127:96], command[79:66], command[47:32+JW], command[15:7]};

  // ------------------------------------------------------------------ operands
  logic               loader_ready, key_write, value_write, queries_wanted, queries_loaded;
  logic [ADDRESS-1:0] write_address;
  logic [R-1:0]       query_write;
  logic [LC:0]        query_address;
  logic [C*8-1:0]     write_data;
  loader #(.R(R), .NC(NC), .LC(LC), .LR(LR), .JW(JW), .ADDRESS(ADDRESS)) loads_operands (
    .clk(clk), .reset(reset), .start(start & loads & ~is_softmax), .values_too(~is_matmul),
    .keys(keys), .queries_wanted(queries_wanted), .queries_loaded(queries_loaded),
    .restart_bank(start), .in_valid(s_valid), .in_ready(loader_ready),
    .key_write(key_write), .value_write(value_write), .buffer_address(write_address),
    .query_write(query_write), .query_address(query_address));
  always_ff @(posedge clk) write_data <= s_data;

  logic               slot_valid, slot_first, slot_bank, value_slot_valid;
  logic [1:0]         value_slot_kind;
  logic [LC-1:0]      slot_chunk, value_slot_chunk;
  logic [ADDRESS-1:0] slot_address, value_slot_address;
  logic [C*8-1:0]     keys_read, values_read;
  operand_buffer #(.WIDTH(C*8), .ENTRIES(NK*NC)) key_buffer (
    .clk(clk), .write(key_write), .write_address(write_address), .write_data(write_data),
    .read_address(slot_address), .read_data(keys_read));
  operand_buffer #(.WIDTH(C*8), .ENTRIES(NK*NC)) value_buffer (
    .clk(clk), .write(value_write), .write_address(write_address), .write_data(write_data),
    .read_address(value_slot_address), .read_data(values_read));

  // ------------------------------------------------------------------ sequencer
  logic               issued, drain_idle, drain_start, final_tile, event_valid, reserve, room;
  logic               score_ready, score_take, scores_end;
  logic [1:0]         event_kind;
  logic [HIDDEN-1:0]  hidden;
  sequencer #(.R(R), .NC(NC), .LC(LC), .LR(LR), .JW(JW), .HIDDEN(HIDDEN), .ADDRESS(ADDRESS))
  sequences (
    .clk(clk), .reset(reset), .start(start), .matmul(is_matmul), .softmax(is_softmax),
    .causal(causal), .queries(queries), .keys(keys), .offset(offset), .issued(issued),
    .queries_wanted(queries_wanted), .queries_loaded(queries_loaded),
    .score_ready(score_ready), .score_take(score_take), .scores_end(scores_end),
    .room(room), .reserve(reserve),
    .drain_idle(drain_idle), .drain_start(drain_start), .final_tile(final_tile),
    .slot_valid(slot_valid), .slot_first(slot_first), .slot_bank(slot_bank),
    .slot_chunk(slot_chunk), .slot_address(slot_address), .hidden(hidden),
    .event_valid(event_valid), .event_kind(event_kind));
  value_slots #(.NC(NC), .LC(LC), .ADDRESS(ADDRESS), .LAG(LAG)) follows (
    .clk(clk), .reset(reset), .event_valid(event_valid), .event_kind(event_kind),
    .slot_valid(value_slot_valid), .slot_kind(value_slot_kind), .slot_chunk(value_slot_chunk),
    .slot_address(value_slot_address));

  // ------------------------------------------------------------------ the row of links
  // Link r leads into row r; control waits for what the buffers read.
  logic [R:0]              key_valid, key_first, key_bank, value_valid;
  logic [(R+1)*LC-1:0]     key_chunk, value_chunk;
  logic [(R+1)*HIDDEN-1:0] key_hidden;
  logic [(R+1)*2-1:0]      value_kind;
  logic [(R+1)*C*8-1:0]    key_data, value_data;
  localparam int KEY = 3 + LC, VALUE = 3 + LC;
  logic [KEY-1:0]    key_control, key_control_next;
  logic [VALUE-1:0]  value_control, value_control_next;
  logic [HIDDEN-1:0] key_hidden_next;
  always_ff @(posedge clk) begin
    key_control_next   <= {slot_valid & ~reset, slot_first, slot_bank, slot_chunk};
    key_control        <= key_control_next;
    key_hidden_next    <= hidden;
    value_control_next <= {value_slot_valid & ~reset, value_slot_kind, value_slot_chunk};
    value_control      <= value_control_next;
  end
  assign {key_valid[0], key_first[0], key_bank[0], key_chunk[LC-1:0]} = key_control;
  assign key_hidden[HIDDEN-1:0] = key_hidden_next;
  assign {value_valid[0], value_kind[1:0], value_chunk[LC-1:0]} = value_control;
  assign value_data[C*8-1:0] = values_read;

  logic              drain_advance;
  logic [LC-1:0]     drain_chunk;
  logic [R*C*18-1:0] results;
  logic [R*17-1:0]   reciprocals, emit_reciprocals;
  logic [R*8-1:0]    maxima;
  logic [R*29-1:0]   sums;
  logic [R-1:0]      score_valids, emit_valids;
  logic [R*SW-1:0]   scores;
  logic [R*18-1:0]   emits;
  genvar r;
  generate
    for (r = 0; r < R; r++) begin : rows
      array_row #(.C(C), .NC(NC), .LC(LC), .SW(SW), .HIDDEN(HIDDEN), .ROW(r), .SOFTMAX(SOFTMAX))
      row (
        .clk(clk), .softmax(is_softmax), .mantissa(mantissa), .shift(shift),
        .query_write(query_write[r]), .query_address(query_address), .query_data(write_data),
        .key_valid_in(key_valid[r]), .key_first_in(key_first[r]), .key_bank_in(key_bank[r]),
        .key_chunk_in(key_chunk[r*LC+:LC]), .key_hidden_in(key_hidden[r*HIDDEN+:HIDDEN]),
        .key_data_in(key_data[r*C*8+:C*8]),
        .key_valid_out(key_valid[r+1]), .key_first_out(key_first[r+1]),
        .key_bank_out(key_bank[r+1]), .key_chunk_out(key_chunk[(r+1)*LC+:LC]),
        .key_hidden_out(key_hidden[(r+1)*HIDDEN+:HIDDEN]),
        .key_data_out(key_data[(r+1)*C*8+:C*8]),
        .value_valid_in(value_valid[r]), .value_kind_in(value_kind[r*2+:2]),
        .value_chunk_in(value_chunk[r*LC+:LC]), .value_data_in(value_data[r*C*8+:C*8]),
        .value_valid_out(value_valid[r+1]), .value_kind_out(value_kind[(r+1)*2+:2]),
        .value_chunk_out(value_chunk[(r+1)*LC+:LC]),
        .value_data_out(value_data[(r+1)*C*8+:C*8]),
        .drain_advance(drain_advance), .drain_chunk(drain_chunk),
        .result(results[r*C*18+:C*18]), .reciprocal(reciprocals[r*17+:17]),
        .final_maximum(maxima[r*8+:8]), .final_sum(sums[r*29+:29]),
        .score_valid(score_valids[r]), .score_bits(scores[r*SW+:SW]),
        .emit_valid(emit_valids[r]), .emit(emits[r*18+:18]),
        .emit_reciprocal(emit_reciprocals[r*17+:17]));
    end
  endgenerate
  logic unused_links;
  assign unused_links = |{key_valid[R], key_first[R], key_bank[R], value_valid[R],
                          key_chunk[R*LC+:LC], value_chunk[R*LC+:LC], key_hidden[R*HIDDEN+:HIDDEN],
                          value_kind[R*2+:2], key_data[R*C*8+:C*8], value_data[R*C*8+:C*8]};

  // ------------------------------------------------------------------ out
  logic             drain_valid, drain_last;
  logic [NL*16-1:0] drain_data;
  drain #(.R(R), .C(C), .NC(NC), .LC(LC), .LR(LR), .NL(NL), .DELAY(DELAY)) drains (
    .clk(clk), .reset(reset), .start(drain_start), .final_tile(final_tile),
    .statistics(statistics), .idle(drain_idle),
    .advance(drain_advance), .read_chunk(drain_chunk), .results(results),
    .reciprocals(reciprocals), .maxima(maxima), .sums(sums),
    .out_valid(drain_valid), .out_ready(m_ready), .out_last(drain_last), .out_data(drain_data));

  generate
    if (MATMUL != 0 || SOFTMAX != 0) begin : with_scores
      logic                 write, queue_idle, queue_valid, queue_last;
      logic [31:0]          entry;
      logic [NL*16-1:0]     queue_data;
      logic signed [SW-1:0] score, score_next;
      logic                 score_written;
      always_comb begin
        score_next = SW'(0);
        for (int i = 0; i < R; i++) score_next = score_next | scores[i*SW+:SW];
      end
      always_ff @(posedge clk) begin
        score         <= score_next;
        score_written <= (|score_valids) & is_matmul & ~reset;
      end

      logic        probability_valid;
      logic [15:0] probability_value;
      if (SOFTMAX != 0) begin : with_softmax
        logic [15:0]    given;
        logic           given_in_ready;
        score_input #(.C(C)) takes_scores (
          .clk(clk), .reset(reset | start), .in_valid(s_valid & is_softmax & busy),
          .in_ready(given_in_ready), .in_data(s_data),
          .ready(score_ready), .score(given), .take(score_take), .drop(scores_end));
        logic [15:0] given0, given1, given2;
        always_ff @(posedge clk) begin
          given0 <= given;
          given1 <= given0;
          given2 <= given1;
        end
        assign s_ready = is_softmax ? given_in_ready & busy & ~issued : loader_ready;
        assign key_data[C*8-1:0] = is_softmax ? (C*8)'(given2) : keys_read;

        logic [17:0] emit, emit_next;
        logic [16:0] reciprocal, reciprocal_next;
        logic        emit_valid;
        always_comb begin
          emit_next       = 18'd0;
          reciprocal_next = 17'd0;
          for (int i = 0; i < R; i++) begin
            emit_next       = emit_next | emits[i*18+:18];
            reciprocal_next = reciprocal_next | emit_reciprocals[i*17+:17];
          end
        end
        always_ff @(posedge clk) begin
          emit       <= emit_next;
          reciprocal <= reciprocal_next;
          emit_valid <= |emit_valids;
        end
        probability divides (
          .clk(clk), .reset(reset), .emit_valid(emit_valid), .emit(emit),
          .reciprocal(reciprocal), .valid(probability_valid), .value(probability_value));
      end else begin : without_softmax
        logic unused_emits;
        assign unused_emits = |{emits, emit_valids, emit_reciprocals, score_take, scores_end};
        assign score_ready       = 1'b0;
        assign s_ready           = loader_ready;
        assign key_data[C*8-1:0] = keys_read;
        assign probability_valid = 1'b0;
        assign probability_value = 16'd0;
      end

      assign write = score_written | probability_valid;
      assign entry = is_matmul ? 32'(score) : {16'd0, probability_value};
      score_output #(.R(R), .NL(NL), .COUNT(JW + LR)) sends_scores (
        .clk(clk), .reset(reset), .start(start), .pairs(is_matmul),
        .tile_results((JW+LR)'(keys) << ((R > 1) ? LR : 0)), .issued(issued),
        .room(room), .reserve(reserve), .idle(queue_idle), .write(write), .data(entry),
        .out_valid(queue_valid), .out_ready(m_ready), .out_last(queue_last),
        .out_data(queue_data));
      logic from_queue;
      assign from_queue = is_matmul | is_softmax;
      assign m_valid    = from_queue ? queue_valid : drain_valid;
      assign m_last     = from_queue ? queue_last : drain_last;
      assign m_data     = from_queue ? queue_data : drain_data;
      assign finished   = issued & ~start & ~drain_start & drain_idle & ~drain_valid & queue_idle;
    end else begin : without_scores
      logic unused_scores;
      assign unused_scores = |{scores, score_valids, emits, emit_valids, emit_reciprocals,
                               reserve, score_take, scores_end};
      assign score_ready       = 1'b0;
      assign room              = 1'b0;
      assign s_ready           = loader_ready;
      assign key_data[C*8-1:0] = keys_read;
      assign m_valid           = drain_valid;
      assign m_last            = drain_last;
      assign m_data            = drain_data;
      assign finished          = issued & ~start & ~drain_start & drain_idle & ~drain_valid;
    end
  endgenerate
endmodule

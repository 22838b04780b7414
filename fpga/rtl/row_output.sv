// SPDX-License-Identifier: MIT
// The sums of a row: the weights (13.16) and, C at a time, weights times values (36 bits). Owns the
// accumulators, the row's sum, and the normalised results that wait for the drain.
// Four kinds of slots come with the values' stream:
//   FIRST       the first key of a tile; older sums do not count
//   NEXT        any other key: older sums shift right by `rescale`
//   NORMALISE   no key: sums of 18 bits, shifted as the row's sum says, go to the results, and the
//               divider begins
//   EMIT        SOFTMAX, second pass: the weight itself, shifted alike, leaves at once (18 bits
//               without a sign)
//
//   cycle  0  address of a chunk   1  values, accumulators, weight   2  shifted by eights
//          3  shifted; products    (their sum is written at the end of it; readable in cycle 4)
module row_output #(
  parameter int C       = 16,
  parameter int NC      = 4,
  parameter int LC      = 2,
  parameter int SOFTMAX = 1
) (
  input  logic              clk,
  input  logic [LC-1:0]     chunk_next,    // cycle 0
  input  logic              valid,         // cycle 1
  input  logic [1:0]        kind,
  input  logic [LC-1:0]     chunk,
  input  logic [C*8-1:0]    values,
  input  logic [16:0]       weight,
  input  logic [4:0]        rescale,
  input  logic              rescale_all,
  input  logic signed [7:0] maximum,
  // results, which the drain reads
  input  logic              drain_advance,
  input  logic [LC-1:0]     drain_chunk,
  output logic [C*18-1:0]   result,
  output logic [16:0]       reciprocal,
  output logic signed [7:0] final_maximum,
  output logic [28:0]       final_sum,
  // SOFTMAX: cycle 4
  output logic              emit_valid,
  output logic [17:0]       emit
);
  localparam logic [1:0] FIRST = 2'd0, NEXT = 2'd1, NORMALISE = 2'd2, EMIT = 2'd3;

  // ------------------------------------------------------------------ control, cycles 1 to 3
  logic          accumulates, normalises, leads, begins;
  logic [4:0]    normal_shift, amount;
  logic          to_zero;
  assign accumulates = valid & ~kind[1];
  assign normalises  = valid & (kind == NORMALISE);
  assign leads       = chunk == LC'(0);
  assign begins      = normalises & leads;
  assign amount      = kind[1] ? normal_shift : rescale;
  assign to_zero     = (kind == FIRST) | ((kind == NEXT) & rescale_all);

  logic [2:0]    fine2;
  logic          accumulates2, accumulates3, normalises2, normalises3, sums2, sums3;
  logic [LC-1:0] chunk2, chunk3;
  always_ff @(posedge clk) begin
    fine2        <= amount[2:0];
    accumulates2 <= accumulates;
    accumulates3 <= accumulates2;
    normalises2  <= normalises;
    normalises3  <= normalises2;
    sums2        <= accumulates & leads;
    sums3        <= sums2;
    chunk2       <= chunk;
    chunk3       <= chunk2;
  end

  // ------------------------------------------------------------------ accumulators
  (* no_rw_check *) logic [C*36-1:0] accumulators [0:NC-1];
  logic [C*36-1:0] sums, sums_next;
  logic [C*18-1:0] aligned;
  always_ff @(posedge clk) begin
    if (accumulates3) accumulators[chunk3] <= sums_next;
    sums <= accumulators[chunk_next];
  end

  genvar i;
  generate
    for (i = 0; i < C; i++) begin : lanes
      logic signed [35:0] old, coarse, fine;
      logic signed [25:0] product;
      if (SOFTMAX != 0 && i == 0) begin : first_lane
        assign old = (kind == EMIT) ? {11'd0, weight, 8'd0} : sums[35:0];
      end else begin : other_lane
        assign old = sums[i*36+:36];
      end
      multiplier #(.A(18), .B(8)) times (
        .clk(clk), .enable(1'b1), .a({1'b0, weight}), .b(values[i*8+:8]), .product(product));
      always_ff @(posedge clk) begin
        if (to_zero) coarse <= 36'sd0;
        else         coarse <= old >>> {amount[4:3], 3'd0};
        fine <= coarse >>> fine2;
      end
      assign sums_next[i*36+:36] = fine + 36'(product);
      assign aligned[i*18+:18]   = fine[17:0];
    end
  endgenerate

  (* no_rw_check *) logic [C*18-1:0] results [0:NC-1];
  always_ff @(posedge clk) begin
    if (normalises3) results[chunk3] <= aligned;
    if (drain_advance) result <= results[drain_chunk];
  end

  // ------------------------------------------------------------------ sum of weights, its inverse
  logic [28:0] sum, sum_coarse, sum_fine;
  logic [16:0] weight2, weight3;
  logic [4:0]  top, top_next;
  always_comb begin
    top_next = 5'd0;
    for (int b = 0; b < 29; b++) if (sum[b]) top_next = 5'(b);
  end
  always_ff @(posedge clk) begin
    if (to_zero) sum_coarse <= 29'd0;
    else         sum_coarse <= sum >> {amount[4:3], 3'd0};
    sum_fine <= sum_coarse >> fine2;
    weight2  <= weight;
    weight3  <= weight2;
    if (sums3) sum <= sum_fine + {12'd0, weight3};
    top          <= top_next;
    normal_shift <= (top >= 5'd9) ? top - 5'd9 : 5'd0;
  end

  // The largest weight is above 2^15: of a sum that is not zero, `top` is at least 15.
  logic [17:0] scaled_sum;
  assign scaled_sum = 18'({sum, 2'b0} >> (top - 5'd15));
  divider inverse (
    .clk(clk), .start(begins), .zero(sum == 29'd0), .divisor(scaled_sum),
    .quotient(reciprocal));
  always_ff @(posedge clk)
    if (begins) begin
      final_maximum <= maximum;
      final_sum     <= sum;
    end

  generate
    if (SOFTMAX != 0) begin : emits
      logic emits2, emits3;
      always_ff @(posedge clk) begin
        emits2     <= valid & leads & (kind == EMIT);
        emits3     <= emits2;
        emit_valid <= emits3;
        emit       <= emits3 ? aligned[17:0] : 18'd0;
      end
    end else begin : emits_none
      assign emit_valid = 1'b0;
      assign emit       = 18'd0;
    end
  endgenerate
endmodule

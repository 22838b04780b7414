// SPDX-License-Identifier: MIT
// The online softmax of a row. Each score gets a weight 2^-(m - t), where t is the score in powers
// of two (Q7.10) and m the least integer that is no less than any t so far; where m rises, the row
// also gets the shift that rescales older sums. Owns the maximum. Takes a score every fourth cycle
// or slower.
//
//   cycle  6  score            8  products        9  their sum      10  shifted    11  t
//         12  its ceiling     13  m              14  m - t          16  2^-fraction
//         17  shifted         18  weight, rescale and maximum, which stay until the next
module row_softmax #(
  parameter int SW = 22
) (
  input  logic                 clk,
  input  logic [15:0]          mantissa,
  input  logic [1:0]           shift,
  input  logic                 score_valid,  // cycle 6
  input  logic                 score_first,  // of a tile: what stood before does not count
  input  logic                 score_hidden, // by the mask: of weight zero
  input  logic signed [SW-1:0] score,
  output logic [16:0]          weight,       // cycle 18, 1.16
  output logic [4:0]           rescale,
  output logic                 rescale_all,  // by 32 or more: nothing is left
  output logic signed [7:0]    maximum
);
  localparam int HW = SW - 12;       // upper part of a score; the lower has 12 bits
  localparam int WW = HW + 17 + 2;   // of (score * mantissa) >> 10

  // ------------------------------------------------------------------ control, cycles 7 to 17
  logic [17:7] valid;
  logic [15:7] hidden;
  logic [12:7] first;
  always_ff @(posedge clk) begin
    valid  <= {valid[16:7], score_valid};
    hidden <= {hidden[14:7], score_hidden};
    first  <= {first[11:7], score_first};
  end

  // ------------------------------------------------------------------ to binary orders
  logic signed [HW+17-1:0] upper, upper_sum;
  logic signed [29:0]      lower;
  multiplier #(.A(HW), .B(17)) times_upper (
    .clk(clk), .enable(1'b1), .a(score[SW-1:12]), .b({1'b0, mantissa}), .product(upper));
  multiplier #(.A(13), .B(17)) times_lower (
    .clk(clk), .enable(1'b1), .a({1'b0, score[11:0]}), .b({1'b0, mantissa}), .product(lower));

  logic signed [WW-1:0] wide, shifted;
  logic [1:0] lower_bits;
  assign wide = {upper_sum, lower_bits};
  always_ff @(posedge clk) begin
    upper_sum  <= upper + (HW+17)'(lower >>> 12);
    lower_bits <= lower[11:10];
    case (shift)
      2'd0:    shifted <= wide;
      2'd1:    shifted <= wide >>> 4;
      2'd2:    shifted <= wide >>> 8;
      default: shifted <= wide >>> 12;
    endcase
  end

  // ------------------------------------------------------------------ saturated to [-128, 127]
  logic above, below;
  logic signed [17:0] t11, t12, t13;
  assign above = ~shifted[WW-1] & ((|shifted[WW-2:17]) | ((&shifted[16:10]) & (|shifted[9:0])));
  assign below = shifted[WW-1] & ~(&shifted[WW-2:17]);
  always_ff @(posedge clk)
    if (above)      t11 <= {1'b0, 7'd127, 10'd0};
    else if (below) t11 <= {1'b1, 17'd0};
    else            t11 <= shifted[17:0];

  // ------------------------------------------------------------------ running maximum
  logic signed [7:0] ceiling, m;
  logic signed [8:0] rise;
  logic [7:0] rise13;
  assign rise = 9'(ceiling) - 9'(m);
  always_ff @(posedge clk) begin
    ceiling <= t11[17:10] + {7'd0, |t11[9:0]};
    t12     <= t11;
    if (valid[12]) begin
      if (first[12] & hidden[12])                        m <= -8'sd128;
      else if (first[12] | (~hidden[12] & ~rise[8]))     m <= ceiling;
    end
    rise13 <= (hidden[12] | rise[8]) ? 8'd0 : rise[7:0];
    t13    <= t12;
  end

  // ------------------------------------------------------------------ 2^-(m - t)
  logic [18:0] distance;
  logic [16:0] power;
  logic [8:0]  whole15;
  logic [4:0]  whole16;
  logic        zero16;
  logic [17:0] half;  // one bit more than the weight has
  always_ff @(posedge clk) begin
    distance <= {m[7], m, 10'd0} - {t13[17], t13};
    whole15  <= distance[18:10];
    whole16  <= whole15[4:0];
    zero16   <= hidden[15] | (|whole15[8:5]);
    half     <= zero16 ? 18'd0 : {power, 1'b0} >> whole16;
  end
  exponent_table table_of_powers (.clk(clk), .index(distance[9:0]), .value(power));

  logic [5:0] rise14, rise15, rise16, rise17;
  logic signed [7:0] m14, m15, m16, m17;
  always_ff @(posedge clk) begin
    rise14 <= {|rise13[7:5], rise13[4:0]};
    rise15 <= rise14;
    rise16 <= rise15;
    rise17 <= rise16;
    m14    <= m;
    m15    <= m14;
    m16    <= m15;
    m17    <= m16;
    if (valid[17]) begin
      weight      <= half[17:1] + {16'd0, half[0]};
      rescale     <= rise17[4:0];
      rescale_all <= rise17[5];
      maximum     <= m17;
    end
  end
endmodule

// SPDX-License-Identifier: MIT
#include "linear/epilogue_probe.cuh"
#include "linear/sm90/launch.cuh"

namespace transformer_kernels::testing {
namespace {

struct HopperEngine {
  template <bool kWide>
  using Shape = GemmShape<Major::kK, Major::kK, 128, kWide ? 192 : 128>;

  template <bool kWide, class Chain>
  static void launch(const Context& context, const Product& p,
                     const ChainWithTensors<Chain>& chain) {
    launch_tiles<Shape<kWide>>(context, p, {p.b}, results_of(p, chain));
  }
  static int rows_of_totals(const Product& p) { return tiles_of<Shape<true>>(p).rows * kGemmWarps; }
};

}  // namespace

const EpilogueProbe kHopperProbe = probe_of<HopperEngine>("hopper", hopper_refusal);

}  // namespace transformer_kernels::testing

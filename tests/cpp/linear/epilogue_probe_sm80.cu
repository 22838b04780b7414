// SPDX-License-Identifier: MIT
#include "linear/epilogue_probe.cuh"
#include "linear/sm80/launch.cuh"

namespace transformer_kernels::testing {
namespace {

struct AmpereEngine {
  using Shape = ampere::Shape<Major::kK, Major::kK>;

  template <bool, class Chain>
  static void launch(const Context& context, const Product& p,
                     const ChainWithTensors<Chain>& chain) {
    ampere::launch_gemm<Shape>(context, p, {p.b}, ampere::whole_tiles_of<Shape>(p), chain);
  }
  static int rows_of_totals(const Product& p) {
    return ampere::tiles_of<Shape>(p).rows * Shape::kWarpsDown;
  }
};

}  // namespace

const EpilogueProbe kAmpereProbe = probe_of<AmpereEngine>("ampere", ampere_refusal);

}  // namespace transformer_kernels::testing

// SPDX-License-Identifier: MIT
#include "transformer_kernels/mlp/mlp.h"

#include "mlp/parts.h"
#include "torch/linear/operands.h"
#include "torch/linear/rows.h"
#include "transformer_kernels/api.h"

namespace transformer_kernels::torch_ops {
namespace {

// Without up_weight, z has the columns of gate and up, and so on.
template <class Pass>
struct Arguments : GatedArguments<Pass, 0> {
  std::int64_t hidden() const { return this->in_one() ? this->lines() / 2 : this->lines(); }

  void prepare(const char* op) {
    GatedArguments<Pass, 0>::prepare(op);
    check_value(!this->in_one() || !this->up_bias.defined(), op,
                ": up_bias is present, expected none (bias is of gate and up)");
  }
};

// Splits what holds gate and up along its first or last dimension.
void split_rows(TensorView& both, TensorView& up) {
  if (both.rank > 0) up = split(both, 0);
}
void split_columns(TensorView& both, TensorView& up) {
  if (both.rank > 0) up = split(both, both.rank - 1);
}

struct ForwardArguments : Arguments<MlpForward> {
  std::int64_t recompute;
};

struct Forward {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = "packed_mlp_forward";
  static constexpr const char* kPass = "";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_aligned_rows), tensor("weight", &Arguments::weight),
      optional("up_weight", &Arguments::up_weight), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias), optional("down_weight", &Arguments::down_weight),
      parameter("down_bias", &Arguments::down_bias), integer("activation", &Arguments::number),
      flag("gated", &Arguments::gated), integer("recompute", &Arguments::recompute));
  static constexpr auto kResults = std::tuple(
      result("y", &Arguments::y,
             [](const Arguments& a) {
               const TensorView& down = a.down_weight;
               return rows_like(with_columns(a.x, down.rank > 0 ? down.sizes[0] : a.hidden()));
             }),
      result("z", &Arguments::z,
             [](const Arguments& a) {
               return a.recompute < 2 ? rows_like(with_columns(a.x, a.lines())) : TensorView{};
             }),
      result("up", &Arguments::up,
             [](const Arguments& a) {
               const bool keeps = a.recompute < 2 && a.up_weight.defined();
               return keeps ? rows_like(with_columns(a.x, a.lines())) : TensorView{};
             }),
      result("h", &Arguments::h, [](const Arguments& a) {
        const bool keeps = a.recompute == 0 && a.down_weight.defined();
        return keeps ? rows_like(with_columns(a.x, a.hidden())) : TensorView{};
      }));

  static void prepare(Arguments& a) { a.prepare(kOp); }

  static void call(const Context& context, Arguments& a) {
    if (a.in_one()) {
      split_rows(a.weight, a.up_weight);
      split_rows(a.bias, a.up_bias);
      split_columns(a.z, a.up);
    }
    (a.gated ? gated_mlp_forward : mlp_forward)(context, a);
  }
  static constexpr auto* kCall = call;
};

struct BackwardArguments : Arguments<MlpBackward> {
  TensorView down_bias;  // for its dtype
  bool need_dx;
  bool need_dbias;
  bool need_ddown_bias;
};

// Gradients of weights are written to memory of the caller, those that are asked for.
struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = "packed_mlp_backward";
  static constexpr const char* kPass = "";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_aligned_rows),
      tensor("x", &Arguments::x, with_aligned_rows), tensor("weight", &Arguments::weight),
      optional("up_weight", &Arguments::up_weight), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias), optional("down_weight", &Arguments::down_weight),
      parameter("down_bias", &Arguments::down_bias),
      optional_written<'a'>("z", &Arguments::z, with_aligned_rows),
      optional_written<'b'>("up", &Arguments::up, with_aligned_rows),
      optional("h", &Arguments::h, with_aligned_rows),
      optional_written<'c'>("dweight", &Arguments::dweight),
      optional_written<'d'>("dup_weight", &Arguments::dup_weight),
      optional_written<'e'>("ddown_weight", &Arguments::ddown_weight),
      integer("activation", &Arguments::number), flag("gated", &Arguments::gated),
      flag("overwrite_z", &Arguments::overwrite_z),
      flag("accumulate", &Arguments::accumulate_dweight),
      integer("dweight_algorithm", &Arguments::dweight_algorithm),
      flag("need_dx", &Arguments::need_dx), flag("need_dbias", &Arguments::need_dbias),
      flag("need_ddown_bias", &Arguments::need_ddown_bias));
  static constexpr auto kResults = std::tuple(
      result_if(&Arguments::need_dx, "dx", &Arguments::dx, rows_like, &Arguments::x),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias),
      result_if(&Arguments::need_dbias, "dup_bias", &Arguments::dup_bias, rows_like,
                &Arguments::up_bias),
      result_if(&Arguments::need_ddown_bias, "ddown_bias", &Arguments::ddown_bias, rows_like,
                &Arguments::down_bias));

  static void prepare(Arguments& a) { a.prepare(kOp); }

  static void call(const Context& context, Arguments& a) {
    if (a.in_one()) {
      split_rows(a.weight, a.up_weight);
      split_rows(a.bias, a.up_bias);
      split_rows(a.dweight, a.dup_weight);
      split_rows(a.dbias, a.dup_bias);
      split_columns(a.z, a.up);
    }
    (a.gated ? gated_mlp_backward : mlp_backward)(context, a);
  }
  static constexpr auto* kCall = call;
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops

// The hidden features of a part, for products that are PyTorch's: the rule is the same.
extern "C" TFK_API std::int64_t tfk_mlp_part(int on_cuda, std::int64_t rows, std::int64_t hidden,
                                             std::int64_t element_bytes) {
  using namespace transformer_kernels;
  const DeviceType device = on_cuda != 0 ? DeviceType::kCuda : DeviceType::kCpu;
  return features_of_part(device, rows, hidden, element_bytes, 0);
}

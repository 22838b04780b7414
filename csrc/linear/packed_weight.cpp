// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/packed_weight.h"

#include <vector>

#include "core/backends.h"
#include "linear/operands.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "pack_weight";
constexpr Backends<PackWeightProblem> kPack{.cpu = cpu::pack_weight};
constexpr std::size_t kAlignment = 64;

void check_weight(const ArgumentChecker& check, const TensorView& weight) {
  check.floating("weight", weight);
  check_value(weight.rank == 2, kOp, ": weight has ", weight.rank, " dimensions, expected 2");
}

TensorView bytes_at(void* data, std::int64_t count) {
  TensorView view{};
  view.data = data;
  view.dtype = DType::kUInt8;
  view.rank = 1;
  view.sizes[0] = count;
  view.strides[0] = 1;
  return view;
}

}  // namespace

std::string describe(const PackWeightProblem& p) {
  return concat(name_of(p.dtype), " ", p.cols, "x", p.terms);
}

std::int64_t packed_bytes(const TensorView& weight) {
  check_weight(ArgumentChecker(kOp, weight.device), weight);
  return cpu::packed_bytes(weight.dtype, weight.sizes[1], weight.sizes[0]);
}

void pack_weight(const Context& context, const TensorView& weight, const TensorView& packed) {
  const ArgumentChecker check(kOp, context.device);
  check_weight(check, weight);
  PackWeightProblem p{};
  p.dtype = weight.dtype;
  p.terms = weight.sizes[1];
  p.cols = weight.sizes[0];
  check_packed(kOp, check, packed, p.dtype, p.terms, p.cols);
  check_apart(kOp, {"packed", packed}, {"weight", weight});
  p.weight = {weight.data, weight.strides[0], weight.strides[1]};
  p.packed = packed.data;
  if (p.cols > 0) run_on(kOp, kPack, context, p);
}

struct PackedWeight::State {
  TensorView weight;
  std::vector<std::byte> memory;
  TensorView packed;
};

PackedWeight::PackedWeight(const Context& context, const TensorView& weight)
    : state_(new State{weight, std::vector<std::byte>(packed_bytes(weight) + kAlignment), {}}) {
  const auto past = reinterpret_cast<std::uintptr_t>(state_->memory.data()) % kAlignment;
  state_->packed =
      bytes_at(state_->memory.data() + (kAlignment - past) % kAlignment, packed_bytes(weight));
  repack(context);
}
PackedWeight::~PackedWeight() = default;
PackedWeight::PackedWeight(PackedWeight&&) noexcept = default;
PackedWeight& PackedWeight::operator=(PackedWeight&&) noexcept = default;

TensorView PackedWeight::view() const { return state_->packed; }
void PackedWeight::repack(const Context& context) {
  pack_weight(context, state_->weight, state_->packed);
}

}  // namespace transformer_kernels

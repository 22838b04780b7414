// SPDX-License-Identifier: MIT
// Raw ops from lists of fields: an argument is named once, and its schema, its place in the call
// and its view follow. An op is a struct
//
//   Arguments    the arguments of the C++ function, or a struct derived from them where the op has
//                options of its own
//   kOp          its name in messages
//   kLike        the member of Arguments on whose device the op runs
//   kFields      a tuple of fields, in the order of the schema
//   name(), returns()       of the schema
//   run(context, arguments) makes the results, calls the C++ function and returns them as a tuple
//
// and RawOps<Op...> defines and implements it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "core/backends.h"
#include "torch/convert.h"

namespace transformer_kernels::torch_ops {

// Prepares a tensor for kernels: returns the tensor itself, or a copy that kernels can read.
using Prepare = Tensor (*)(const char* op, const char* name, const Tensor& tensor);

template <class Arguments>
struct TensorField {
  using Value = const Tensor&;
  static constexpr const char* kType = "Tensor";

  const char* name;
  TensorView Arguments::*member;
  Prepare prepare;

  // `kept` holds the memory of the view for the time of the call.
  void bind(const char* op, auto& arguments, std::optional<Tensor>& kept, Value value) const {
    kept = prepare(op, name, value);
    arguments.*member = view_of(op, name, *kept);
  }
};

// A tensor that the op writes.
template <class Arguments>
struct WrittenField : TensorField<Arguments> {
  static constexpr const char* kType = "Tensor(a!)";
};

// The member is a view, or the tensor itself, of which the op makes a view later.
template <class Arguments, class Member>
struct OptionalField {
  using Value = const std::optional<Tensor>&;
  static constexpr const char* kType = "Tensor?";

  const char* name;
  Member Arguments::*member;
  Prepare prepare;

  void bind(const char* op, auto& arguments, std::optional<Tensor>& kept, Value value) const {
    if (!value) return;
    kept = prepare(op, name, *value);
    if constexpr (std::is_same_v<Member, TensorView>) {
      arguments.*member = view_of(op, name, *kept);
    } else {
      arguments.*member = kept;
    }
  }
};

template <class Number>
inline constexpr const char* kTypeOf = nullptr;
template <>
inline constexpr const char* kTypeOf<double> = "float";
template <>
inline constexpr const char* kTypeOf<std::int64_t> = "int";
template <>
inline constexpr const char* kTypeOf<bool> = "bool";

template <class Number, class Arguments, class Member>
struct NumberField {
  using Value = Number;
  static constexpr const char* kType = kTypeOf<Number>;

  const char* name;
  Member Arguments::*member;

  void bind(const char*, auto& arguments, std::optional<Tensor>&, Value value) const {
    arguments.*member = value;
  }
};

template <class A>
constexpr TensorField<A> tensor(const char* name, TensorView A::*member,
                                Prepare prepare = as_it_is) {
  return {name, member, prepare};
}
template <class A>
constexpr WrittenField<A> written(const char* name, TensorView A::*member) {
  return {{name, member, as_it_is}};
}
template <class A, class Member>
constexpr OptionalField<A, Member> optional(const char* name, Member A::*member,
                                            Prepare prepare = as_it_is) {
  return {name, member, prepare};
}
// A vector of parameters, as a bias or the weight of a norm: of any strides, of which the one rule
// is here. Kernels read it without gaps, from a copy where it has some.
template <class A, class Member>
constexpr OptionalField<A, Member> parameter(const char* name, Member A::*member) {
  return {name, member, contiguous};
}
template <class A, class Member>
constexpr NumberField<double, A, Member> real(const char* name, Member A::*member) {
  return {name, member};
}
template <class A>
constexpr NumberField<std::int64_t, A, std::int64_t> integer(const char* name,
                                                             std::int64_t A::*member) {
  return {name, member};
}
template <class A>
constexpr NumberField<bool, A, bool> flag(const char* name, bool A::*member) {
  return {name, member};
}

template <class Op, class Fields = std::remove_const_t<decltype(Op::kFields)>>
struct RawOp;

template <class Op, class... Field>
struct RawOp<Op, std::tuple<Field...>> {
  static std::string schema() {
    std::string text = Op::name() + "(";
    const char* comma = "";
    const auto add = [&](const char* type, const char* name) {
      text += std::string(comma) + type + " " + name;
      comma = ", ";
    };
    std::apply([&](const Field&... field) { (add(Field::kType, field.name), ...); }, Op::kFields);
    return text + ") -> " + Op::returns();
  }

  static auto call(typename Field::Value... values) {
    return translate_errors([&] {
      typename Op::Arguments arguments{};
      std::array<std::optional<Tensor>, sizeof...(Field)> kept;
      std::apply(
          [&](const Field&... field) {
            auto next = kept.begin();
            (field.bind(Op::kOp, arguments, *next++, values), ...);
          },
          Op::kFields);
      const CallContext context((arguments.*Op::kLike).device);
      return Op::run(context, arguments);
    });
  }
};

template <class... Op>
struct RawOps {
  template <class Library>
  static void define(Library& library) {
    (library.def(RawOp<Op>::schema().c_str()), ...);
  }

  template <class Library>
  static void implement(Library& library) {
    (library.impl(Op::name().c_str(), TORCH_BOX(&RawOp<Op>::call)), ...);
  }
};

// A result of an op as a tuple: made like `like`, with a view of it; or none.
template <bool kWanted = true>
auto result(TensorView& view, Tensor (*make)(const TensorView& like), const TensorView& like) {
  if constexpr (kWanted) {
    const Tensor tensor = make(like);
    view = view_of("", "result", tensor);
    return std::tuple<Tensor>(tensor);
  } else {
    return std::tuple<>();
  }
}

// A result like `like`, with a view of it, or one of 0 elements.
inline Tensor result_if(bool wanted, TensorView& view, const TensorView& like, const TensorView& x,
                        Tensor (*make)(const TensorView& like) = new_rows_like) {
  if (!wanted) return absent(x);
  const Tensor tensor = make(like);
  view = view_of("", "result", tensor);
  return tensor;
}

}  // namespace transformer_kernels::torch_ops

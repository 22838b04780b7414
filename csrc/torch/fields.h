// SPDX-License-Identifier: MIT
// Raw ops from lists of fields: an argument or a result is named once, and its schema, its place in
// the call, its view and its memory follow. An op is a struct
//
//   Arguments    the arguments of the C++ function, or a struct derived from them where the op has
//                options of its own
//   kOp, kPass   its name: kOp is that in messages
//   kLike        the member of Arguments on whose device the op runs
//   kFields      a tuple of fields, in the order of the schema
//   kResults     a tuple of results, in theirs
//   kCall        the C++ function
//
// and, where it needs them, name() instead of both, and prepare(arguments), which completes the
// arguments before results are made. RawOps<Op...> defines and implements it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "core/backends.h"
#include "core/inline.h"
#include "torch/convert.h"
#include "torch/metadata.h"

namespace transformer_kernels::torch_ops {

// A member of a part of the arguments, which stands where a member of theirs does.
template <class Part, class Member>
struct Within {
  Part part;
  Member member;
};
template <class Part, class Member>
constexpr Within<Part, Member> within(Part part, Member member) {
  return {part, member};
}

template <class Member>
constexpr auto& at(auto& arguments, Member member) {
  return arguments.*member;
}
template <class Part, class Member>
constexpr auto& at(auto& arguments, Within<Part, Member> member) {
  return arguments.*member.part.*member.member;
}

// ---- arguments ----------------------------------------------------------------------------------

// Prepares a tensor for kernels: returns the tensor itself, or a copy that kernels can read.
using Prepare = Tensor (*)(const char* op, const char* name, const Tensor& tensor);

// The memory of a view for the time of a call. A call that only checks its arguments copies nothing
// but the indices that it reads: other views get the strides that a copy would have.
template <bool kChecksOnly>
struct Kept {
  std::optional<Tensor> tensor;

  TFK_INLINE TensorView view(const char* op, const char* name, Prepare prepare, const Tensor& of) {
    const bool copies = !kChecksOnly || prepare == packed_indices;
    tensor = copies ? prepare(op, name, of) : of;
    TensorView view = view_of(op, name, *tensor);
    if (kChecksOnly && prepare != as_it_is) view.strides = rows_like(view).strides;
    return view;
  }
};

template <class Member>
struct TensorField {
  using Value = const Tensor&;
  static constexpr const char* kType = "Tensor";

  const char* name;
  Member member;
  Prepare prepare;

  void bind(const char* op, auto& arguments, auto& kept, Value value) const {
    at(arguments, member) = kept.view(op, name, prepare, value);
  }
  void read(auto& arguments, Metadata& call) const {
    at(arguments, member) = call.tensor(name, prepare != as_it_is);
  }
};

// A tensor that the op writes, with a letter of its own in the schema.
template <char kLetter, class Member>
struct WrittenField : TensorField<Member> {
  static constexpr char kText[] = {'T', 'e', 'n', 's', 'o', 'r', '(', kLetter, '!', ')', 0};
  static constexpr const char* kType = kText;
};

template <class Member>
struct OptionalField : TensorField<Member> {
  using Value = const std::optional<Tensor>&;
  static constexpr const char* kType = "Tensor?";

  void bind(const char* op, auto& arguments, auto& kept, Value value) const {
    if (value) TensorField<Member>::bind(op, arguments, kept, *value);
  }
};

// One of which the op may make another view later, from the tensor.
template <class Member, class Source>
struct SourceField : OptionalField<Member> {
  Source source;

  void bind(const char* op, auto& arguments, auto& kept, const std::optional<Tensor>& value) const {
    OptionalField<Member>::bind(op, arguments, kept, value);
    at(arguments, source) = kept.tensor;
  }
};

// One that may be absent.
template <char kLetter, class Member>
struct OptionalWrittenField : OptionalField<Member> {
  static constexpr char kText[] = {'T', 'e', 'n', 's', 'o', 'r', '(', kLetter, '!', ')', '?', 0};
  static constexpr const char* kType = kText;
};

template <class Number>
inline constexpr const char* kTypeOf = nullptr;
template <>
inline constexpr const char* kTypeOf<double> = "float";
template <>
inline constexpr const char* kTypeOf<std::int64_t> = "int";
template <>
inline constexpr const char* kTypeOf<bool> = "bool";

template <class Number, class Member>
struct NumberField {
  using Value = Number;
  static constexpr const char* kType = kTypeOf<Number>;

  const char* name;
  Member member;

  void bind(const char*, auto& arguments, auto&, Value value) const {
    at(arguments, member) = value;
  }
};

// A number that stands for one of a list.
template <class Member, class Choose>
struct ChoiceField {
  using Value = std::int64_t;
  static constexpr const char* kType = "int";

  const char* name;
  Member member;
  Choose choose;  // (op, number) -> the value of the member

  void bind(const char* op, auto& arguments, auto&, Value value) const {
    at(arguments, member) = choose(op, value);
  }
};

// A number that this pass has no use for.
template <class Number>
struct UnusedField {
  using Value = Number;
  static constexpr const char* kType = kTypeOf<Number>;

  const char* name;

  void bind(const char*, auto&, auto&, Value) const {}
};

template <class Member>
constexpr TensorField<Member> tensor(const char* name, Member member, Prepare prepare = as_it_is) {
  return {name, member, prepare};
}
template <char kLetter = 'a', class Member>
constexpr WrittenField<kLetter, Member> written(const char* name, Member member) {
  return {{name, member, as_it_is}};
}
template <class Member>
constexpr OptionalField<Member> optional(const char* name, Member member,
                                         Prepare prepare = as_it_is) {
  return {{name, member, prepare}};
}
template <class Member, class Source>
constexpr SourceField<Member, Source> optional(const char* name, Member member, Source source,
                                               Prepare prepare) {
  return {{{name, member, prepare}}, source};
}
template <char kLetter = 'b', class Member>
constexpr OptionalWrittenField<kLetter, Member> optional_written(const char* name, Member member,
                                                                 Prepare prepare = as_it_is) {
  return {{{name, member, prepare}}};
}
// A vector of parameters, as a bias or the weight of a norm: of any strides, of which the one rule
// is here. Kernels read it without gaps, from a copy where it has some.
template <class Member>
constexpr OptionalField<Member> parameter(const char* name, Member member) {
  return {{name, member, contiguous}};
}
template <class Member>
constexpr NumberField<double, Member> real(const char* name, Member member) {
  return {name, member};
}
template <class Member>
constexpr NumberField<std::int64_t, Member> integer(const char* name, Member member) {
  return {name, member};
}
template <class Member>
constexpr NumberField<bool, Member> flag(const char* name, Member member) {
  return {name, member};
}
template <class Member, class Choose>
constexpr ChoiceField<Member, Choose> choice(const char* name, Member member, Choose choose) {
  return {name, member, choose};
}
template <class Number>
constexpr UnusedField<Number> unused(const char* name) {
  return {name};
}

// ---- results ------------------------------------------------------------------------------------

// A tensor that the op makes. Its layout follows from the arguments; where that is undefined nobody
// wants the result, which then has no elements, and its member stays undefined.
template <class Member, class Layout>
struct ResultField {
  const char* name;
  Member member;
  Layout layout;  // (arguments) -> a view without memory

  Tensor make(auto& arguments, const TensorView& first) const {
    const TensorView wanted = layout(arguments);
    if (!wanted.defined()) return absent(first);
    const Tensor tensor = empty(wanted);
    TensorView& view = at(arguments, member);
    view = wanted;
    view.data = tensor.data_ptr();
    return tensor;
  }
  void imagine(auto& arguments, Addresses& addresses) const {
    TensorView& view = at(arguments, member);
    view = layout(arguments);
    if (view.defined()) view.data = addresses.next();
  }
};

template <class Member, class Layout>
constexpr ResultField<Member, Layout> result(const char* name, Member member, Layout layout) {
  return {name, member, layout};
}

// Laid out as `layout` says of a view among the arguments; absent beside one that is.
using LayoutLike = TensorView (*)(const TensorView& like);
template <class Member, class Like>
constexpr auto result(const char* name, Member member, LayoutLike layout, Like like) {
  return result(name, member, [=](const auto& a) { return layout(at(a, like)); });
}

// A result that a call has where the flag `wanted` is set.
template <class Wanted, class Member, class Like>
constexpr auto result_if(Wanted wanted, const char* name, Member member, LayoutLike layout,
                         Like like) {
  return result(name, member,
                [=](const auto& a) { return at(a, wanted) ? layout(at(a, like)) : TensorView{}; });
}

// `fields` where the op has them.
template <bool kHas, class... Field>
constexpr auto fields_if(const Field&... field) {
  if constexpr (kHas) {
    return std::tuple(field...);
  } else {
    return std::tuple<>();
  }
}

// ---- ops ----------------------------------------------------------------------------------------

template <class Op, class Fields = std::remove_const_t<decltype(Op::kFields)>,
          class Results = std::remove_const_t<decltype(Op::kResults)>>
struct RawOp;

template <class Op, class... Field, class... Result>
struct RawOp<Op, std::tuple<Field...>, std::tuple<Result...>> {
  static std::string name() {
    if constexpr (requires { Op::name(); }) {
      return Op::name();
    } else {
      return std::string(Op::kOp) + Op::kPass;
    }
  }

  static std::string schema() {
    const std::string results = std::apply(
        [](const auto&... result) {
          return list({{"Tensor", result.name}...});
        },
        Op::kResults);
    const bool one = sizeof...(Result) == 1;
    return name() + arguments_schema() + (one ? results : "(" + results + ")");
  }

  static auto call(typename Field::Value... values) {
    return translate_errors([&] {
      typename Op::Arguments arguments{};
      std::array<Kept<false>, sizeof...(Field)> kept;
      bind(arguments, kept.data(), values...);
      const CallContext context(at(arguments, Op::kLike).device);
      prepare(arguments);
      if constexpr (sizeof...(Result) == 0) {
        Op::kCall(context, arguments);
      } else {
        const TensorView& first = at(arguments, std::get<0>(Op::kFields).member);
        // Braces: results are made in their order.
        auto results = std::apply(
            [&](const Result&... result) {
              return std::tuple<std::conditional_t<true, Tensor, Result>...>{
                  result.make(arguments, first)...};
            },
            Op::kResults);
        Op::kCall(context, arguments);
        return results;
      }
    });
  }

  // A second op makes all checks of a forward pass, and computes nothing: "linear_check".
  static constexpr std::string_view kPass = Op::kPass;
  static constexpr bool kHasCheck = kPass == "_forward";
  static std::string check_name() {
    return name().substr(0, name().size() - kPass.size()) + "_check";
  }
  static std::string check_schema() { return check_name() + arguments_schema() + "()"; }

  static void check(typename Field::Value... values) {
    translate_errors([&] {
      typename Op::Arguments arguments{};
      std::array<Kept<true>, sizeof...(Field)> kept;
      bind(arguments, kept.data(), values...);
      Addresses addresses;
      check_bound(arguments, addresses);
    });
  }

  // Makes the same checks of a call without its tensors.
  static void check_numbers(std::span<const std::int64_t> numbers) {
    typename Op::Arguments arguments{};
    Metadata call(Op::kOp, numbers);
    std::apply([&](const Field&... field) { (read(field, arguments, call), ...); }, Op::kFields);
    check_bound(arguments, call.addresses());
  }

 private:
  static void prepare(typename Op::Arguments& arguments) {
    if constexpr (requires { Op::prepare(arguments); }) Op::prepare(arguments);
  }

  TFK_INLINE static void bind(typename Op::Arguments& arguments, auto* kept,
                              typename Field::Value... values) {
    std::apply(
        [&](const Field&... field) { (field.bind(Op::kOp, arguments, *kept++, values), ...); },
        Op::kFields);
  }

  static void read(const auto& field, typename Op::Arguments& arguments, Metadata& call) {
    if constexpr (requires { field.read(arguments, call); }) {
      field.read(arguments, call);
    } else {
      Kept<true> none;
      using Number = typename std::remove_cvref_t<decltype(field)>::Value;
      field.bind(Op::kOp, arguments, none, call.number<Number>());
    }
  }

  static void check_bound(typename Op::Arguments& arguments, Addresses& addresses) {
    prepare(arguments);
    std::apply([&](const Result&... result) { (result.imagine(arguments, addresses), ...); },
               Op::kResults);
    const CallContext context(at(arguments, Op::kLike).device, true);
    Op::kCall(context, arguments);
  }

  // "(Tensor x, float eps) -> "
  static std::string arguments_schema() {
    std::string text = "(";
    text += std::apply(
        [](const auto&... field) {
          return list({{Field::kType, field.name}...});
        },
        Op::kFields);
    return text += ") -> ";
  }

  // "Tensor x, float eps"
  static std::string list(std::initializer_list<std::pair<const char*, const char*>> items) {
    std::string text;
    for (const auto& [type, name] : items) {
      text += std::string(text.empty() ? "" : ", ") + type + " " + name;
    }
    return text;
  }
};

template <class... Op>
struct RawOps {
  template <class Library>
  static void define(Library& library) {
    (define_one<Op>(library), ...);
  }
  template <class Library>
  static void implement(Library& library) {
    (implement_one<Op>(library), ...);
  }

 private:
  template <class One>
  static void define_one(auto& library) {
    using Raw = RawOp<One>;
    library.def(Raw::schema().c_str());
    if constexpr (Raw::kHasCheck) library.def(Raw::check_schema().c_str());
    add_check(Raw::name(), Raw::check_numbers);
  }
  template <class One>
  static void implement_one(auto& library) {
    using Raw = RawOp<One>;
    library.impl(Raw::name().c_str(), TORCH_BOX(&Raw::call));
    if constexpr (Raw::kHasCheck) {
      library.impl(Raw::check_name().c_str(), TORCH_BOX(&Raw::check));
    }
  }
};

// The raw ops of a list on the devices that have kernels.
#define TFK_RAW_OPS(Ops)                                                        \
  STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }     \
  STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); } \
  STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {                     \
    if constexpr (kHasCuda) Ops::implement(m);                                  \
  }

}  // namespace transformer_kernels::torch_ops

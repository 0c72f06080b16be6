// The tensors inside a value, whatever its type: what forward returned.
//
// Looked into are tensors, vector, array, list, pair, tuple, optional, variant, map, unordered_map,
// reference_wrapper, torch's IValue, List, Dict, OrderedDict, PackedSequence and ASMoutput, and structs that
// have LOCKSTEP_OBJECT. For a type of another kind:
//
//   template <>
//   struct lockstep::ddp::OutputTensors<Mine> {
//     static void visit(const Mine& value, std::vector<at::Tensor>& found) { find_tensors(value.logits,
//     found); }
//   };
//
// What is none of these is unknown (but for types that can hold no tensor; a struct that is copied byte for
// byte is taken for one, so a pointer in it is not seen). That is no error, but what depends on it is not
// known then: outputs are looked at to notice when backward begins, and to find unused
// parameters, for which they must be known.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/Generator.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymBool.h>
#include <c10/core/SymFloat.h>
#include <c10/core/SymInt.h>

#include <concepts>
#include <functional>
#include <map>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/object/fields.h"

namespace torch {
template <typename Key, typename Value>
class OrderedDict;
namespace nn {
struct ASMoutput;
namespace utils::rnn {
class PackedSequence;
}
}  // namespace nn
}  // namespace torch

namespace lockstep::ddp {

// The types that a specialisation finds tensors in; one that has none of them is known as a whole.
template <typename... Each>
struct Types {};

// A type that is only declared can be taken by reference, but not asked what it is.
template <typename T>
concept Complete = requires { sizeof(T); };

template <typename T>
struct OutputTensors {
  using Unknown = void;
  static void visit(const T&, std::vector<at::Tensor>&) {}
};

template <typename T>
void find_tensors(const T& value, std::vector<at::Tensor>& found) {
  OutputTensors<T>::visit(value, found);
}

template <typename T, typename... Each>
concept OneOf = (std::same_as<T, Each> || ...);

// A tensor is not trivially copyable, so nothing that is so has one; but a pointer may lead to one.
template <typename T>
concept HasNoTensor = std::is_void_v<T> || std::is_arithmetic_v<std::remove_pointer_t<T>> ||
                      OneOf<T, c10::Scalar, c10::SymInt, c10::SymFloat, c10::SymBool, at::Generator> ||
                      (Complete<T> && std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);

// The first type in a T, or T itself, of which it is not known which tensors it has (a pointer to it, where
// it is only declared); null if there is none. `Outer`: the types that T was found in.
template <typename T, typename... Outer>
const std::type_info* unknown_in() {
  const std::type_info* found = nullptr;
  if constexpr (requires { typename OutputTensors<T>::Unknown; }) {
    using Named = std::conditional_t<Complete<T>, T, T*>;
    if constexpr (!HasNoTensor<T>) found = &typeid(Named);
  } else if constexpr (!(std::same_as<T, Outer> || ...) && requires { typename OutputTensors<T>::Parts; }) {
    [&]<typename... Part>(Types<Part...>) {
      (void)((found = unknown_in<std::remove_cvref_t<Part>, T, Outer...>(), found != nullptr) || ...);
    }(typename OutputTensors<T>::Parts{});
  }
  return found;
}

template <typename... Each>
struct OutputTensors<Types<Each...>> {  // for unknown_in() alone
  using Parts = Types<Each...>;
};

template <typename T>
  requires Complete<T> && std::is_base_of_v<at::TensorBase, T>
struct OutputTensors<T> {
  static void visit(const T& value, std::vector<at::Tensor>& found) { found.push_back(value); }
};

// A range of itself (a path, a JSON value) has no end, and is unknown.
template <typename T>
concept RangeOfOthers =
    Complete<T> && std::ranges::range<const T> && !std::is_base_of_v<at::TensorBase, T> &&
    !std::same_as<std::remove_cvref_t<std::ranges::range_reference_t<const T>>, std::remove_cv_t<T>>;

template <RangeOfOthers T>
struct OutputTensors<T> {
  using Parts = Types<std::ranges::range_reference_t<const T>>;
  static void visit(const T& values, std::vector<at::Tensor>& found) {
    for (const auto& value : values) find_tensors(value, found);
  }
};

template <typename A, typename B>
struct OutputTensors<std::pair<A, B>> {
  using Parts = Types<A, B>;
  static void visit(const std::pair<A, B>& value, std::vector<at::Tensor>& found) {
    find_tensors(value.first, found);
    find_tensors(value.second, found);
  }
};

template <typename... Each>
struct OutputTensors<std::tuple<Each...>> {
  using Parts = Types<Each...>;
  static void visit(const std::tuple<Each...>& value, std::vector<at::Tensor>& found) {
    std::apply([&](const auto&... each) { (find_tensors(each, found), ...); }, value);
  }
};

template <typename T>
struct OutputTensors<std::optional<T>> {
  using Parts = Types<T>;
  static void visit(const std::optional<T>& value, std::vector<at::Tensor>& found) {
    if (value) find_tensors(*value, found);
  }
};

template <typename... Each>
struct OutputTensors<std::variant<Each...>> {
  using Parts = Types<Each...>;
  static void visit(const std::variant<Each...>& value, std::vector<at::Tensor>& found) {
    if (value.valueless_by_exception()) return;
    std::visit([&](const auto& held) { find_tensors(held, found); }, value);
  }
};

template <typename T>
struct OutputTensors<std::reference_wrapper<T>> {
  using Parts = Types<T>;
  static void visit(const std::reference_wrapper<T>& value, std::vector<at::Tensor>& found) {
    find_tensors<std::remove_const_t<T>>(value.get(), found);
  }
};

template <typename T>
  requires object::Declared<T>
struct OutputTensors<T> {
  using Parts = decltype(std::apply(
      [](const auto&... field) {
        return Types<std::remove_cvref_t<decltype(std::declval<const T&>().*field.member)>...>{};
      },
      object::fields_of<T>().fields));
  static void visit(const T& value, std::vector<at::Tensor>& found) {
    std::apply([&](const auto&... field) { (find_tensors(value.*field.member, found), ...); },
               object::fields_of<T>().fields);
  }
};

template <typename T>
struct OutputTensors<c10::List<T>> {
  using Parts = Types<T>;
  static void visit(const c10::List<T>& values, std::vector<at::Tensor>& found) {
    for (std::size_t i = 0; i < values.size(); ++i) find_tensors<T>(values.get(i), found);
  }
};

template <typename Key, typename Value>
struct OutputTensors<c10::Dict<Key, Value>> {
  using Parts = Types<Value>;
  static void visit(const c10::Dict<Key, Value>& values, std::vector<at::Tensor>& found) {
    for (const auto& item : values) find_tensors<Value>(item.value(), found);
  }
};

template <typename Key, typename Value>
struct OutputTensors<torch::OrderedDict<Key, Value>> {
  using Parts = Types<Value>;
  static void visit(const torch::OrderedDict<Key, Value>& values, std::vector<at::Tensor>& found) {
    for (const auto& item : values) find_tensors<Value>(item.value(), found);
  }
};

template <>
struct OutputTensors<c10::IValue> {
  static void visit(const c10::IValue& value, std::vector<at::Tensor>& found);
};
template <>
struct OutputTensors<torch::nn::utils::rnn::PackedSequence> {
  static void visit(const torch::nn::utils::rnn::PackedSequence& value, std::vector<at::Tensor>& found);
};
template <>
struct OutputTensors<torch::nn::ASMoutput> {
  static void visit(const torch::nn::ASMoutput& value, std::vector<at::Tensor>& found);
};

template <typename... Each>
std::vector<at::Tensor> tensors_in(const Each&... each) {
  std::vector<at::Tensor> found;
  (find_tensors(each, found), ...);
  return found;
}

}  // namespace lockstep::ddp

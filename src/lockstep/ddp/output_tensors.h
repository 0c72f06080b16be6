// The tensors inside a value, whatever its type: what forward returned.
//
// Looked into are tensors, vector, array, list, pair, tuple, optional, map, unordered_map, torch's IValue,
// and structs that have LOCKSTEP_OBJECT. For a type of another kind:
//
//   template <>
//   struct lockstep::ddp::OutputTensors<Mine> {
//     static void visit(const Mine& value, std::vector<at::Tensor>& found) { find_tensors(value.logits,
//     found); }
//   };
//
// What is none of these has no tensors. That is no error, but what depends on it is not known then: outputs
// are looked at to find unused parameters, and to notice when backward begins.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <concepts>
#include <map>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/object/fields.h"

namespace lockstep::ddp {

template <typename T>
struct OutputTensors {
  using Unknown = void;
  static void visit(const T&, std::vector<at::Tensor>&) {}
};

template <typename T>
void find_tensors(const T& value, std::vector<at::Tensor>& found) {
  OutputTensors<T>::visit(value, found);
}

// Whether it is known which tensors a T has: all, or that it has none.
template <typename T>
concept LookedInto = !requires { typename OutputTensors<T>::Unknown; } || std::is_arithmetic_v<T> ||
                     std::is_enum_v<T> || std::same_as<T, const char*>;

template <typename T>
  requires std::is_base_of_v<at::TensorBase, T>
struct OutputTensors<T> {
  static void visit(const T& value, std::vector<at::Tensor>& found) { found.push_back(value); }
};

template <typename T>
  requires(std::ranges::range<const T> && !std::is_base_of_v<at::TensorBase, T>)
struct OutputTensors<T> {
  static void visit(const T& values, std::vector<at::Tensor>& found) {
    for (const auto& value : values) find_tensors(value, found);
  }
};

template <typename A, typename B>
struct OutputTensors<std::pair<A, B>> {
  static void visit(const std::pair<A, B>& value, std::vector<at::Tensor>& found) {
    find_tensors(value.first, found);
    find_tensors(value.second, found);
  }
};

template <typename... Each>
struct OutputTensors<std::tuple<Each...>> {
  static void visit(const std::tuple<Each...>& value, std::vector<at::Tensor>& found) {
    std::apply([&](const auto&... each) { (find_tensors(each, found), ...); }, value);
  }
};

template <typename T>
struct OutputTensors<std::optional<T>> {
  static void visit(const std::optional<T>& value, std::vector<at::Tensor>& found) {
    if (value) find_tensors(*value, found);
  }
};

template <typename T>
  requires object::Declared<T>
struct OutputTensors<T> {
  static void visit(const T& value, std::vector<at::Tensor>& found) {
    std::apply([&](const auto&... field) { (find_tensors(value.*field.member, found), ...); },
               object::fields_of<T>().fields);
  }
};

template <>
struct OutputTensors<c10::IValue> {
  static void visit(const c10::IValue& value, std::vector<at::Tensor>& found);
};

template <typename... Each>
std::vector<at::Tensor> tensors_in(const Each&... each) {
  std::vector<at::Tensor> found;
  (find_tensors(each, found), ...);
  return found;
}

}  // namespace lockstep::ddp

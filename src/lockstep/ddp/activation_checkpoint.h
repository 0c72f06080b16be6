// checkpoint() runs a part of a forward and keeps nothing of it but its inputs; backward runs it again. So a
// deep network needs the memory of one part at a time, and one more forward.
//
//   x = lockstep::checkpoint(block, x);                            // block: a module holder, or any callable
//   x = lockstep::checkpoint({.reentrant = true}, block, x);
//   x = lockstep::checkpoint([net, mask](const at::Tensor& x) { return net->attend(x, mask); }, x);
//
// `function` and its inputs are copied and kept until backward: capture by value, or what lives as long. It
// is called with const inputs and must do the same when it is called again: the state of the random numbers,
// and autocast, are as they were then. What it changes (the running mean of a BatchNorm) it changes twice.
// It gives a tensor, or a vector, array, optional, pair, tuple or map of such, or a struct that has
// LOCKSTEP_OBJECT, with numbers and texts among them.
//
//   not reentrant  The default. What the function depends on is found in its own graph, wherever it has it
//                  from: inputs, parameters, captured tensors. Each gets its gradient once in a backward
//                  pass, so data parallelism works as without checkpoints, find_unused_parameters too.
//   reentrant      Only tensors among the inputs are known; parameters get their gradients from a backward
//                  pass inside the backward pass, once for every use. Under data parallelism that needs
//                  static_graph, if a parameter is used in two parts, in two forwards of one backward, or not
//                  at all. One of the inputs must need a gradient, and there is no autograd::grad() through
//                  it.
//
// The values are bitwise those without a checkpoint. So are gradients, unless more than two terms of a sum
// meet that come in part from inside: they are added first.
//
// Thread safety: as the function's own. Errors: InvalidArgument, also in backward, where an input was changed
// in place, or the function did something else when it was run again.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/object/fields.h"

namespace lockstep::ddp {

struct CheckpointOptions {
  bool reentrant = false;
  // Whether the second run draws the random numbers of the first. Costs a copy of the generator's state.
  bool preserve_rng_state = true;
};

namespace checkpointing {

using Tensors = std::vector<at::Tensor>;
// A function whose inputs are bound: it is given tensors that stand for those among them.
using Part = std::function<Tensors(const Tensors& inputs)>;

// The outputs of `first`, with a history that runs `again`.
Tensors run(const CheckpointOptions& options, const Tensors& inputs, const Part& first, Part again);

template <typename T>
concept Tensor = std::is_same_v<std::remove_cv_t<T>, at::Tensor>;
template <typename T>
concept TupleLike = requires { std::tuple_size<std::remove_cv_t<T>>::value; };
template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <typename T>
concept Optional = IsOptional<std::remove_cv_t<T>>::value;
template <typename T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_convertible_v<T, std::string_view> ||
                std::is_same_v<std::remove_cv_t<T>, std::nullopt_t>;

// Calls `visit` for each tensor in `value`, which may replace it.
template <typename T, typename Visit>
void each_tensor(T& value, const Visit& visit) {
  const auto each = [&](auto&... parts) { (each_tensor(parts, visit), ...); };
  if constexpr (Tensor<T>) {
    visit(value);
  } else if constexpr (Plain<T>) {
    return;
  } else if constexpr (Optional<T>) {
    if (value) each_tensor(*value, visit);
  } else if constexpr (TupleLike<T>) {
    std::apply(each, value);
  } else if constexpr (std::ranges::range<T>) {
    for (auto&& part : value) each_tensor(part, visit);
  } else if constexpr (object::Declared<std::remove_cv_t<T>>) {
    std::apply([&](const auto&... field) { each(value.*field.member...); },
               object::fields_of<std::remove_cv_t<T>>().fields);
  }
}

// Whether each_tensor() finds all there is in a T.
template <typename T>
constexpr bool is_known() {
  if constexpr (Tensor<T> || Plain<T>) {
    return true;
  } else if constexpr (Optional<T>) {
    return is_known<typename T::value_type>();
  } else if constexpr (TupleLike<T>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (is_known<std::remove_cv_t<std::tuple_element_t<I, T>>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (std::ranges::range<T>) {
    return is_known<std::ranges::range_value_t<T>>();
  } else {
    return object::Declared<T>;
  }
}

template <typename T>
Tensors tensors_in(T& value) {
  Tensors found;
  each_tensor(value, [&](const at::Tensor& tensor) { found.push_back(tensor); });
  return found;
}
template <typename T>
void put_tensors(T& value, const Tensors& tensors) {
  std::size_t next = 0;
  each_tensor(value, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
}

}  // namespace checkpointing

template <typename Function, typename... Inputs>
auto checkpoint(const CheckpointOptions& options, Function function, Inputs... inputs) {
  using Output = std::remove_cvref_t<std::invoke_result_t<Function&, const Inputs&...>>;
  static_assert(checkpointing::is_known<Output>(),
                "checkpoint: the function gives a tensor, or a vector, array, optional, pair, tuple, map or "
                "LOCKSTEP_OBJECT of such");
  std::tuple<Inputs...> bound(std::move(inputs)...);
  const checkpointing::Tensors tensors = checkpointing::tensors_in(bound);
  auto call = [function = std::move(function),
               bound = std::move(bound)](const checkpointing::Tensors& given) mutable -> Output {
    std::tuple<Inputs...> own = bound;
    checkpointing::put_tensors(own, given);
    return std::apply(function, std::as_const(own));
  };
  std::optional<Output> output;
  const auto first = [&, call](const checkpointing::Tensors& given) mutable {
    output.emplace(call(given));
    return checkpointing::tensors_in(*output);
  };
  const auto again = [call](const checkpointing::Tensors& given) mutable {
    Output other = call(given);
    return checkpointing::tensors_in(other);
  };
  checkpointing::put_tensors(*output, checkpointing::run(options, tensors, first, again));
  return std::move(*output);
}

template <typename Function, typename... Inputs>
  requires(!std::is_same_v<Function, CheckpointOptions>)
auto checkpoint(Function function, Inputs... inputs) {
  return checkpoint(CheckpointOptions{}, std::move(function), std::move(inputs)...);
}

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::checkpoint;
using ddp::CheckpointOptions;
}  // namespace lockstep

// The functional collectives that have a tensor for each rank, or a root.
#include <c10/util/accumulate.h>

#include "lockstep/tensor/functional_support.h"

namespace lockstep::tensor::functional {
namespace {

// A tensor of each of the shapes, from the rank that it stands for.
Tensors all_gather_shaped(const char* call, const at::Tensor& tensor, const Shapes& shapes,
                          const Options& options);

Tensors all_to_all_shaped(const char* call, const Tensors& inputs, const Shapes& shapes,
                          const Options& options) {
  Operation op(call, options.group);
  return differentiable(
      inputs,
      [&] {
        Tensors outputs;
        for (std::size_t i = 0; i < shapes.size(); ++i)
          outputs.push_back(empty_of(op, nth("output_shapes", i), shapes[i], inputs.front()));
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          op.input(inputs[i], nth("input_list", i));
          op.output(outputs[i], nth("output_shapes", i));
        }
        op.issue(OpKind::kAllToAll, {.timeout = options.timeout});
        return outputs;
      },
      [call, options = pinned(op, options), shapes = shapes_of(inputs)](const Tensors& gradients) {
        return all_to_all_shaped(call, gradients, shapes, options);
      });
}

at::Tensor reduce_scatter_list(const char* call, const Tensors& inputs, const ReduceOptions& options) {
  Operation op(call, options.group);
  return differentiable(
             inputs,
             [&] {
               const auto own = static_cast<std::size_t>(op.rank());
               Tensors outputs{empty_of(op, of_input_list(own), inputs[own].sizes(), inputs[own])};
               op.output(outputs[0], {"output"});
               for (std::size_t i = 0; i < inputs.size(); ++i) op.input(inputs[i], nth("input_list", i));
               op.issue(OpKind::kReduceScatter, 0, options.op, {.timeout = options.timeout});
               return outputs;
             },
             [call, options = pinned(op, options), shapes = shapes_of(inputs),
              size = op.size()](const Tensors& gradients) {
               return weighted(
                   all_gather_shaped(call, gradients[0], shapes, {options.group, options.timeout}),
                   options.op, size);
             })
      .front();
}

Tensors all_gather_shaped(const char* call, const at::Tensor& tensor, const Shapes& shapes,
                          const Options& options) {
  Operation op(call, options.group);
  return differentiable(
      {tensor},
      [&] {
        Tensors outputs;
        for (const auto& shape : shapes) outputs.push_back(empty_of(op, {"tensor"}, shape, tensor));
        op.input(tensor, {"tensor"});
        for (std::size_t i = 0; i < outputs.size(); ++i) op.output(outputs[i], nth("output", i));
        op.issue(OpKind::kAllGather, {.timeout = options.timeout});
        return outputs;
      },
      [call, options = pinned(op, options)](const Tensors& gradients) {
        return Tensors{
            reduce_scatter_list(call, gradients, {.group = options.group, .timeout = options.timeout})};
      });
}

// Which rank of the group is the root, and how its collectives run.
struct Rooted {
  const char* call;
  int root;
  ProcessGroup group;
  std::optional<Duration> timeout;
};

at::Tensor scatter_from(const Rooted& how, const Tensors& tensors);

Tensors gather_to(const Rooted& how, const at::Tensor& tensor, const Shapes& shapes) {
  Operation op(how.call, how.group);
  return differentiable(
      {tensor},
      [&] {
        Tensors outputs;
        for (const auto& shape : shapes) outputs.push_back(empty_of(op, {"tensor"}, shape, tensor));
        op.input(tensor, {"tensor"});
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          if (op.rank() == how.root) {
            op.output(outputs[i], nth("output", i));
          } else {
            outputs[i].zero_();
          }
        }
        op.issue(OpKind::kGather, how.root, {.timeout = how.timeout});
        return outputs;
      },
      [how](const Tensors& gradients) { return Tensors{scatter_from(how, gradients)}; });
}

at::Tensor scatter_from(const Rooted& how, const Tensors& tensors) {
  Operation op(how.call, how.group);
  return differentiable(
             tensors,
             [&] {
               const auto own = static_cast<std::size_t>(op.rank());
               Tensors outputs{empty_of(op, of_tensors(own), tensors[own].sizes(), tensors[own])};
               op.output(outputs[0], {"output"});
               for (std::size_t i = 0; op.rank() == how.root && i < tensors.size(); ++i)
                 op.input(tensors[i], nth("tensors", i));
               op.issue(OpKind::kScatter, how.root, {.timeout = how.timeout});
               return outputs;
             },
             [how, shapes = shapes_of(tensors)](const Tensors& gradients) {
               return gather_to(how, gradients[0], shapes);
             })
      .front();
}

enum class Elsewhere : std::uint8_t { kCopy, kZeros };

at::Tensor reduce_to(const Rooted& how, const at::Tensor& tensor, const Reduction& reduction,
                     Elsewhere elsewhere);

at::Tensor broadcast_from(const Rooted& how, const at::Tensor& tensor) {
  Operation op(how.call, how.group);
  return differentiable(
             {tensor},
             [&] {
               Tensors outputs{copy_of(op, {"tensor"}, tensor)};
               op.in_place(outputs[0], {"tensor"});
               op.issue(OpKind::kBroadcast, how.root, {.timeout = how.timeout});
               return outputs;
             },
             [how](const Tensors& gradients) {
               return Tensors{reduce_to(how, gradients[0], ReduceOp::kSum, Elsewhere::kZeros)};
             })
      .front();
}

at::Tensor reduce_to(const Rooted& how, const at::Tensor& tensor, const Reduction& reduction,
                     Elsewhere elsewhere) {
  Operation op(how.call, how.group);
  return differentiable(
             {tensor},
             [&] {
               Tensors outputs{copy_of(op, {"tensor"}, tensor)};
               if (op.rank() == how.root) {
                 op.input_and_output(outputs[0], {"tensor"});
               } else {
                 op.input(outputs[0], {"tensor"});
               }
               op.issue(OpKind::kReduce, how.root, reduction, {.timeout = how.timeout});
               if (op.rank() != how.root && elsewhere == Elsewhere::kZeros) outputs[0].zero_();
               return outputs;
             },
             [how, reduction, size = op.size()](const Tensors& gradients) {
               return Tensors{weighted(broadcast_from(how, gradients[0]), reduction, size)};
             })
      .front();
}

template <typename FromRoot>
Rooted from(const Operation& op, const FromRoot& options, std::optional<int> fallback = {}) {
  const int root =
      op.root({.name = "src", .global = options.src, .group = options.group_src, .fallback = fallback});
  return {op.call(), root, ProcessGroup(op.state()), options.timeout};
}
template <typename ToRoot>
Rooted to(const Operation& op, const ToRoot& options, std::optional<int> fallback = {}) {
  const int root =
      op.root({.name = "dst", .global = options.dst, .group = options.group_dst, .fallback = fallback});
  return {op.call(), root, ProcessGroup(op.state()), options.timeout};
}

}  // namespace

at::Tensor broadcast(const at::Tensor& tensor, const FromRootOptions& options) {
  const Operation op("broadcast", options.group);
  if (!op.member()) return tensor;
  op.check_tensor(tensor, {"tensor"});
  return broadcast_from(from(op, options), tensor);
}

at::Tensor reduce(const at::Tensor& tensor, const ReduceToRootOptions& options) {
  const Operation op("reduce", options.group);
  if (!op.member()) return tensor;
  op.check_tensor(tensor, {"tensor"});
  check_gradient(op, options.op, {tensor});
  return reduce_to(to(op, options), tensor, options.op, Elsewhere::kCopy);
}

Tensors all_gather(const at::Tensor& tensor, const Options& options) {
  const Operation op("all_gather", options.group);
  if (!op.member()) return {};
  op.check_tensor(tensor, {"tensor"});
  return all_gather_shaped(op.call(), tensor, Shapes(count_of(op), tensor.sizes().vec()), options);
}

Tensors gather(const at::Tensor& tensor, const ToRootOptions& options) {
  const Operation op("gather", options.group);
  if (!op.member()) return {};
  op.check_tensor(tensor, {"tensor"});
  return gather_to(to(op, options, 0), tensor, Shapes(count_of(op), tensor.sizes().vec()));
}

at::Tensor scatter(const Tensors& tensors, const FromRootOptions& options) {
  const Operation op("scatter", options.group);
  if (!op.member()) return {};
  op.check_length("tensors", tensors.size(), count_of(op));
  check_all(op, of_tensors, tensors);
  return scatter_from(from(op, options, 0), tensors);
}

at::Tensor reduce_scatter(const Tensors& input_list, const ReduceOptions& options) {
  const Operation op("reduce_scatter", options.group);
  if (!op.member()) return {};
  op.check_length("input_list", input_list.size(), count_of(op));
  check_all(op, of_input_list, input_list);
  check_gradient(op, options.op, input_list);
  return reduce_scatter_list(op.call(), input_list, options);
}

Tensors all_to_all(const Tensors& input_list, const Shapes& output_shapes, const Options& options) {
  const Operation op("all_to_all", options.group);
  if (!op.member()) return {};
  op.check_length("input_list", input_list.size(), count_of(op));
  if (!output_shapes.empty() && output_shapes.size() != input_list.size()) {
    op.refuse("output_shapes has ", output_shapes.size(), " shapes, but one for each of the ", op.size(),
              " ranks of the group is needed.");
  }
  check_all(op, of_input_list, input_list);
  const Shapes shapes = output_shapes.empty() ? shapes_of(input_list) : output_shapes;
  const auto own = static_cast<std::size_t>(op.rank());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    check_shape(op, nth("output_shapes", i), shapes[i],
                static_cast<std::int64_t>(input_list[0].element_size()));
  }
  if (c10::multiply_integers(shapes[own]) != input_list[own].numel()) {
    op.refuse(nth("output_shapes", own).text(), " is ", shape_text(shapes[own]), ", but ",
              of_input_list(own).text(), ", which this rank gives itself, has the shape ",
              shape_text(input_list[own]), ".");
  }
  return all_to_all_shaped(op.call(), input_list, shapes, options);
}

}  // namespace lockstep::tensor::functional

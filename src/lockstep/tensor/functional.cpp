#include "lockstep/tensor/functional.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "lockstep/tensor/functional_support.h"

namespace lockstep::tensor::functional {
namespace {

// From 0, also where it is counted from behind.
std::int64_t checked_dim(const Operation& op, const char* name, std::int64_t dim, const at::Tensor& tensor) {
  const std::int64_t dims = std::max<std::int64_t>(tensor.dim(), 1);
  if (dim < -dims || dim >= dims) {
    op.refuse(name, " is ", dim, ", but the tensor has ", tensor.dim(), " dimensions.");
  }
  return dim < 0 ? dim + dims : dim;
}

void check_divisible(const Operation& op, const Argument& argument, const at::Tensor& tensor,
                     std::int64_t dim) {
  if (tensor.dim() != 0 && tensor.size(dim) % op.size() == 0) return;
  op.refuse(argument.text(), " of shape ", shape_text(tensor), " cannot be split evenly between ", op.size(),
            " ranks along dimension ", dim, ".");
}

// What lies along `from` in so many parts lies along `to` afterwards.
at::Tensor move_parts(const at::Tensor& tensor, int parts, std::int64_t from, std::int64_t to) {
  return from == to ? tensor : at::cat(tensor.chunk(parts, from), to);
}

// The sum of output_split_sizes.
std::int64_t rows_of(const Operation& op, const SplitSizes& sizes) {
  std::int64_t rows = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0) op.refuse("output_split_sizes has a negative number, ", size, ".");
    if (__builtin_add_overflow(rows, size, &rows))
      op.refuse("output_split_sizes has more rows than there can be.");
  }
  return rows;
}

Tensors all_reduce_of(const char* call, Naming naming, const Tensors& tensors, const ReduceOptions& options) {
  Operation op(call, options.group);
  if (!op.member()) return tensors;
  check_all(op, naming, tensors);
  check_gradient(op, options.op, tensors);
  return differentiable(
      tensors,
      [&] {
        Tensors outputs;
        for (std::size_t i = 0; i < tensors.size(); ++i)
          outputs.push_back(copy_of(op, naming(i), tensors[i]));
        for (std::size_t i = 0; i < outputs.size(); ++i) op.in_place(outputs[i], naming(i));
        op.issue(OpKind::kAllReduce, 0, options.op, {.timeout = options.timeout});
        return outputs;
      },
      [call, naming, options = pinned(op, options)](const Tensors& gradients) {
        if (options.op.op != ReduceOp::kPremulSum) return all_reduce_of(call, naming, gradients, options);
        ReduceOptions sum = options;
        sum.op = ReduceOp::kSum;
        return weighted(all_reduce_of(call, naming, gradients, sum), options.op, 1);
      });
}

Tensors reduce_scatter_rows(const char* call, Naming naming, const Tensors& tensors,
                            const ReduceOptions& options);

// Along dimension 0; a tensor without dimensions counts as one of one element.
Tensors all_gather_rows(const char* call, Naming naming, const Tensors& tensors, const Options& options) {
  Operation op(call, options.group);
  if (!op.member()) return tensors;
  check_all(op, naming, tensors);
  return differentiable(
      tensors,
      [&] {
        Tensors outputs;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          std::vector<std::int64_t> shape = tensors[i].sizes().vec();
          if (shape.empty()) shape.push_back(1);
          if (__builtin_mul_overflow(shape[0], std::int64_t{op.size()}, &shape[0]))
            op.refuse(naming(i).text(), " is too large: ", shape_text(tensors[i]), " of each rank.");
          outputs.push_back(empty_of(op, naming(i), shape, tensors[i]));
        }
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          op.input(tensors[i], naming(i));
          op.output(outputs[i], naming(i));
          op.cut(op.size());
        }
        op.issue(OpKind::kAllGather, {.timeout = options.timeout});
        return outputs;
      },
      [call, naming, options = pinned(op, options), shapes = shapes_of(tensors)](const Tensors& gradients) {
        Tensors sums = reduce_scatter_rows(call, naming, gradients,
                                           {.group = options.group, .timeout = options.timeout});
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i].view(shapes[i]);
        return sums;
      });
}

Tensors reduce_scatter_rows(const char* call, Naming naming, const Tensors& tensors,
                            const ReduceOptions& options) {
  Operation op(call, options.group);
  if (!op.member()) return tensors;
  check_gradient(op, options.op, tensors);
  return differentiable(
      tensors,
      [&] {
        Tensors outputs;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          std::vector<std::int64_t> shape = tensors[i].sizes().vec();
          shape[0] /= op.size();
          outputs.push_back(empty_of(op, naming(i), shape, tensors[i]));
        }
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          op.output(outputs[i], naming(i));
          op.input(tensors[i], naming(i));
          op.cut(op.size());
        }
        op.issue(OpKind::kReduceScatter, 0, options.op, {.timeout = options.timeout});
        return outputs;
      },
      [call, naming, options = pinned(op, options), size = op.size()](const Tensors& gradients) {
        return weighted(all_gather_rows(call, naming, gradients, {options.group, options.timeout}),
                        options.op, size);
      });
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& tensor, const ReduceOptions& options) {
  return all_reduce_of("all_reduce", the_tensor, {tensor}, options).front();
}

Tensors all_reduce_coalesced(const Tensors& tensors, const ReduceOptions& options) {
  return all_reduce_of("all_reduce_coalesced", of_tensors, tensors, options);
}

at::Tensor all_gather_single(const at::Tensor& tensor, std::int64_t gather_dim, const Options& options) {
  const Operation op("all_gather_single", options.group);
  if (!op.member()) return tensor;
  op.check_tensor(tensor, {"tensor"});
  const std::int64_t dim = checked_dim(op, "gather_dim", gather_dim, tensor);
  return move_parts(all_gather_rows(op.call(), the_tensor, {tensor}, options).front(), op.size(), 0, dim);
}

Tensors all_gather_single_coalesced(const Tensors& tensors, const Options& options) {
  return all_gather_rows("all_gather_single_coalesced", of_tensors, tensors, options);
}

at::Tensor reduce_scatter_single(const at::Tensor& tensor, std::int64_t scatter_dim,
                                 const ReduceOptions& options) {
  const Operation op("reduce_scatter_single", options.group);
  if (!op.member()) return tensor;
  op.check_tensor(tensor, {"tensor"});
  const std::int64_t dim = checked_dim(op, "scatter_dim", scatter_dim, tensor);
  check_divisible(op, {"tensor"}, tensor, dim);
  return reduce_scatter_rows(op.call(), the_tensor, {move_parts(tensor, op.size(), dim, 0)}, options).front();
}

Tensors reduce_scatter_single_coalesced(const Tensors& tensors, const std::vector<std::int64_t>& scatter_dims,
                                        const ReduceOptions& options) {
  const Operation op("reduce_scatter_single_coalesced", options.group);
  if (!op.member()) return tensors;
  check_all(op, of_tensors, tensors);
  if (!scatter_dims.empty() && scatter_dims.size() != tensors.size())
    op.refuse("scatter_dims has ", scatter_dims.size(), " numbers, but there are ", tensors.size(),
              " tensors.");
  Tensors rows = tensors;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t dim =
        scatter_dims.empty() ? 0 : checked_dim(op, "scatter_dims", scatter_dims[i], tensors[i]);
    check_divisible(op, nth("tensors", i), tensors[i], dim);
    rows[i] = move_parts(tensors[i], op.size(), dim, 0);
  }
  return reduce_scatter_rows(op.call(), of_tensors, rows, options);
}

at::Tensor all_to_all_single(const at::Tensor& tensor, const SplitSizes& output_split_sizes,
                             const SplitSizes& input_split_sizes, const Options& options) {
  const Operation op("all_to_all_single", options.group);
  if (!op.member()) return tensor;
  op.check_tensor(tensor, {"tensor"});
  if (tensor.dim() == 0) op.refuse("tensor has no dimension to split.");
  if (output_split_sizes.empty() != input_split_sizes.empty())
    op.refuse("output_split_sizes and input_split_sizes are given together or not at all.");
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  if (!output_split_sizes.empty()) shape[0] = rows_of(op, output_split_sizes);
  return differentiable(
             {tensor},
             [&] {
               Tensors outputs{empty_of(op, {"output_split_sizes"}, shape, tensor)};
               tensor::all_to_all_single(outputs[0], tensor, output_split_sizes, input_split_sizes,
                                         {.group = options.group, .timeout = options.timeout});
               return outputs;
             },
             [options = pinned(op, options), output_split_sizes,
              input_split_sizes](const Tensors& gradients) {
               return Tensors{
                   all_to_all_single(gradients[0], input_split_sizes, output_split_sizes, options)};
             })
      .front();
}

at::Tensor permute_tensor(const at::Tensor& tensor, const std::vector<int>& src_dst, const Options& options) {
  const Operation op("permute_tensor", options.group);
  if (!op.member()) return tensor;
  op.check_tensor(tensor, {"tensor"});
  std::vector<int> sorted = src_dst;
  std::sort(sorted.begin(), sorted.end());
  bool permutation = sorted.size() == count_of(op);
  for (std::size_t i = 0; i < sorted.size(); ++i)
    permutation = permutation && sorted[i] == static_cast<int>(i);
  if (!permutation) op.refuse("src_dst is no permutation of the ", op.size(), " ranks of the group.");
  const auto own = static_cast<std::size_t>(op.rank());
  const auto source =
      static_cast<std::size_t>(std::find(src_dst.begin(), src_dst.end(), op.rank()) - src_dst.begin());
  SplitSizes output_sizes(count_of(op), 0);
  SplitSizes input_sizes(count_of(op), 0);
  output_sizes[source] = tensor.numel();
  input_sizes[static_cast<std::size_t>(src_dst[own])] = tensor.numel();
  return all_to_all_single(tensor.reshape({-1}), output_sizes, input_sizes, options).view(tensor.sizes());
}

}  // namespace lockstep::tensor::functional

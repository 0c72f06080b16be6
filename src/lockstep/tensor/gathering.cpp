// The collectives that move a part for each rank.
#include <algorithm>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/operation.h"
#include "lockstep/tensor/shapes.h"

namespace lockstep::tensor {
namespace {

Issue how(const auto& options) { return {options.async_op, options.timeout}; }

Argument nth(const char* name, std::size_t index) { return {name, static_cast<int>(index)}; }

// The number of elements for each rank. `storage` has it where the sizes are given.
void cut_rows(Operation& op, const at::Tensor& tensor, const char* name, const SplitSizes& sizes,
              const char* sizes_name, SplitSizes& storage) {
  const std::int64_t rows = tensor.size(0);
  if (sizes.empty()) {
    if (rows % op.size() != 0) {
      op.refuse(name, " has ", rows, " rows, which cannot be split evenly between ", op.size(),
                " ranks; give ", sizes_name, ".");
    }
    op.cut(op.size());
    return;
  }
  if (sizes.size() != static_cast<std::size_t>(op.size())) {
    op.refuse(sizes_name, " has ", sizes.size(), " numbers, but one for each of the ", op.size(),
              " ranks of the group is needed.");
  }
  if (std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; }))
    op.refuse(sizes_name, " has a negative number.");
  std::int64_t left = rows;
  for (const std::int64_t size : sizes) {
    if (size > left) op.refuse(sizes_name, " adds up to more than the ", rows, " rows that ", name, " has.");
    left -= size;
  }
  if (left > 0) op.refuse(sizes_name, " adds up to ", rows - left, ", but ", name, " has ", rows, " rows.");
  const std::int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  storage = sizes;
  for (std::int64_t& size : storage) size *= row;
  op.cut(storage);
}

}  // namespace

WorkHandle all_gather(const Tensors& tensor_list, const at::Tensor& tensor,
                      const CollectiveOptions& options) {
  Operation op("all_gather", options.group);
  if (!op.member()) return {};
  op.check_length("tensor_list", tensor_list.size(), static_cast<std::size_t>(op.size()));
  op.input(tensor, {"tensor"});
  for (std::size_t i = 0; i < tensor_list.size(); ++i) op.output(tensor_list[i], nth("tensor_list", i));
  const auto own = static_cast<std::size_t>(op.rank());
  check_own(op, tensor_list[own], nth("tensor_list", own), tensor, {"tensor"});
  return op.issue(OpKind::kAllGather, how(options));
}

WorkHandle all_gather_single(const at::Tensor& output, const at::Tensor& input,
                             const CollectiveOptions& options) {
  Operation op("all_gather_single", options.group);
  if (!op.member()) return {};
  op.check_tensor(input, {"input"});
  op.check_tensor(output, {"output"});
  const at::Tensor own = apart(op, output, input, input);
  op.input(own, {"input"});
  op.output(output, {"output"});
  op.cut(op.size());
  check_whole(op, output, "output", input, "input");
  return op.issue(OpKind::kAllGather, how(options));
}

WorkHandle all_gather_coalesced(const std::vector<Tensors>& output_tensor_lists,
                                const Tensors& input_tensor_list, const CollectiveOptions& options) {
  Operation op("all_gather_coalesced", options.group);
  if (!op.member()) return {};
  if (input_tensor_list.empty()) op.refuse("input_tensor_list is empty.");
  if (output_tensor_lists.size() != static_cast<std::size_t>(op.size())) {
    op.refuse("output_tensor_lists has ", output_tensor_lists.size(), " lists, but one for each of the ",
              op.size(), " ranks of the group is needed.");
  }
  for (std::size_t r = 0; r < output_tensor_lists.size(); ++r) {
    if (output_tensor_lists[r].size() != input_tensor_list.size()) {
      op.refuse(nth("output_tensor_lists", r).text(), " has ", output_tensor_lists[r].size(),
                " tensors, but input_tensor_list has ", input_tensor_list.size(), ".");
    }
  }
  const auto of_list = [](std::size_t list, std::size_t i) {
    return Argument{"output_tensor_lists", static_cast<int>(list), static_cast<int>(i)};
  };
  const Tensors& own = output_tensor_lists[static_cast<std::size_t>(op.rank())];
  for (std::size_t i = 0; i < input_tensor_list.size(); ++i) {
    op.input(input_tensor_list[i], nth("input_tensor_list", i));
    for (std::size_t r = 0; r < output_tensor_lists.size(); ++r)
      op.output(output_tensor_lists[r][i], of_list(r, i));
    check_own(op, own[i], of_list(static_cast<std::size_t>(op.rank()), i), input_tensor_list[i],
              nth("input_tensor_list", i));
  }
  return op.issue(OpKind::kAllGather, how(options));
}

WorkHandle gather(const at::Tensor& tensor, const Tensors& gather_list, const ToRootOptions& options) {
  Operation op("gather", options.group);
  if (!op.member()) return {};
  const int root = op.root({.name = "dst", .global = options.dst, .group = options.group_dst, .fallback = 0});
  op.input(tensor, {"tensor"});
  if (op.rank() == root) {
    op.check_length("gather_list", gather_list.size(), static_cast<std::size_t>(op.size()));
    for (std::size_t i = 0; i < gather_list.size(); ++i) op.output(gather_list[i], nth("gather_list", i));
    const auto own = static_cast<std::size_t>(root);
    check_own(op, gather_list[own], nth("gather_list", own), tensor, {"tensor"});
  } else if (!gather_list.empty()) {
    op.refuse("gather_list is given on a rank that is not the destination; only rank ", root,
              " of the group has one.");
  }
  return op.issue(OpKind::kGather, root, how(options));
}

WorkHandle gather_single(const at::Tensor& output, const at::Tensor& input, const ToRootOptions& options) {
  Operation op("gather_single", options.group);
  if (!op.member()) return {};
  const int root = op.root({.name = "dst", .global = options.dst, .group = options.group_dst, .fallback = 0});
  op.check_tensor(input, {"input"});
  at::Tensor own = input;
  if (op.rank() == root) {
    op.check_tensor(output, {"output"});
    own = apart(op, output, input, input);
    op.output(output, {"output"});
    op.cut(op.size());
    check_whole(op, output, "output", input, "input");
  } else if (output.defined()) {
    op.refuse("output is given on a rank that is not the destination; only rank ", root,
              " of the group has one.");
  }
  op.input(own, {"input"});
  return op.issue(OpKind::kGather, root, how(options));
}

WorkHandle scatter(const at::Tensor& tensor, const Tensors& scatter_list, const FromRootOptions& options) {
  Operation op("scatter", options.group);
  if (!op.member()) return {};
  const int root = op.root({.name = "src", .global = options.src, .group = options.group_src, .fallback = 0});
  op.output(tensor, {"tensor"});
  if (op.rank() == root) {
    op.check_length("scatter_list", scatter_list.size(), static_cast<std::size_t>(op.size()));
    for (std::size_t i = 0; i < scatter_list.size(); ++i) op.input(scatter_list[i], nth("scatter_list", i));
    const auto own = static_cast<std::size_t>(root);
    check_own(op, scatter_list[own], nth("scatter_list", own), tensor, {"tensor"});
  } else if (!scatter_list.empty()) {
    op.refuse("scatter_list is given on a rank that is not the source; only rank ", root,
              " of the group has one.");
  }
  return op.issue(OpKind::kScatter, root, how(options));
}

WorkHandle reduce_scatter(const at::Tensor& output, const Tensors& input_list, const ReduceOptions& options) {
  Operation op("reduce_scatter", options.group);
  if (!op.member()) return {};
  op.check_length("input_list", input_list.size(), static_cast<std::size_t>(op.size()));
  op.output(output, {"output"});
  for (std::size_t i = 0; i < input_list.size(); ++i) op.input(input_list[i], nth("input_list", i));
  const auto own = static_cast<std::size_t>(op.rank());
  check_own(op, input_list[own], nth("input_list", own), output, {"output"});
  return op.issue(OpKind::kReduceScatter, 0, options.op, how(options));
}

WorkHandle reduce_scatter_single(const at::Tensor& output, const at::Tensor& input,
                                 const ReduceOptions& options) {
  Operation op("reduce_scatter_single", options.group);
  if (!op.member()) return {};
  op.check_tensor(output, {"output"});
  op.check_tensor(input, {"input"});
  const at::Tensor whole = apart(op, input, output, input);
  op.output(output, {"output"});
  op.input(whole, {"input"});
  op.cut(op.size());
  check_whole(op, input, "input", output, "output");
  return op.issue(OpKind::kReduceScatter, 0, options.op, how(options));
}

WorkHandle all_to_all(const Tensors& output_tensor_list, const Tensors& input_tensor_list,
                      const CollectiveOptions& options) {
  Operation op("all_to_all", options.group);
  if (!op.member()) return {};
  op.check_length("output_tensor_list", output_tensor_list.size(), static_cast<std::size_t>(op.size()));
  op.check_length("input_tensor_list", input_tensor_list.size(), static_cast<std::size_t>(op.size()));
  for (std::size_t i = 0; i < input_tensor_list.size(); ++i) {
    op.input(input_tensor_list[i], nth("input_tensor_list", i));
    op.output(output_tensor_list[i], nth("output_tensor_list", i));
  }
  const auto own = static_cast<std::size_t>(op.rank());
  check_own(op, output_tensor_list[own], nth("output_tensor_list", own), input_tensor_list[own],
            nth("input_tensor_list", own));
  return op.issue(OpKind::kAllToAll, how(options));
}

WorkHandle all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                             const SplitSizes& output_split_sizes, const SplitSizes& input_split_sizes,
                             const CollectiveOptions& options) {
  Operation op("all_to_all_single", options.group);
  if (!op.member()) return {};
  SplitSizes output_elements;
  SplitSizes input_elements;
  op.input(input, {"input"});
  if (input.dim() == 0) op.refuse("input has no dimension to split.");
  cut_rows(op, input, "input", input_split_sizes, "input_split_sizes", input_elements);
  op.output(output, {"output"});
  if (output.dim() == 0) op.refuse("output has no dimension to split.");
  cut_rows(op, output, "output", output_split_sizes, "output_split_sizes", output_elements);
  if (output.sizes().slice(1) != input.sizes().slice(1)) {
    op.refuse("the rows of output have another shape than those of input: ", shape_text(output), " and ",
              shape_text(input), ".");
  }
  const auto own_rows = [&](const at::Tensor& tensor, const SplitSizes& sizes) {
    return sizes.empty() ? tensor.size(0) / op.size() : sizes[static_cast<std::size_t>(op.rank())];
  };
  const std::int64_t kept = own_rows(input, input_split_sizes);
  const std::int64_t taken = own_rows(output, output_split_sizes);
  if (kept != taken) {
    op.refuse("input has ", kept, " rows for this rank itself, but output has ", taken,
              " from it: input_split_sizes and output_split_sizes must agree for a rank's own part.");
  }
  return op.issue(OpKind::kAllToAll, how(options));
}

}  // namespace lockstep::tensor

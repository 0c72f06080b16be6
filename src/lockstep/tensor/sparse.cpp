#include "lockstep/tensor/sparse.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::tensor {
namespace {

constexpr std::size_t kMaxDims = 8;

// What a rank says of its tensor; all but `count` must be equal on all ranks. But one without elements fits
// whatever sparse dimensions the others have.
struct Shape {
  std::int64_t count = 0;  // of elements that it has
  std::int64_t sparse_dims = 0;
  std::int64_t dims = 0;
  std::int64_t type = 0;
  std::array<std::int64_t, kMaxDims> sizes = {};
  bool fits(const Shape& result) const {
    return (count == 0 || sparse_dims == result.sparse_dims) && dims == result.dims && type == result.type &&
           sizes == result.sizes;
  }
};
constexpr std::int64_t kWords = sizeof(Shape) / sizeof(std::int64_t);

Shape shape_of(const at::Tensor& tensor) {
  Shape shape{.count = tensor._nnz(),
              .sparse_dims = tensor.sparse_dim(),
              .dims = tensor.dim(),
              .type = static_cast<std::int64_t>(tensor.scalar_type())};
  for (std::int64_t d = 0; d < tensor.dim(); ++d) shape.sizes[static_cast<std::size_t>(d)] = tensor.size(d);
  return shape;
}

// The result's: those of the first rank that has elements, or of the first rank.
std::int64_t sparse_dims_of_all(const std::vector<Shape>& shapes) {
  const auto first =
      std::find_if(shapes.begin(), shapes.end(), [](const Shape& shape) { return shape.count > 0; });
  return (first == shapes.end() ? shapes.front() : *first).sparse_dims;
}

// A tensor for each rank's elements of `like`, along dimension `dim`.
Tensors rooms(const at::Tensor& like, std::int64_t dim, const std::vector<Shape>& shapes) {
  Tensors list;
  for (const Shape& shape : shapes) {
    std::vector<std::int64_t> sizes = like.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = shape.count;
    list.push_back(at::empty(sizes, like.options()));
  }
  return list;
}

// One all_reduce, and what its rounds refer to. Keeps nothing of the group, as Comparison.
class SparseSum {
 public:
  SparseSum(const Operation& op, const at::Tensor& target, std::uint64_t sequence)
      : target_(target),
        own_(target.coalesce()),
        indices_(own_._indices().contiguous()),
        values_(own_._values().contiguous()),
        shape_(shape_of(own_)),
        ranks_(op.state()->ranks()),
        at_(op.state()->global_rank()),
        call_(op.call()),
        purpose_(op.purpose()),
        comparison_(*op.state(), op.call(), sequence) {}

  const at::Tensor& values() const { return values_; }
  // Results are compared, too.
  void compare_results() { compares_ = true; }
  static Rounds rounds(const std::shared_ptr<SparseSum>& sum) {
    using Step = Result<Call> (SparseSum::*)();
    Rounds rounds;
    for (const Step step : {&SparseSum::gather_shapes, &SparseSum::gather_indices, &SparseSum::gather_values})
      rounds.calls.emplace_back([sum, step] { return sum->guarded([&] { return ((*sum).*step)(); }); });
    if (sum->compares_) {
      rounds.calls.emplace_back([sum] { return sum->guarded([&] { return sum->compare(); }); });
    }
    rounds.finish = [sum] { return sum->guarded([&] { return sum->finish(); }); };
    return rounds;
  }

 private:
  // torch's exceptions end here: another thread than the caller's may run this.
  template <typename Body>
  auto guarded(const Body& body) -> decltype(body()) {
    const at::ThreadLocalStateGuard state(here_);
    const at::NoGradGuard no_grad;
    try {
      return body();
    } catch (const std::exception& error) {
      return Status::internal(cat("rank ", at_, ": ", call_, ": ", error.what()), {.rank = at_, .op = call_});
    }
  }

  Result<Call> gather_shapes() {
    const at::Tensor words = at::empty({kWords}, at::TensorOptions().dtype(at::kLong));
    std::memcpy(words.mutable_data_ptr(), &shape_, sizeof(shape_));
    const auto count = static_cast<std::int64_t>(ranks_.size());
    words_ = words.to(target_.device());
    all_words_ = at::empty({count, kWords}, words_.options());
    return gather(words_, all_words_.unbind());
  }
  Result<Call> gather_indices() {
    const at::Tensor words = all_words_.cpu();
    shapes_.resize(ranks_.size());
    std::memcpy(shapes_.data(), words.const_data_ptr(), shapes_.size() * sizeof(Shape));
    Shape result = shape_;
    if (shape_.count == 0) result.sparse_dims = sparse_dims_of_all(shapes_);
    for (std::size_t r = 0; r < shapes_.size(); ++r) {
      if (shapes_[r].fits(result)) continue;
      const Rank peer{ranks_[r]};
      return Status::invalid(
          cat("rank ", at_, ": ", call_, ": rank ", peer, " has a sparse tensor of another shape or type."),
          {.failure = Failure::kDesync, .peer = peer, .op = call_});
    }
    if (result.sparse_dims != shape_.sparse_dims) lay_out_anew(result.sparse_dims);
    all_indices_ = rooms(indices_, 1, shapes_);
    return gather(indices_, all_indices_);
  }
  Result<Call> gather_values() {
    all_values_ = rooms(values_, 0, shapes_);
    return gather(values_, all_values_);
  }
  Result<Call> compare() {
    add_up();
    outputs_ = {writable_bytes(sum_._indices()), writable_bytes(sum_._values())};
    return comparison_.exchange(outputs_);
  }
  Status finish() {
    if (compares_) {
      LOCKSTEP_TRY(comparison_.verdict());
    } else {
      add_up();
    }
    target_.copy_(sum_);
    return {};
  }

  Call gather(const at::Tensor& input, const Tensors& outputs) {
    input_ = {static_cast<const std::byte*>(input.const_data_ptr()), input.nbytes()};
    outputs_.clear();
    for (const at::Tensor& output : outputs) outputs_.push_back(writable_bytes(output));
    return {.kind = OpKind::kAllGather,
            .dtype = *dtype_of(input.scalar_type()),
            .purpose = purpose_,
            .inputs = {&input_, 1},
            .outputs = outputs_};
  }
  static ByteSpan writable_bytes(const at::Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
  }
  // A tensor without elements.
  void lay_out_anew(std::int64_t sparse_dims) {
    std::vector<std::int64_t> sizes = target_.sizes().slice(static_cast<std::size_t>(sparse_dims)).vec();
    sizes.insert(sizes.begin(), 0);
    indices_ = at::empty({sparse_dims, 0}, indices_.options());
    values_ = at::empty(sizes, values_.options());
  }
  // In rank order.
  void add_up() {
    for (std::size_t r = 0; r < shapes_.size(); ++r) {
      const at::Tensor part =
          at::_sparse_coo_tensor_unsafe(all_indices_[r], all_values_[r], target_.sizes(), target_.options());
      sum_ = r == 0 ? part : sum_.add(part).coalesce();
    }
    sum_ = sum_.coalesce();
  }

  const at::Tensor target_;
  const at::Tensor own_;
  at::Tensor indices_;
  at::Tensor values_;
  const Shape shape_;
  const std::vector<int> ranks_;  // global
  const Rank at_;
  const char* const call_;
  const std::uint64_t purpose_;
  const at::ThreadLocalState here_;
  Comparison comparison_;
  bool compares_ = false;
  // What the rounds bring.
  at::Tensor words_, all_words_, sum_;
  std::vector<Shape> shapes_;
  Tensors all_indices_, all_values_;
  ByteView input_;
  std::vector<ByteSpan> outputs_;
};

}  // namespace

WorkHandle all_reduce_sparse(Operation& op, const at::Tensor& tensor, const ReduceOptions& options) {
  const at::NoGradGuard no_grad;
  if (options.op.op != ReduceOp::kSum) op.refuse("op: a sparse tensor can only be summed.");
  if (tensor.dim() > static_cast<std::int64_t>(kMaxDims)) {
    op.refuse("tensor has ", tensor.dim(), " dimensions; a sparse tensor may have ", kMaxDims, ".");
  }
  if (!dtype_of(tensor.scalar_type())) {
    op.refuse("tensor is of type ", no_dtype_text(tensor.scalar_type()));
  }
  const Status possible = collective::check_reducible(*dtype_of(tensor.scalar_type()), ReduceOp::kSum);
  if (!possible.ok()) op.refuse("op: ", possible.message());
  const std::shared_ptr<Backend> backend = op.state()->backend(op.call(), tensor.device().type());

  const auto sum = std::make_shared<SparseSum>(op, tensor, backend->sequence() + 1);
  op.input(sum->values(), {"tensor"});
  if (op.compares(OpKind::kAllReduce)) sum->compare_results();
  return op.issue_rounds(SparseSum::rounds(sum), sum, tensor, {options.async_op, options.timeout});
}

}  // namespace lockstep::tensor

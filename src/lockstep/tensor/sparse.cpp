#include "lockstep/tensor/sparse.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <vector>

namespace lockstep::tensor {
namespace {

constexpr std::size_t kMaxDims = 8;

// What a rank says of its tensor; all but `count` must be equal on all ranks.
struct Shape {
  std::int64_t count = 0;  // of elements that it has
  std::int64_t sparse_dims = 0;
  std::int64_t dims = 0;
  std::int64_t type = 0;
  std::array<std::int64_t, kMaxDims> sizes = {};
  bool fits(const Shape& other) const {
    return sparse_dims == other.sparse_dims && dims == other.dims && type == other.type &&
           sizes == other.sizes;
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

std::vector<Shape> exchange(const Shape& own, const CollectiveOptions& how, int size) {
  const at::TensorOptions words = at::TensorOptions().dtype(at::kLong);
  const at::Tensor mine = at::empty({kWords}, words);
  std::memcpy(mine.mutable_data_ptr(), &own, sizeof(own));
  const at::Tensor all = at::empty({size * kWords}, words);
  all_gather_single(all, mine, how);
  std::vector<Shape> shapes(static_cast<std::size_t>(size));
  std::memcpy(shapes.data(), all.const_data_ptr(), shapes.size() * sizeof(Shape));
  return shapes;
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

}  // namespace

void all_reduce_sparse(Operation& op, const at::Tensor& tensor, const ReduceOptions& options) {
  const at::NoGradGuard no_grad;
  if (options.op.op != ReduceOp::kSum) op.refuse("op: a sparse tensor can only be summed.");
  if (tensor.dim() > static_cast<std::int64_t>(kMaxDims)) {
    op.refuse("tensor has ", tensor.dim(), " dimensions; a sparse tensor may have ", kMaxDims, ".");
  }
  if (!dtype_of(tensor.scalar_type())) {
    op.refuse("tensor is of type ", c10::toString(tensor.scalar_type()), ", which cannot travel.");
  }
  const Status possible = collective::check_reducible(*dtype_of(tensor.scalar_type()), ReduceOp::kSum);
  if (!possible.ok()) op.refuse("op: ", possible.message());
  (void)op.state()->backend(op.call(), tensor.device().type());

  const CollectiveOptions how{.group = options.group, .timeout = options.timeout};
  const at::Tensor own = tensor.coalesce();
  const Shape shape = shape_of(own);
  const std::vector<Shape> shapes = exchange(shape, how, op.size());
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    if (shapes[r].fits(shape)) continue;
    const Rank peer{op.state()->ranks()[r]};
    op.throw_status(Status::invalid(cat("rank ", op.state()->global_rank(), ": ", op.call(), ": rank ", peer,
                                        " has a sparse tensor of another shape or type."),
                                    {.failure = Failure::kDesync, .peer = peer, .op = op.call()}));
  }
  const Tensors indices = rooms(own._indices(), 1, shapes);
  const Tensors values = rooms(own._values(), 0, shapes);
  all_gather(indices, own._indices(), how);
  all_gather(values, own._values(), how);

  at::Tensor sum;
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    const at::Tensor part =
        at::_sparse_coo_tensor_unsafe(indices[r], values[r], tensor.sizes(), tensor.options());
    sum = r == 0 ? part : sum.add(part).coalesce();
  }
  tensor.copy_(sum.coalesce());
}

}  // namespace lockstep::tensor

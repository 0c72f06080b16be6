#include "lockstep/tensor/shapes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep::tensor {
namespace {

// whole == n * part, which may be larger than a number can be: a tensor that was expanded has any size.
bool is_times(std::int64_t whole, std::int64_t n, std::int64_t part) {
  return whole % n == 0 && whole / n == part;
}

}  // namespace

std::string shape_problem(at::IntArrayRef shape, std::int64_t element_size) {
  std::int64_t bytes = element_size;
  bool fits = true;
  for (const std::int64_t size : shape) {
    if (size < 0) return cat("the size ", size, " is negative.");
    fits = fits && !__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes);
  }
  return fits ? "" : "that is more bytes than there can be.";
}

void check_own(const Operation& op, const at::Tensor& a, const Argument& a_name, const at::Tensor& b,
               const Argument& b_name) {
  if (a.sizes() != b.sizes()) {
    op.refuse(a_name.text(), " has the shape ", shape_text(a), ", but ", b_name.text(), " has the shape ",
              shape_text(b), ".");
  }
}

void check_whole(const Operation& op, const at::Tensor& whole, const char* whole_name, const at::Tensor& part,
                 const char* part_name) {
  const std::int64_t n = op.size();
  const at::IntArrayRef shape = whole.sizes();
  const bool flat = whole.dim() == 1 && is_times(whole.numel(), n, part.numel());
  const bool stacked = whole.dim() == part.dim() + 1 && shape[0] == n && shape.slice(1) == part.sizes();
  const bool joined = part.dim() > 0 && whole.dim() == part.dim() && is_times(shape[0], n, part.size(0)) &&
                      shape.slice(1) == part.sizes().slice(1);
  if (flat || stacked || joined) return;
  op.refuse(whole_name, " has the shape ", shape_text(whole), ", but ", part_name, " of each of the ", n,
            " ranks has the shape ", shape_text(part), ".");
}

bool is_own_part(const Operation& op, const at::Tensor& whole, const at::Tensor& part) {
  const std::int64_t n = op.size();
  if (part.numel() == 0 || !is_times(whole.numel(), n, part.numel())) return false;
  const auto address = [](const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  };
  const auto is_at = [&](std::int64_t elements) {
    return address(part) == address(whole) + elements * static_cast<std::int64_t>(whole.element_size());
  };
  if (whole.is_contiguous() && part.is_contiguous()) return is_at(op.rank() * part.numel());
  // Rows of it, whatever the strides.
  return whole.dim() == part.dim() && whole.strides() == part.strides() &&
         is_times(whole.size(0), n, part.size(0)) && is_at(op.rank() * part.size(0) * whole.stride(0));
}

at::Tensor apart(const Operation& op, const at::Tensor& whole, const at::Tensor& part,
                 const at::Tensor& input) {
  return is_own_part(op, whole, part) ? input.detach().clone() : input;
}

}  // namespace lockstep::tensor

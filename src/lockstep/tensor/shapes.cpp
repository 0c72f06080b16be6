#include "lockstep/tensor/shapes.h"

#include <cstddef>
#include <vector>

namespace lockstep::tensor {

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
  std::vector<std::int64_t> stacked{n};
  stacked.insert(stacked.end(), part.sizes().begin(), part.sizes().end());
  std::vector<std::int64_t> joined = part.sizes().vec();
  if (!joined.empty()) joined[0] *= n;
  const bool flat = whole.dim() == 1 && whole.numel() == n * part.numel();
  if (flat || whole.sizes() == at::IntArrayRef(stacked) ||
      (part.dim() > 0 && whole.sizes() == at::IntArrayRef(joined)))
    return;
  op.refuse(whole_name, " has the shape ", shape_text(whole), ", but ", part_name, " of each of the ", n,
            " ranks has the shape ", shape_text(part), ".");
}

at::Tensor apart(const Operation& op, const at::Tensor& whole, const at::Tensor& part,
                 const at::Tensor& input) {
  const auto address = [](const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  };
  if (!whole.is_contiguous() || !part.is_contiguous() || part.numel() == 0) return input;
  const bool in_place = whole.nbytes() == part.nbytes() * static_cast<std::size_t>(op.size()) &&
                        address(part) == address(whole) + part.nbytes() * static_cast<std::size_t>(op.rank());
  return in_place ? input.detach().clone() : input;
}

}  // namespace lockstep::tensor

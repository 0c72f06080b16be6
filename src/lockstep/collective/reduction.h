// The reduction kernels: n arrays folded into one, element by element, in one pass.
//
// Order: an element of the result is ((s0 op s1) op s2) op ..., over the sources in the order given, whatever
// the vector width, the alignment or the count. No multiply and add is ever fused. 16-bit floats are
// accumulated in float32 and rounded once, to nearest even. The floating point mode of the caller is put
// aside and restored. In min and max a NaN wins, and of equal zeros the earlier one stays. Integers wrap
// around.
//
// Thread safety: pure; any thread.
// Does not: check types (check_reducible does), or allocate.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/collective/dtype.h"

namespace lockstep::collective {

struct Fold {
  // An element as the user sees it, or the running value that travels between hosts: float32 for the 16-bit
  // floats, the element itself for every other type.
  enum class Form : std::uint8_t { kElement, kCarry };

  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int ranks = 1;                         // kAvg: what the sum is divided by
  std::span<const double> factors = {};  // kPremulSum: one per source; that of a carry is not used
  Form first = Form::kElement;           // of the first source; the others are elements
  Form result = Form::kElement;          // a carry is neither divided nor rounded
};

// Size of one running value of `type`.
std::size_t carry_size(DType type);

// Folds `count` elements of each source and writes the result to every destination. A destination may be one
// of the sources (the same address); other overlaps are not allowed. At least one source.
void fold(const Fold& how, std::span<const std::byte* const> sources,
          std::span<std::byte* const> destinations, std::size_t count);

}  // namespace lockstep::collective

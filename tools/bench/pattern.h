// What the ranks write before an operation, and what it must make of it.
//
// Element i of what rank r gives, in block b, at iteration t, is P(i + 17 r + 29 b + 7 t), where P(j) = j mod
// m: whatever is moved to the wrong place, left from another iteration or added twice has another value. So
// the sum over all ranks has the same period, and every buffer that can be met is a window of one of two
// tables. m is chosen so that all sums are exact in every number type, in any order.
//
// Thread safety: const after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/dtype.h"
#include "tools/bench/collective_case.h"

namespace lockstep::bench {

// Of the elements that a rank gives.
struct Origin {
  Rank rank = {};
  int block = 0;
  std::uint64_t iteration = 0;
};

// Of the elements that a rank gets.
struct Receiver {
  Rank rank = {};
  int block = 0;
};

class Pattern {
 public:
  // For blocks of so many elements.
  Pattern(DType dtype, WorldSize size, std::size_t block);

  // One block as `origin` gives it.
  ByteView given(const Origin& origin) const;
  // The sum of one block over all ranks; `rank` is not used.
  ByteView summed(const Origin& origin) const;
  // What `op` must leave in that output block; nothing if it may leave anything there.
  std::optional<ByteView> expected(CollectiveOp op, const Receiver& receiver, std::uint64_t iteration) const;

 private:
  ByteView window(const Buffer& table, std::uint64_t from) const;

  const WorldSize size_;
  const std::size_t element_;  // bytes
  const std::size_t block_;    // elements
  const std::uint64_t period_;
  Buffer given_;
  Buffer summed_;
};

// `value` as an element of that type, at `out`. Exact up to 2^8 for all of them.
void store_number(DType dtype, int value, std::byte* out);

}  // namespace lockstep::bench

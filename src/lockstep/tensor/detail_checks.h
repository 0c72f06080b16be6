// What debug level detail checks of an operation. Internal.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Backtrace.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/call.h"
#include "lockstep/tensor/group_state.h"

namespace lockstep::tensor {

// "tensor has 3 NaN among its 100 elements, the first at 17", or nothing.
std::string describe_nan(const at::Tensor& tensor, const std::string& name);

// Whether all ranks must have the same outputs. Not of a reduction by a backend that promises no order.
bool same_on_all_ranks(OpKind kind, const std::string& backend);

// Compares, on all ranks, the checksums of the outputs of one operation, by one small all_gather. Keeps
// nothing of the group: the operation may be the last that does.
class Comparison {
 public:
  // Of operation `sequence`, which the program calls `call`.
  Comparison(const GroupState& state, const char* call, std::uint64_t sequence);
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  // When the outputs are there: what is to be run on all ranks. It refers to this object.
  Call exchange(std::span<const ByteSpan> outputs);
  // After that: kCorruptFrame names, on all ranks, those whose outputs differ from what most have.
  Status verdict() const;

 private:
  const std::string group_;
  const std::vector<int> ranks_;  // global
  const Rank at_;
  const char* const call_;
  const std::uint64_t sequence_;
  std::uint32_t own_ = 0;
  ByteView input_;
  std::vector<std::uint32_t> all_;
  std::vector<ByteSpan> outputs_;
};

// The C++ stack of a call; nothing, where nobody asked for it. It is made into text when that is needed.
using CallStack = c10::Backtrace;
inline CallStack stack_here() { return c10::get_lazy_backtrace(1); }
// To be put behind a message.
std::string text_of(const CallStack& stack);

}  // namespace lockstep::tensor

#include "lockstep/tensor/detail_checks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>

#include <algorithm>
#include <map>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"

namespace lockstep::tensor {

std::string describe_nan(const at::Tensor& tensor, const std::string& name) {
  if (tensor.is_meta()) return {};
  const at::ScalarType type = tensor.scalar_type();
  if (!(c10::isFloatingType(type) || c10::isComplexType(type)) || c10::isFloat8Type(type)) return {};
  const at::NoGradGuard no_grad;
  const at::Tensor found = at::isnan(tensor).flatten();
  const auto count = found.sum().item<std::int64_t>();
  if (count == 0) return {};
  return cat(name, " has ", count, " NaN among its ", tensor.numel(), " elements, the first at ",
             found.to(at::kByte).argmax().item<std::int64_t>());
}

bool same_on_all_ranks(OpKind kind, const std::string& backend) {
  if (kind == OpKind::kBroadcast || kind == OpKind::kAllGather) return true;
  return kind == OpKind::kAllReduce && backend == "native";
}

Comparison::Comparison(const GroupState& state, const char* call, std::uint64_t sequence)
    : group_(state.name()),
      ranks_(state.ranks()),
      at_(state.global_rank()),
      call_(call),
      sequence_(sequence),
      all_(ranks_.size()) {}

Call Comparison::exchange(std::span<const ByteSpan> outputs) {
  for (const ByteSpan& output : outputs) own_ = base::crc32c(output, own_);
  input_ = std::as_bytes(std::span(&own_, 1));
  for (std::uint32_t& one : all_) outputs_.push_back(std::as_writable_bytes(std::span(&one, 1)));
  return {.kind = OpKind::kAllGather, .inputs = {&input_, 1}, .outputs = outputs_};
}

Status Comparison::verdict() const {
  std::map<std::uint32_t, int> counts;
  for (const std::uint32_t sum : all_) ++counts[sum];
  if (counts.size() == 1) return {};
  std::uint32_t usual = all_.front();  // that of the lowest rank, if as many have another
  for (const auto& [sum, count] : counts) {
    if (count > counts[usual]) usual = sum;
  }
  std::vector<Rank> odd;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (all_[i] != usual) odd.emplace_back(ranks_[i]);
  }
  std::sort(odd.begin(), odd.end());
  return Status(
      Code::kInternal,
      cat("rank ", at_, ": ", call_, " #", sequence_, ": the result of rank ", base::ranks_text(odd),
          " has another checksum than that of most ranks, which have ", usual,
          ": bytes were changed on their way or in memory, or a thread wrote to a tensor meanwhile"),
      {.failure = Failure::kCorruptFrame,
       .rank = at_,
       .peer = odd.front(),
       .op = call_,
       .sequence = sequence_,
       .group = group_,
       .missing = odd});
}

std::string text_of(const CallStack& stack) { return cat("\nThe call, as a C++ stack:\n", stack->get()); }

}  // namespace lockstep::tensor

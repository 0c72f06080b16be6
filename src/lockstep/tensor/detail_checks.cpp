#include "lockstep/tensor/detail_checks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <c10/util/Backtrace.h>

#include <algorithm>
#include <map>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"

namespace lockstep::tensor {

std::string describe_nan(const at::Tensor& tensor, const std::string& name) {
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

Status compare_outputs(Backend& backend, const GroupState& state, const char* call,
                       std::span<const ByteSpan> outputs, const OpOptions& options) {
  const std::uint64_t sequence = backend.sequence();
  std::uint32_t own = 0;
  for (const ByteSpan& output : outputs) own = base::crc32c(output, own);
  std::vector<std::uint32_t> all(static_cast<std::size_t>(state.size()));
  std::vector<ByteSpan> parts;
  parts.reserve(all.size());
  for (std::uint32_t& one : all) parts.push_back(std::as_writable_bytes(std::span(&one, 1)));
  const ByteView input = std::as_bytes(std::span(&own, 1));
  LOCKSTEP_TRY(backend.run({.kind = OpKind::kAllGather, .inputs = {&input, 1}, .outputs = parts}, options));

  std::map<std::uint32_t, int> counts;
  for (const std::uint32_t sum : all) ++counts[sum];
  if (counts.size() == 1) return {};
  std::uint32_t usual = all.front();  // that of the lowest rank, if as many have another
  for (const auto& [sum, count] : counts) {
    if (count > counts[usual]) usual = sum;
  }
  std::vector<Rank> odd;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != usual) odd.emplace_back(state.ranks()[i]);
  }
  std::sort(odd.begin(), odd.end());
  const Rank at{state.global_rank()};
  return Status(
      Code::kInternal,
      cat("rank ", at, ": ", call, " #", sequence, ": the result of rank ", base::ranks_text(odd),
          " has another checksum than that of most ranks, which have ", usual,
          ": bytes were changed on their way or in memory, or a thread wrote to a tensor meanwhile"),
      {.failure = Failure::kCorruptFrame,
       .rank = at,
       .peer = odd.front(),
       .op = call,
       .sequence = sequence,
       .group = state.name(),
       .missing = odd});
}

std::string stack_text() { return cat("\nThe call, as a C++ stack:\n", c10::get_lazy_backtrace(1)->get()); }

}  // namespace lockstep::tensor

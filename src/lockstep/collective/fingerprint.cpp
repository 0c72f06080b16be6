#include "lockstep/collective/fingerprint.h"

#include "lockstep/base/text.h"

namespace lockstep::collective {
namespace {

constexpr std::string_view kNames[kOpKinds] = {
    "barrier", "broadcast", "all_reduce",     "reduce",     "all_gather",
    "gather",  "scatter",   "reduce_scatter", "all_to_all", "monitored_barrier"};

bool moves(OpKind kind) { return kind != OpKind::kBarrier && kind != OpKind::kMonitoredBarrier; }

// Not all ranks know how much moves: then there is no count.
bool has_count(const Fingerprint& print) {
  const bool by_pairs =
      print.kind == OpKind::kGather || print.kind == OpKind::kScatter || print.kind == OpKind::kAllToAll;
  return print.count > 0 || !by_pairs;
}

// In the order in which a person would look.
std::string first_difference(const Fingerprint& a, const Fingerprint& b) {
  if (a.group != b.group) return "group";
  if (a.sequence != b.sequence) return "sequence number";
  if (a.kind != b.kind) return "operation";
  if (a.dtype != b.dtype) return "dtype";
  if (a.count != b.count) return cat("number of elements: ", a.count, " and ", b.count);
  if (a.reduce_op != b.reduce_op) return "reduce op";
  if (a.root != b.root) return "root";
  const bool has_parts = a.kind == OpKind::kAllGather || a.kind == OpKind::kReduceScatter || !has_count(a);
  return has_parts ? "sizes per rank, or what they are for" : "sizes of the buffers, or what they are for";
}

}  // namespace

std::string_view name_of(OpKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kOpKinds ? kNames[index] : "unknown operation";
}

bool has_root(OpKind kind) {
  return kind == OpKind::kBroadcast || kind == OpKind::kReduce || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

std::string Fingerprint::text() const {
  std::string out = cat(name_of(kind), " #", sequence);
  if (!moves(kind)) return out;
  out += is_known(dtype)
             ? cat(" (", has_count(*this) ? cat(Bytes{count * size_of(dtype)}, ", ") : "", name_of(dtype))
             : cat(" (", count, " elements");
  if (reduces(kind) && static_cast<std::size_t>(reduce_op) < kReduceOps) out += cat(", ", name_of(reduce_op));
  if (root >= 0) out += cat(", root ", root);
  return out + ")";
}

Status desync(Rank rank, const Fingerprint& own, Rank peer, const Fingerprint& theirs) {
  Cause cause{.failure = Failure::kDesync,
              .rank = rank,
              .peer = peer,
              .op = std::string(name_of(own.kind)),
              .sequence = own.sequence};
  return Status::invalid(
      cat("ranks are in different operations: rank ", rank, " is in ", own.text(), ", rank ", peer, " is in ",
          theirs.text(), "; the first difference is the ", first_difference(own, theirs)),
      std::move(cause));
}

Status in_operation(Rank rank, const Fingerprint& fingerprint, const Status& status) {
  if (status.ok() || status.cause().sequence) return status;
  Cause cause = status.cause();
  if (!cause.rank) cause.rank = rank;
  cause.op = name_of(fingerprint.kind);
  cause.sequence = fingerprint.sequence;
  return status.with_cause(std::move(cause)).with_prefix(cat("rank ", rank, ": ", fingerprint.text(), ": "));
}

}  // namespace lockstep::collective

#include "lockstep/collective/call.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::collective {
namespace {

// How many buffers a call has, where m travel together: none, m, or m x n.
enum class Shape : std::uint8_t { kNone, kEach, kEachOfAll };
struct Shapes {
  Shape inputs;
  Shape outputs;
};

Shapes shapes_of(OpKind kind, bool is_root) {
  switch (kind) {
    case OpKind::kBroadcast:
    case OpKind::kAllReduce:
      return {Shape::kNone, Shape::kEach};
    case OpKind::kReduce:
      return {Shape::kEach, is_root ? Shape::kEach : Shape::kNone};
    case OpKind::kAllGather:
      return {Shape::kEach, Shape::kEachOfAll};
    case OpKind::kGather:
      return {Shape::kEach, is_root ? Shape::kEachOfAll : Shape::kNone};
    case OpKind::kScatter:
      return {is_root ? Shape::kEachOfAll : Shape::kNone, Shape::kEach};
    case OpKind::kReduceScatter:
      return {Shape::kEachOfAll, Shape::kEach};
    case OpKind::kAllToAll:
      return {Shape::kEachOfAll, Shape::kEachOfAll};
    case OpKind::kBarrier:
    case OpKind::kMonitoredBarrier:
      break;
  }
  return {Shape::kNone, Shape::kNone};
}

Status wrong(const Call& call, std::string_view what) {
  return Status::invalid(cat(name_of(call.kind), ": ", what, "."), {.op = std::string(name_of(call.kind))});
}

// m, as the number of buffers says it; nothing if they do not fit.
std::optional<std::size_t> together(Shape shape, std::size_t buffers, std::size_t ranks) {
  if (shape == Shape::kEach) return buffers;
  return buffers % ranks == 0 ? std::optional(buffers / ranks) : std::nullopt;
}

Status check_numbers(const Call& call, const Shapes& shapes, WorldSize size) {
  const auto ranks = static_cast<std::size_t>(size.value);
  std::optional<std::size_t> m;
  const auto take = [&](Shape shape, std::size_t buffers, std::string_view what) -> Status {
    if (shape == Shape::kNone) {
      if (buffers == 0) return {};
      return wrong(call,
                   cat("this rank gives ", buffers, ' ', what, "s, but the operation takes none from it"));
    }
    const auto here = together(shape, buffers, ranks);
    if (!here || *here == 0) {
      return wrong(call, cat("there are ", buffers, ' ', what, "s; ",
                             shape == Shape::kEach ? std::string("at least one is needed")
                                                   : cat("one for each of the ", size, " ranks is needed")));
    }
    if (m && *m != *here)
      return wrong(call, cat("the inputs are for ", *m, " buffers and the outputs for ", *here));
    m = here;
    return {};
  };
  LOCKSTEP_TRY(take(shapes.inputs, call.inputs.size(), "input"));
  LOCKSTEP_TRY(take(shapes.outputs, call.outputs.size(), "output"));
  if (call.kind == OpKind::kAllToAll && m != 1)
    return wrong(call, cat("one input and one output for each of the ", size, " ranks are needed"));
  return {};
}

Status check_sizes(const Call& call, Rank rank, WorldSize size) {
  const std::size_t element = size_of(call.dtype);
  const auto whole = [&](ByteView bytes) { return bytes.size() % element == 0; };
  if (!std::all_of(call.inputs.begin(), call.inputs.end(), whole) ||
      !std::all_of(call.outputs.begin(), call.outputs.end(), whole)) {
    return wrong(call, cat("a buffer is not a whole number of ", name_of(call.dtype), " elements"));
  }
  const auto n = static_cast<std::size_t>(size.value);
  const auto own = static_cast<std::size_t>(rank.value);
  const auto unequal = [&](std::size_t a, std::size_t b) {
    return wrong(call, cat("this rank's own part is ", Bytes{a}, " as input and ", Bytes{b}, " as output"));
  };
  // What a rank sends to itself.
  const auto same = [&](std::size_t in, std::size_t out) -> Status {
    const std::size_t a = call.inputs[in].size();
    const std::size_t b = call.outputs[out].size();
    return a == b ? Status() : unequal(a, b);
  };
  const bool is_root = rank == call.root;
  for (std::size_t b = 0; b < std::max(call.inputs.size(), call.outputs.size()); ++b) {
    switch (call.kind) {
      case OpKind::kReduce:
        if (is_root) LOCKSTEP_TRY(same(b, b));
        break;
      case OpKind::kGather:
        if (is_root && b < call.inputs.size()) LOCKSTEP_TRY(same(b, b * n + own));
        break;
      case OpKind::kAllGather:
        if (b < call.inputs.size()) LOCKSTEP_TRY(same(b, b * n + own));
        break;
      case OpKind::kScatter:
        if (is_root && b < call.outputs.size()) LOCKSTEP_TRY(same(b * n + own, b));
        break;
      case OpKind::kReduceScatter:
        if (b < call.outputs.size()) LOCKSTEP_TRY(same(b * n + own, b));
        break;
      case OpKind::kAllToAll:
        if (b == own) LOCKSTEP_TRY(same(b, b));
        break;
      default:
        break;
    }
  }
  return {};
}

// Not for secrets: only accidents must be noticed.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

template <typename Buffers>
std::uint64_t hash_sizes(const Buffers& buffers) {
  std::uint64_t hash = buffers.size();
  for (const auto& buffer : buffers) hash = mix(hash, buffer.size());
  return hash;
}

template <typename Buffers>
std::size_t total_of(const Buffers& buffers) {
  std::size_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size();
  return total;
}

template <typename Buffers>
bool all_equal(const Buffers& buffers) {
  return std::all_of(buffers.begin(), buffers.end(),
                     [&](const auto& buffer) { return buffer.size() == buffers[0].size(); });
}

}  // namespace

Status check(const Call& call, Rank rank, WorldSize size) {
  if (static_cast<int>(call.kind) >= kOpKinds)
    return Status::invalid(cat("there is no operation number ", static_cast<int>(call.kind), "."));
  if (!is_known(call.dtype))
    return wrong(call, cat("there is no type number ", static_cast<int>(call.dtype)));
  if (has_root(call.kind) && !size.contains(call.root))
    return wrong(call, cat("the root is rank ", call.root, ", but the group has ", size, " ranks"));
  if (reduces(call.kind)) {
    Status possible = check_reducible(call.dtype, call.reduce_op);
    if (possible.ok() && call.reduce_op == ReduceOp::kPremulSum)
      possible = check_factor(call.dtype, call.factor);
    if (!possible.ok()) return possible.with_prefix(cat(name_of(call.kind), ": "));
  }
  LOCKSTEP_TRY(check_numbers(call, shapes_of(call.kind, rank == call.root), size));
  return check_sizes(call, rank, size);
}

Fingerprint fingerprint_of(const Call& call, std::uint64_t group, std::uint64_t sequence) {
  Fingerprint print{.group = group, .sequence = sequence, .kind = call.kind};
  if (call.kind == OpKind::kBarrier || call.kind == OpKind::kMonitoredBarrier) return print;
  print.dtype = call.dtype;
  if (has_root(call.kind)) print.root = call.root.value;
  if (reduces(call.kind)) print.reduce_op = call.reduce_op;
  const std::size_t element = size_of(call.dtype);
  // Of the buffers whose sizes every rank knows. Those of a gather are known to the root alone, and those of
  // an uneven all_to_all to each pair: they are compared where they meet.
  switch (call.kind) {
    case OpKind::kBroadcast:
    case OpKind::kAllReduce:
      print.count = total_of(call.outputs) / element;
      print.detail = call.outputs.size() == 1 ? 0 : hash_sizes(call.outputs);
      break;
    case OpKind::kReduce:
      print.count = total_of(call.inputs) / element;
      print.detail = call.inputs.size() == 1 ? 0 : hash_sizes(call.inputs);
      break;
    case OpKind::kAllGather:
      print.count = total_of(call.outputs) / element;
      print.detail = all_equal(call.outputs) ? call.inputs.size() : hash_sizes(call.outputs);
      break;
    case OpKind::kReduceScatter:
      print.count = total_of(call.inputs) / element;
      print.detail = all_equal(call.inputs) ? call.outputs.size() : hash_sizes(call.inputs);
      break;
    case OpKind::kAllToAll:
      if (all_equal(call.inputs) && all_equal(call.outputs)) {
        print.count = total_of(call.inputs) / element;
      } else {
        print.detail = 1;
      }
      break;
    case OpKind::kGather:
      print.detail = call.inputs.size();
      break;
    case OpKind::kScatter:
      print.detail = call.outputs.size();
      break;
    default:
      break;
  }
  if (call.purpose != 0 && call.kind != OpKind::kAllToAll) print.detail = mix(print.detail, call.purpose);
  return print;
}

}  // namespace lockstep::collective

// What a rank says of the operation it is in, in the header that travels anyway: always on.
//
// Two ranks whose fingerprints differ are in different operations; whoever sees it first says both in words.
// Thread safety: a value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/dtype.h"

namespace lockstep::collective {

// The values are part of the wire format: append only.
enum class OpKind : std::uint8_t {
  kBarrier = 0,
  kBroadcast = 1,
  kAllReduce = 2,
  kReduce = 3,
  kAllGather = 4,
  kGather = 5,
  kScatter = 6,
  kReduceScatter = 7,
  kAllToAll = 8,
  kMonitoredBarrier = 9,
};
constexpr int kOpKinds = 10;
std::string_view name_of(OpKind kind);  // "all_reduce"
bool has_root(OpKind kind);
bool reduces(OpKind kind);

struct Fingerprint {
  std::uint64_t group = 0;  // hash of the group's name, members and epoch
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;  // elements per rank; of the whole where ranks have different numbers
  std::uint64_t detail =
      0;                   // a hash of what is left: uneven sizes, the number of coalesced buffers, a purpose
  std::int32_t root = -1;  // -1 for operations without one
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::uint8_t spare = 0;

  bool operator==(const Fingerprint&) const = default;
  // "all_reduce #418 (25.0 MiB, float32, sum)", "broadcast #7 (4.0 KiB, int64, root 2)", "barrier #3".
  std::string text() const;
};
static_assert(sizeof(Fingerprint) == 40, "it is copied as bytes into headers of a fixed size");

// The Desync that both ranks hear: who is where. The message ends with the first field that differs.
Status desync(Rank rank, const Fingerprint& own, Rank peer, const Fingerprint& theirs);

// The error as `rank` reports it from this operation: names both. One that names an operation already,
// because another rank has met it first, stays as it is.
Status in_operation(Rank rank, const Fingerprint& fingerprint, const Status& status);

}  // namespace lockstep::collective

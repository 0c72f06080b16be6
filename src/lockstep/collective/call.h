// One collective operation of one rank, as data: what is done, and on which bytes.
//
// n ranks, m buffers that travel in one operation (m is 1 unless the call is a coalesced one):
//
//                   inputs                          outputs
//   barrier         -                               -
//   broadcast       -                               m, in place: the root's are sent, the others' filled
//   all_reduce      -                               m, in place
//   reduce          m                               m on the root (they may be the inputs), else none
//   all_gather      m                               m x n: outputs[b * n + r] takes input b of rank r
//   gather          m                               m x n on the root, else none
//   scatter         m x n on the root, else none    m
//   reduce_scatter  m x n: part r goes to rank r    m
//   all_to_all      n: inputs[r] goes to rank r     n: outputs[r] comes from rank r
//
// Buffers of one call may have different sizes; what one rank sends and another takes must agree, which is
// compared when the operation runs (fingerprint.h). Outputs must not overlap each other or, but for reduce,
// an input.
//
// Thread safety: a value that borrows: the spans, and the bytes behind them, outlive the operation.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/dtype.h"
#include "lockstep/collective/fingerprint.h"

namespace lockstep::collective {

struct Call {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  double factor = 1;  // premul_sum: this rank's; of integers a whole number that the type has
  Rank root = {};     // in the group; for operations that have one
  // What the caller wants it for, if operations that are alike otherwise could be mixed up: compared. Not of
  // an all_to_all.
  std::uint64_t purpose = 0;
  std::span<const ByteView> inputs = {};
  std::span<const ByteSpan> outputs = {};
};

// kInvalid, in one sentence, for a call that can be seen to be wrong on the rank that makes it: a root that
// is no rank, numbers of buffers that do not fit the table above, a size that is not a whole number of
// elements, an operation or a factor that the type does not have, a kind or a type that is none. Nothing has
// been sent then.
Status check(const Call& call, Rank rank, WorldSize size);

// What the ranks compare. `group` tells groups and epochs apart.
Fingerprint fingerprint_of(const Call& call, std::uint64_t group, std::uint64_t sequence);

}  // namespace lockstep::collective

namespace lockstep {
using collective::Call;
using collective::OpKind;
}  // namespace lockstep

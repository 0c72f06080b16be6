// The collectives of ranks on one host, as rounds on a Board (transport/shm/board.h).
//
// n ranks, S bytes each, C bytes of staging, R bytes read in the time of a round (tuning.h). Every operation
// compares the fingerprints of all ranks before a byte of theirs is used. A buffer that lies in its rank's
// heap is "resident": it is posted where it is and never copied.
//
//   all_reduce      resident on all, from (n-1)·S > R on: two rounds; every rank folds its slice from all
//                   buffers and writes it to all of them (2·S touched).
//                   two ranks, or (n-2)·S up to R: per C bytes one round; every rank folds everything.
//                   else: per C bytes one round with the inputs, in which every rank folds its slice, and one
//                   with the slices, from which every rank takes the others' ((5 + 1/n)·S touched).
//   reduce          resident on all, as above: three rounds; every rank writes its slice to the root's.
//                   two ranks, or (n-2)·S up to R: per C bytes one round; the root folds everything.
//                   else the last of these, where only the root takes the slices.
//   reduce_scatter  per C bytes one round; every rank folds its own part.
//   broadcast, all_gather, gather, scatter, all_to_all
//                   per C bytes one round; every rank copies what is for it out of its peers' postings.
//   barrier         one round.
//   A resident buffer costs one more, empty round at the end: its owner may change it only when all have read
//   it.
//
// Order: elements are folded over the board's members 0..n-1, whatever the way.
// Thread safety: as the Board: one operation at a time.
// Errors: the first one of any rank is recorded on the board and returned by all; then the board is dead.
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/collective/fingerprint.h"
#include "lockstep/collective/helpers.h"
#include "lockstep/collective/reduction.h"
#include "lockstep/transport/shm/board.h"

namespace lockstep::collective {

// One operation of one rank. The fingerprint's dtype and reduce_op say how; the buffers below must agree with
// it, which the caller checks. It may be a part of an operation of more ranks than are on the board.
struct LocalCall {
  transport::shm::Board& board;
  Fingerprint fingerprint;
  Deadline deadline;
  const Means& means = Means::none();
  int root = 0;       // a position on the board
  double factor = 1;  // premul_sum: this rank's
  // Whether other hosts take part: then a rank that is late may be waiting for them.
  bool spans_hosts = false;
};

// What a rank shows to its neighbours when it begins an operation, and the Desync of two that differ.
transport::shm::Entry entry_of(const Fingerprint& fingerprint);
Status describe_entries(Rank own, const transport::shm::Entry& mine, Rank peer,
                        const transport::shm::Entry& theirs);

Status local_barrier(const LocalCall& call);
// In place.
Status local_all_reduce(const LocalCall& call, ByteSpan data);
// `output` is used on the root only; it may be `input`.
Status local_reduce(const LocalCall& call, ByteView input, ByteSpan output);
// `inputs[i]` is for rank i; that for this rank has the size of `output`.
Status local_reduce_scatter(const LocalCall& call, std::span<const ByteView> inputs, ByteSpan output);
Status local_broadcast(const LocalCall& call, ByteSpan data);
// `outputs[i]` takes the input of rank i.
Status local_all_gather(const LocalCall& call, ByteView input, std::span<const ByteSpan> outputs);
// `outputs` is used on the root only.
Status local_gather(const LocalCall& call, ByteView input, std::span<const ByteSpan> outputs);
// `inputs` is used on the root only.
Status local_scatter(const LocalCall& call, std::span<const ByteView> inputs, ByteSpan output);
// `inputs[i]` goes to rank i, `outputs[i]` comes from it.
Status local_all_to_all(const LocalCall& call, std::span<const ByteView> inputs,
                        std::span<const ByteSpan> outputs);

}  // namespace lockstep::collective

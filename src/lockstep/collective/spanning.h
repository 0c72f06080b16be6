// The collectives of a group whose ranks are on several hosts: rounds on the Board inside a host (local.h),
// messages on the Links between hosts.
//
// n ranks on H hosts, k of them here, S bytes each; a host's leader is its first rank.
//
//   barrier         a local one, a message between every two leaders, a local one.
//   broadcast       a chain of hosts that begins with the root's, in chunks; every chunk is passed on, then
//                   shared inside the host. S per host and direction.
//   all_gather      every rank sends its input to one rank of each other host, its counterpart; then each
//                   host shares what came. (n-k)·S received per host.
//   gather, scatter every rank of another host exchanges with the root itself.
//   all_to_all      every pair on different hosts exchanges itself.
//   all_reduce      one of four ways (selection.h).
//   reduce          the chain, of which the result goes back to the root's host only; or the exchange.
//   reduce_scatter  for each host the chain of what its ranks get, of which the result goes back to it; or an
//                   all_to_all of windows, each folded by its receiver.
//
// Order: elements are folded over ranks 0..n-1, whatever the way.
// Thread safety: one operation at a time, as the Communicator. An object serves one operation.
// Errors: the caller hands the first one to settle().
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/collective/fingerprint.h"
#include "lockstep/collective/local.h"
#include "lockstep/collective/reduction.h"
#include "lockstep/transport/communicator.h"

namespace lockstep::collective {

// The error for two ranks whose messages do not fit: what links ask for.
Status describe_mismatch(Rank own, Rank peer, const transport::link::Mismatch& mismatch);
// The error for a rank that has said something in another operation; ok if it may only be ahead or behind.
Status judge_stray(Rank own, Rank peer, const transport::link::Stray& stray);

class Spanning {
 public:
  // `factor`: premul_sum, this rank's.
  Spanning(transport::Communicator& communicator, const Fingerprint& fingerprint, const Deadline& deadline,
           double factor, const Means& means);

  // First of all. The Desync of the operation before, where this rank has not seen it there.
  Status begin();

  // Buffers as in call.h, for one buffer that travels; roots are ranks in the group.
  Status barrier();
  Status broadcast(ByteSpan data, int root);
  Status all_gather(ByteView input, std::span<const ByteSpan> outputs);
  Status gather(ByteView input, std::span<const ByteSpan> outputs, int root);
  Status scatter(std::span<const ByteView> inputs, ByteSpan output, int root);
  Status all_to_all(std::span<const ByteView> inputs, std::span<const ByteSpan> outputs);
  Status all_reduce(ByteSpan data);
  Status reduce(ByteView input, ByteSpan output, int root);
  Status reduce_scatter(std::span<const ByteView> inputs, ByteSpan output);

  // Records the first failure for all ranks, and gives back what was recorded first.
  Status settle(const Status& status);

 private:
  friend class Chain;
  using Ticket = transport::link::Links::Ticket;

  const std::vector<int>& neighbours() const { return layout_.neighbours_of(own_); }
  int host() const { return layout_.host_of[static_cast<std::size_t>(own_)]; }
  int local_index() const { return layout_.local_index[static_cast<std::size_t>(own_)]; }
  bool is_here(int position) const { return layout_.host_of[static_cast<std::size_t>(position)] == host(); }
  Status find_missing(const Status& status) const;
  LocalCall local(int root = 0) const;
  Fold fold_with(std::span<const double> factors) const;

  Status post_send(int peer, ByteView bytes);
  Status post_recv(int peer, ByteSpan bytes);
  // For all that was posted since the last call.
  Status wait_for_posted();

  Status all_reduce_raw(ByteSpan data);
  Status all_reduce_swap(ByteSpan data);
  Status all_reduce_exchange(ByteSpan data);
  Status reduce_scatter_exchange(std::span<const ByteView> inputs, ByteSpan output);
  // The factors of all ranks, where the operation has them.
  Result<std::vector<double>> share_factors();
  // Folds one block of each rank, which lie one after the other.
  void fold_blocks(const Buffer& blocks, std::span<const double> factors, ByteSpan to) const;

  transport::Communicator& communicator_;
  transport::link::Links& links_;
  const transport::Layout& layout_;
  const int own_;
  const Fingerprint fingerprint_;
  const Deadline deadline_;
  const double factor_;
  const Means& means_;
  const std::size_t element_;
  std::vector<Ticket> posted_;
};

}  // namespace lockstep::collective

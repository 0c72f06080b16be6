#include "lockstep/collective/spanning.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/text.h"
#include "lockstep/collective/local_round.h"
#include "lockstep/collective/slices.h"

namespace lockstep::collective {
namespace {

using transport::Communicator;
using transport::link::Stamp;

// Of a broadcast: what is passed on at a time.
constexpr std::size_t kBroadcastChunk = std::size_t{1} << 20;

static_assert(sizeof(Fingerprint) == transport::link::kStampSize);
Stamp stamp_of(const Fingerprint& fingerprint) {
  Stamp stamp;
  std::memcpy(stamp.data(), &fingerprint, sizeof(fingerprint));
  return stamp;
}

Fingerprint fingerprint_in(const Stamp& stamp) {
  Fingerprint fingerprint;
  std::memcpy(&fingerprint, stamp.data(), sizeof(fingerprint));
  return fingerprint;
}

}  // namespace

Status describe_mismatch(Rank own, Rank peer, const transport::link::Mismatch& mismatch) {
  const Fingerprint expected = fingerprint_in(mismatch.expected);
  const Fingerprint received = fingerprint_in(mismatch.received);
  const Cause cause{.failure = Failure::kDesync, .rank = own, .peer = peer};
  if (mismatch.kind == transport::link::FrameKind::kGoodbye)
    return Status::disconnected(cat("rank ", peer, " left the group after operation #", received.sequence),
                                cause);
  if (expected != received) return desync(own, expected, peer, received);
  return Status::invalid(cat("ranks disagree about a size: rank ", peer, " sends ", mismatch.received_size,
                             " or more, rank ", own, " expects ", mismatch.expected_size),
                         cause);
}

Status judge_stray(Rank own, Rank peer, const transport::link::Stray& stray) {
  const Fingerprint now = fingerprint_in(stray.now);
  const Fingerprint last = fingerprint_in(stray.last);
  const Fingerprint received = fingerprint_in(stray.received);
  if (received.sequence > now.sequence || received == now || received == last) return {};
  const bool behind = received.sequence < now.sequence && received.sequence != last.sequence;
  if (behind && stray.kind == transport::link::Stray::Kind::kWaiting) return {};  // our message is under way
  return desync(own, received.sequence == last.sequence ? last : now, peer, received);
}

Spanning::Spanning(Communicator& communicator, const Fingerprint& fingerprint, const Deadline& deadline,
                   double factor, const Means& means)
    : communicator_(communicator),
      links_(communicator.links()),
      layout_(communicator.layout()),
      own_(communicator.position()),
      fingerprint_(fingerprint),
      deadline_(deadline),
      factor_(factor),
      means_(means),
      element_(size_of(fingerprint.dtype)) {}

Status Spanning::begin() { return links_.begin(stamp_of(fingerprint_)); }

LocalCall Spanning::local(int root) const {
  return {.board = communicator_.board(),
          .fingerprint = fingerprint_,
          .deadline = deadline_,
          .means = means_,
          .root = root,
          .factor = factor_,
          .spans_hosts = true};
}

Status Spanning::post_send(int peer, ByteView bytes) {
  LOCKSTEP_ASSIGN(posted_.emplace_back(), links_.send(peer, bytes, deadline_));
  return links_.progress();
}

Status Spanning::post_recv(int peer, ByteSpan bytes) {
  LOCKSTEP_ASSIGN(posted_.emplace_back(), links_.recv(peer, bytes, deadline_));
  return {};
}

Status Spanning::wait_for_posted() {
  for (const Ticket& ticket : posted_) LOCKSTEP_TRY(links_.wait(ticket, deadline_));
  posted_.clear();
  return {};
}

Status Spanning::barrier() {
  LOCKSTEP_TRY(local_barrier(local()));
  if (local_index() == 0) {
    for (const std::vector<int>& members : layout_.hosts) {
      if (is_here(members[0])) continue;
      LOCKSTEP_TRY(post_recv(members[0], {}));
      LOCKSTEP_TRY(post_send(members[0], {}));
    }
    LOCKSTEP_TRY(wait_for_posted());
  }
  return local_barrier(local());
}

Status Spanning::broadcast(ByteSpan data, int root) {
  const int hosts = layout_.host_count();
  const int first = layout_.host_of[static_cast<std::size_t>(root)];
  const int place = (host() - first + hosts) % hosts;  // in the chain
  const auto head_of = [&](int at) { return at == 0 ? root : layout_.on_host((first + at) % hosts)[0]; };
  const int head = head_of(place);
  const int local_head = layout_.local_index[static_cast<std::size_t>(head)];
  std::vector<Ticket> arrivals;
  if (head == own_ && place > 0) {
    for (std::size_t at = 0; at == 0 || at < data.size(); at += kBroadcastChunk) {
      const ByteSpan chunk = part_of(data, at, kBroadcastChunk);
      LOCKSTEP_ASSIGN(arrivals.emplace_back(), links_.recv(head_of(place - 1), chunk, deadline_));
    }
  }
  std::size_t number = 0;
  for (std::size_t at = 0; at == 0 || at < data.size(); at += kBroadcastChunk) {
    const ByteSpan chunk = part_of(data, at, kBroadcastChunk);
    if (head == own_ && place > 0) LOCKSTEP_TRY(links_.wait(arrivals[number++], deadline_));
    if (head == own_ && place + 1 < hosts) LOCKSTEP_TRY(post_send(head_of(place + 1), chunk));
    LOCKSTEP_TRY(local_broadcast(local(local_head), chunk));
  }
  return wait_for_posted();
}

Status Spanning::all_gather(ByteView input, std::span<const ByteSpan> outputs) {
  const auto here = static_cast<int>(neighbours().size());
  for (const std::vector<int>& members : layout_.hosts) {
    if (is_here(members[0])) continue;
    const auto there = static_cast<int>(members.size());
    for (int i = local_index(); i < there; i += here)
      LOCKSTEP_TRY(post_recv(members[static_cast<std::size_t>(i)],
                             outputs[static_cast<std::size_t>(members[static_cast<std::size_t>(i)])]));
    LOCKSTEP_TRY(post_send(members[static_cast<std::size_t>(local_index() % there)], input));
  }
  // Shares the blocks of up to `here` ranks, each of which is with the neighbour that stands where it does.
  const auto share = [&](std::span<const int> owners, ByteView own) {
    std::vector<ByteSpan> blocks(static_cast<std::size_t>(here));
    for (std::size_t i = 0; i < owners.size(); ++i) blocks[i] = outputs[static_cast<std::size_t>(owners[i])];
    return local_all_gather(local(), own, blocks);
  };
  LOCKSTEP_TRY(share(neighbours(), input));
  LOCKSTEP_TRY(wait_for_posted());
  for (const std::vector<int>& members : layout_.hosts) {
    if (is_here(members[0])) continue;
    for (std::size_t at = 0; at < members.size(); at += static_cast<std::size_t>(here)) {
      const auto owners =
          std::span(members).subspan(at, std::min(members.size() - at, static_cast<std::size_t>(here)));
      const auto own = static_cast<std::size_t>(local_index());
      const ByteView block =
          own < owners.size() ? outputs[static_cast<std::size_t>(owners[own])] : ByteSpan();
      if (here > 1) LOCKSTEP_TRY(share(owners, block));
    }
  }
  return {};
}

Status Spanning::gather(ByteView input, std::span<const ByteSpan> outputs, int root) {
  if (!is_here(root)) {
    LOCKSTEP_TRY(post_send(root, input));
    return wait_for_posted();
  }
  std::vector<ByteSpan> here;
  if (own_ == root) {
    for (int i = 0; i < communicator_.size(); ++i) {
      if (!is_here(i)) LOCKSTEP_TRY(post_recv(i, outputs[static_cast<std::size_t>(i)]));
    }
    for (const int i : neighbours()) here.push_back(outputs[static_cast<std::size_t>(i)]);
  }
  LOCKSTEP_TRY(local_gather(local(layout_.local_index[static_cast<std::size_t>(root)]), input, here));
  return wait_for_posted();
}

Status Spanning::scatter(std::span<const ByteView> inputs, ByteSpan output, int root) {
  if (!is_here(root)) {
    LOCKSTEP_TRY(post_recv(root, output));
    return wait_for_posted();
  }
  std::vector<ByteView> here;
  if (own_ == root) {
    for (int i = 0; i < communicator_.size(); ++i) {
      if (!is_here(i)) LOCKSTEP_TRY(post_send(i, inputs[static_cast<std::size_t>(i)]));
    }
    for (const int i : neighbours()) here.push_back(inputs[static_cast<std::size_t>(i)]);
  }
  LOCKSTEP_TRY(local_scatter(local(layout_.local_index[static_cast<std::size_t>(root)]), here, output));
  return wait_for_posted();
}

Status Spanning::all_to_all(std::span<const ByteView> inputs, std::span<const ByteSpan> outputs) {
  std::vector<ByteView> in_here;
  std::vector<ByteSpan> out_here;
  for (const int i : neighbours()) {
    in_here.push_back(inputs[static_cast<std::size_t>(i)]);
    out_here.push_back(outputs[static_cast<std::size_t>(i)]);
  }
  for (int i = 0; i < communicator_.size(); ++i) {
    if (!is_here(i)) LOCKSTEP_TRY(post_recv(i, outputs[static_cast<std::size_t>(i)]));
  }
  // Each begins with another, so that not all send to the first one first.
  for (int step = 1; step < communicator_.size(); ++step) {
    const int i = (own_ + step) % communicator_.size();
    if (!is_here(i)) LOCKSTEP_TRY(post_send(i, inputs[static_cast<std::size_t>(i)]));
  }
  LOCKSTEP_TRY(local_all_to_all(local(), in_here, out_here));
  return wait_for_posted();
}

// Who is not in the operation is known on its own host; where all are in one, those who know are given a
// while to say it. Whoever waits for a link knows more than one that waits for a neighbour, and so speaks
// first.
Status Spanning::find_missing(const Status& status) const {
  const auto& board = communicator_.board();
  if (!board.absent_from(fingerprint_.sequence).empty())
    return name_missing(board, fingerprint_.sequence, status);
  const int waits = status.cause().peer ? 1 : 2;
  for (int i = 0; i < waits; ++i) {
    if (Status news = communicator_.wait_for_news(); !news.ok()) return news;
  }
  return status;
}

Status Spanning::settle(const Status& status) {
  const Rank rank = communicator_.rank_of(own_);
  Status first = status;
  const bool vague = status.failure() == Failure::kPeerDied || status.failure() == Failure::kPeerUnreachable;
  if (vague && !status.cause().sequence) {
    if (const Status news = communicator_.wait_for_news(); !news.ok()) {
      first = news;
    } else if (status.cause().peer) {
      // One that left before there was a link could say it to the watch only.
      if (const Status left = links_.look_whether_it_left(*status.cause().peer); !left.ok()) first = left;
    }
  }
  if (status.failure() == Failure::kMissingRanks && !status.cause().sequence) first = find_missing(status);
  return in_operation(rank, fingerprint_, communicator_.fail(in_operation(rank, fingerprint_, first)));
}

}  // namespace lockstep::collective

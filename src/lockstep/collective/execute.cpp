#include "lockstep/collective/execute.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "lockstep/collective/local.h"
#include "lockstep/collective/packed.h"
#include "lockstep/collective/reduction.h"
#include "lockstep/collective/same_call.h"
#include "lockstep/collective/spanning.h"

namespace lockstep::collective {
namespace {

using transport::Communicator;

std::span<const ByteSpan> of_buffer(std::span<const ByteSpan> buffers, std::size_t at, std::size_t ranks) {
  return buffers.empty() ? buffers : buffers.subspan(at * ranks, ranks);
}
std::span<const ByteView> of_buffer(std::span<const ByteView> buffers, std::size_t at, std::size_t ranks) {
  return buffers.empty() ? buffers : buffers.subspan(at * ranks, ranks);
}

// How many buffers travel together.
std::size_t together(const Call& call, std::size_t ranks) {
  switch (call.kind) {
    case OpKind::kBroadcast:
    case OpKind::kAllReduce:
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
      return call.outputs.size();
    case OpKind::kReduce:
    case OpKind::kAllGather:
    case OpKind::kGather:
      return call.inputs.size();
    case OpKind::kAllToAll:
      return call.inputs.size() / ranks;
    case OpKind::kBarrier:
    case OpKind::kMonitoredBarrier:
      break;
  }
  return 1;
}

Status execute_local(const LocalCall& local, const Call& call, std::size_t b) {
  const auto n = static_cast<std::size_t>(local.board.size());
  const ByteSpan output = b < call.outputs.size() ? call.outputs[b] : ByteSpan();
  const ByteView input = b < call.inputs.size() ? call.inputs[b] : ByteView();
  switch (call.kind) {
    case OpKind::kBarrier:
    case OpKind::kMonitoredBarrier:
      return local_barrier(local);
    case OpKind::kBroadcast:
    case OpKind::kAllReduce:
      break;  // packed
    case OpKind::kReduce:
      return local_reduce(local, input, output);
    case OpKind::kAllGather:
      return local_all_gather(local, input, of_buffer(call.outputs, b, n));
    case OpKind::kGather:
      return local_gather(local, input, of_buffer(call.outputs, b, n));
    case OpKind::kScatter:
      return local_scatter(local, of_buffer(call.inputs, b, n), output);
    case OpKind::kReduceScatter:
      return local_reduce_scatter(local, of_buffer(call.inputs, b, n), output);
    case OpKind::kAllToAll:
      return local_all_to_all(local, call.inputs, call.outputs);
  }
  return Status::internal("an operation without a name");
}

Status execute_spanning(Spanning& spanning, const Call& call, std::size_t b, std::size_t n) {
  const ByteSpan output = b < call.outputs.size() ? call.outputs[b] : ByteSpan();
  const ByteView input = b < call.inputs.size() ? call.inputs[b] : ByteView();
  const int root = call.root.value;
  switch (call.kind) {
    case OpKind::kBarrier:
    case OpKind::kMonitoredBarrier:
      return spanning.barrier();
    case OpKind::kBroadcast:
    case OpKind::kAllReduce:
      break;  // packed
    case OpKind::kReduce:
      return spanning.reduce(input, output, root);
    case OpKind::kAllGather:
      return spanning.all_gather(input, of_buffer(call.outputs, b, n));
    case OpKind::kGather:
      return spanning.gather(input, of_buffer(call.outputs, b, n), root);
    case OpKind::kScatter:
      return spanning.scatter(of_buffer(call.inputs, b, n), output, root);
    case OpKind::kReduceScatter:
      return spanning.reduce_scatter(of_buffer(call.inputs, b, n), output);
    case OpKind::kAllToAll:
      return spanning.all_to_all(call.inputs, call.outputs);
  }
  return Status::internal("an operation without a name");
}

// Who waits elsewhere has no link to those who may wait for it to make one. The first of those of a host who
// are in such an operation therefore tells one member of every other host, which it is that connects to:
// whoever is lower connects to it.
class OtherHosts {
 public:
  OtherHosts(Communicator& communicator, std::uint64_t sequence)
      : communicator_(communicator), sequence_(sequence) {
    for (const std::vector<int>& members : communicator.layout().hosts) {
      if (std::ranges::binary_search(members, communicator.position())) continue;
      const auto higher = std::ranges::upper_bound(members, communicator.position());
      if (higher != members.end()) untold_.push_back(*higher);
    }
  }
  // Those who do not know yet. Whom it cannot reach comes last the next time.
  void tell() {
    if (untold_.empty() || !first_of_host()) return;
    const Deadline deadline = Clock::steady().in(kTelling);
    for (std::size_t left = untold_.size(); left > 0 && !deadline.expired(); --left) {
      const int member = untold_.front();
      untold_.pop_front();
      if (!communicator_.links().tell_of_operation(member, deadline)) untold_.push_back(member);
    }
  }

 private:
  static constexpr Duration kTelling = std::chrono::milliseconds(250);

  bool first_of_host() const {
    const transport::shm::Board& board = communicator_.board();
    const std::vector<Rank> absent = board.absent_from(sequence_);
    int first = 0;
    while (first < board.index() && std::ranges::count(absent, board.rank_of(first)) > 0) ++first;
    return first == board.index();
  }

  Communicator& communicator_;
  const std::uint64_t sequence_;
  std::deque<int> untold_;
};

void copy(ByteSpan to, ByteView from) {
  if (!to.empty() && to.data() != from.data()) std::memmove(to.data(), from.data(), to.size());
}

Status execute_among(Communicator& communicator, const Call& call, const Fingerprint& fingerprint,
                     const Deadline& deadline, const Means& means) {
  const auto n = static_cast<std::size_t>(communicator.size());
  const std::size_t buffers = together(call, n);
  if (communicator.layout().host_count() == 1) {
    const LocalCall local{.board = communicator.board(),
                          .fingerprint = fingerprint,
                          .deadline = deadline,
                          .means = means,
                          .root = call.root.value,
                          .factor = call.factor};
    if (call.kind == OpKind::kAllReduce)
      return for_each_packed(call.outputs, [&](ByteSpan data) { return local_all_reduce(local, data); });
    if (call.kind == OpKind::kBroadcast)
      return for_each_packed(call.outputs, [&](ByteSpan data) { return local_broadcast(local, data); });
    for (std::size_t b = 0; b < buffers; ++b) LOCKSTEP_TRY(execute_local(local, call, b));
    return {};
  }
  Spanning spanning(communicator, fingerprint, deadline, call.factor, means);
  Status status = spanning.begin();
  if (!status.ok()) {
    // Nothing is sent.
  } else if (call.kind == OpKind::kAllReduce) {
    status = for_each_packed(call.outputs, [&](ByteSpan data) { return spanning.all_reduce(data); });
  } else if (call.kind == OpKind::kBroadcast) {
    status = for_each_packed(call.outputs,
                             [&](ByteSpan data) { return spanning.broadcast(data, call.root.value); });
  } else {
    for (std::size_t b = 0; b < buffers && status.ok(); ++b) status = execute_spanning(spanning, call, b, n);
  }
  return status.ok() ? status : spanning.settle(status);
}

}  // namespace

Status execute(Communicator& communicator, const Call& call, const Fingerprint& fingerprint,
               const Deadline& deadline, const Means& means) {
  const Fingerprint common = common_to_all(fingerprint);
  communicator.board().enter(entry_of(common));
  Status status = execute_among(communicator, call, common, deadline, means);
  communicator.board().exit(fingerprint.sequence);
  return status;
}

Status execute_elsewhere(Communicator& communicator, const Fingerprint& fingerprint, const Deadline& deadline,
                         const std::function<Status(const std::function<Status()>& look)>& meet) {
  transport::shm::Board& board = communicator.board();
  std::optional<Spanning> spanning;
  if (communicator.layout().host_count() > 1)
    spanning.emplace(communicator, fingerprint, deadline, 1, Means::none());
  OtherHosts others(communicator, fingerprint.sequence);
  bool waits = false;  // from the second look on
  const auto look = [&]() -> Status {
    LOCKSTEP_TRY(board.look());
    if (!spanning) return {};
    if (std::exchange(waits, true)) others.tell();
    return communicator.links().look_for_strays();
  };
  board.enter(entry_of(fingerprint));
  Status status = spanning ? spanning->begin() : Status();
  if (status.ok()) status = meet(look);
  board.exit(fingerprint.sequence);
  if (status.ok()) return status;
  if (spanning) return spanning->settle(status);
  const Rank rank = communicator.rank_of(communicator.position());
  return in_operation(rank, fingerprint, communicator.fail(in_operation(rank, fingerprint, status)));
}

void execute_alone(const Call& call) {
  if (call.kind == OpKind::kAllReduce && call.reduce_op == ReduceOp::kPremulSum) {
    for (const ByteSpan data : call.outputs) {
      const std::byte* const source = data.data();
      std::byte* const to = data.data();
      fold({.type = call.dtype, .op = call.reduce_op, .factors = {&call.factor, 1}}, {&source, 1}, {&to, 1},
           data.size() / size_of(call.dtype));
    }
    return;
  }
  for (std::size_t b = 0; b < call.inputs.size() && b < call.outputs.size(); ++b) {
    if (!reduces(call.kind)) {
      copy(call.outputs[b], call.inputs[b]);
      continue;
    }
    const std::byte* const source = call.inputs[b].data();
    std::byte* const to = call.outputs[b].data();
    fold({.type = call.dtype, .op = call.reduce_op, .factors = {&call.factor, 1}}, {&source, 1}, {&to, 1},
         call.inputs[b].size() / size_of(call.dtype));
  }
}

}  // namespace lockstep::collective

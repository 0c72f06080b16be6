#include "lockstep/tensor/borrowed/borrowed.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "lockstep/backend/held_call.h"
#include "lockstep/backend/members.h"
#include "lockstep/backend/op_queue.h"
#include "lockstep/backend/rounds.h"
#include "lockstep/backend/store_barriers.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/same_call.h"
#include "lockstep/tensor/borrowed/calls.h"
#include "lockstep/tensor/borrowed/message.h"

namespace lockstep::tensor {
namespace {

using backend::HeldCall;
using collective::Fingerprint;

constexpr std::uint8_t kRefuses = 1;  // in the spare byte of a fingerprint: this rank cannot do it with c10d
constexpr std::string_view kFailureKey = "failure";
constexpr Duration kStorePatience = std::chrono::seconds(10);

// The stream of the thread that starts an operation, for the one that runs it.
class CallersStream {
 public:
  explicit CallersStream(c10::DeviceType device) {
    if (device == c10::DeviceType::CPU || device == c10::DeviceType::Meta) return;
    const c10::impl::VirtualGuardImpl guard(device);
    stream_ = guard.getStream(guard.getDevice());
  }
  std::optional<c10::Stream> get() const { return stream_; }

 private:
  std::optional<c10::Stream> stream_;
};

class BorrowedGroup final : public Backend, public backend::RoundStarter {
 public:
  BorrowedGroup(c10::intrusive_ptr<c10d::Backend> lent, GroupPlan plan, const BorrowedOptions& options)
      : lent_(std::move(lent)),
        options_(options),
        id_(backend::group_id(plan.name, plan.members)),
        who_(std::move(plan), Clock::steady()),
        threads_(std::make_shared<CallbackThreads>()),
        queue_(Clock::steady(), who_.text()) {}
  BorrowedGroup(const BorrowedGroup&) = delete;
  BorrowedGroup& operator=(const BorrowedGroup&) = delete;
  ~BorrowedGroup() override;

  Rank rank() const override { return who_.rank(); }
  WorldSize size() const override { return who_.size(); }
  const std::string& name() const override { return who_.name(); }
  Rank world_rank(Rank member) const override { return who_.world_rank(member); }

  Status run(const Call& call, const OpOptions& options) override;
  WorkPtr start(const Call& call, const OpOptions& options) override;
  WorkPtr start_rounds(Rounds rounds, const OpOptions& options) override;
  Status monitored_barrier(const OpOptions& options) override;
  WorkPtr send(Rank to, std::uint64_t tag, ByteView bytes, const OpOptions& options) override;
  WorkPtr recv(std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
               const OpOptions& options) override;

  Duration timeout() const override { return who_.timeout(); }
  void set_timeout(Duration timeout) override { who_.set_timeout(timeout); }
  std::uint64_t sequence() const override { return queue_.last_sequence(); }
  Status failure() const override;
  void abort(const Status& why) override;

 private:
  bool is_on_host() const { return options_.device == c10::DeviceType::CPU; }
  Status perform(const Call& call, std::uint64_t sequence, const Deadline& deadline,
                 std::shared_ptr<const void> keep);
  // kDesync, or what another rank cannot do either.
  Status compare(Fingerprint own, const Status& refused, const Deadline& deadline);
  Status exchange(const Call& call, const Deadline& deadline, std::shared_ptr<const void> keep);
  Status finish(const BorrowedCall::Works& works, std::string_view op, const Deadline& deadline);
  // Asks c10d to end what is under way.
  void stop_lent();
  // Ends the group here and, by the store, elsewhere. Gives the failure that was first.
  Status fail(const Status& why) const;
  Status recorded() const;
  Status meet(std::uint64_t sequence, const Deadline& deadline);
  Status refuse_message(std::string_view op, std::optional<Rank> peer, std::uint64_t tag) const;
  using Begin = std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>& tensors)>;
  WorkPtr begin_message(std::string_view call, std::optional<Rank> peer, std::uint64_t tag, ByteView bytes,
                        const OpOptions& options, const Begin& begin);

  const c10::intrusive_ptr<c10d::Backend> lent_;  // shared with the program
  const BorrowedOptions options_;
  const std::uint64_t id_;
  Membership who_;
  const std::shared_ptr<CallbackThreads> threads_;  // shared with messages, which may outlive the group
  mutable backend::OpQueue queue_;                  // who asks for the failure may be the first to hear of it
  backend::StoreBarriers barriers_{who_};           // of whoever runs an operation
  std::atomic<std::uint64_t> messages_ = 0;
};

BorrowedGroup::~BorrowedGroup() {
  if (who_.in_forked_child()) return;
  queue_.fail(Status::aborted(cat("rank ", who_.own(), " destroyed the group ", base::quoted(who_.name())),
                              {.failure = Failure::kClosed, .peer = who_.own(), .group = who_.name()}));
  if (queue_.busy()) stop_lent();
  queue_.run_alone([] {});
}

Status BorrowedGroup::run(const Call& call, const OpOptions& options) {
  LOCKSTEP_TRY(who_.admit(call));
  const Deadline deadline = who_.deadline_of(options);
  return queue_.run(
      {.deadline = deadline, .name = collective::name_of(call.kind)},
      [&](std::uint64_t sequence) { return perform(call, sequence, deadline, options.keep); },
      [this](const Status& why) { return fail(why); });
}

WorkPtr BorrowedGroup::start(const Call& call, const OpOptions& options) {
  if (const Status admitted = who_.admit(call); !admitted.ok()) return queue_.ended(admitted);
  const Deadline deadline = who_.deadline_of(options);
  // Shared because a std::function can be copied.
  const auto held = std::make_shared<const HeldCall>(call, options.keep);
  return queue_.start(
      [this, held, deadline, stream = CallersStream(options_.device)](std::uint64_t sequence) {
        const c10::OptionalStreamGuard guard(stream.get());
        return perform(held->call, sequence, deadline, held->keep);
      },
      deadline, 1, collective::name_of(call.kind));
}

WorkPtr BorrowedGroup::start_rounds(Rounds rounds, const OpOptions& options) {
  backend::RoundRunner runner{.perform =
                                  [this, stream = CallersStream(options_.device), keep = options.keep](
                                      const Call& call, std::uint64_t sequence, const Deadline& deadline) {
                                    const c10::OptionalStreamGuard guard(stream.get());
                                    return perform(call, sequence, deadline, keep);
                                  },
                              .fail =
                                  [this](const Status& why, std::uint64_t) {
                                    stop_lent();
                                    return fail(why);
                                  }};
  return backend::start_in(queue_, who_, std::move(rounds), std::move(runner), options);
}

Status BorrowedGroup::perform(const Call& call, std::uint64_t sequence, const Deadline& deadline,
                              std::shared_ptr<const void> keep) {
  const Fingerprint own = collective::fingerprint_of(call, id_, sequence);
  Status refused = check_borrowed(call, size());
  Status status = refused;
  if (is_on_host() && options_.compare_calls == CompareCalls::kAlways)
    status = compare(own, refused, deadline);
  if (status.ok()) status = exchange(call, deadline, std::move(keep));
  if (status.ok()) return status;
  Cause cause = status.cause();
  cause.group = who_.name();
  status = collective::in_operation(who_.own(), own, status.with_cause(std::move(cause)));
  // What c10d refuses to begin changes nothing.
  const bool lives = status.code() == Code::kUnsupported ||
                     (status.code() == Code::kInvalid && status.failure() == Failure::kNone);
  if (lives) return status;
  stop_lent();
  return fail(status);
}

void BorrowedGroup::stop_lent() {
  try {
    lent_->abort();
  } catch (const std::exception&) {
    // It cannot: then what is under way ends with its deadline.
  }
}

Status BorrowedGroup::compare(Fingerprint own, const Status& refused, const Deadline& deadline) {
  if (!refused.ok()) own.spare = kRefuses;
  const auto count = static_cast<std::size_t>(size().value);
  std::vector<Fingerprint> all(count);
  std::vector<ByteSpan> outputs;
  outputs.reserve(count);
  for (Fingerprint& theirs : all) outputs.push_back(std::as_writable_bytes(std::span(&theirs, 1)));
  const ByteView input = std::as_bytes(std::span(&own, 1));
  const Call call{.kind = OpKind::kAllGather, .inputs = {&input, 1}, .outputs = outputs};
  LOCKSTEP_TRY(exchange(call, deadline, nullptr));
  for (std::size_t r = 0; r < count; ++r) {
    Fingerprint theirs = all[r];
    if (theirs.spare == kRefuses && refused.ok())
      return Status::unsupported(cat("rank ", who_.members()[r], " cannot do it with c10d, and says why"));
    theirs.spare = own.spare;
    if (!collective::can_be_one(own, theirs))
      return collective::desync(who_.own(), own, who_.members()[r], theirs);
  }
  return refused;
}

Status BorrowedGroup::exchange(const Call& call, const Deadline& deadline, std::shared_ptr<const void> keep) {
  const std::string_view op = collective::name_of(call.kind);
  try {
    BorrowedCall begun(*lent_, call, {.device = options_.device, .keep = std::move(keep)}, deadline);
    return finish(begun.begin(), op, deadline);
  } catch (...) {
    return status_of_c10d(op, std::current_exception());
  }
}

Status BorrowedGroup::finish(const BorrowedCall::Works& works, std::string_view op,
                             const Deadline& deadline) {
  Status first;
  for (const auto& work : works) {
    try {
      // On a device the wait is the stream's, and the operation has its own timeout.
      const bool done = work->wait(is_on_host() ? milliseconds_to(deadline) : kNoTimeout);
      if (!done && first.ok()) first = Status::aborted(cat(op, " was given up by c10d"));
    } catch (...) {
      const Status status = status_of_c10d(op, std::current_exception());
      // It was under way: whatever c10d calls it, the ranks have parted.
      const bool refused = status.code() == Code::kInvalid || status.code() == Code::kUnsupported;
      if (first.ok()) first = refused ? Status::internal(std::string(status.message())) : status;
    }
  }
  return first;
}

Status BorrowedGroup::recorded() const {
  if (!who_.store()) return {};
  const Deadline soon = Clock::steady().in(kStorePatience);
  const std::string key(kFailureKey);
  const auto there = who_.store()->check({&key, 1}, soon);
  if (!there.ok() || !*there) return {};
  const auto bytes = who_.store()->get(key, soon);
  return bytes.ok() ? base::parse_status(*bytes) : Status();
}

Status BorrowedGroup::fail(const Status& why) const {
  Status first = recorded();
  if (first.ok()) {
    first = why;
    if (who_.store())
      (void)who_.store()->compare_set(kFailureKey, {}, base::write_status(why),
                                      Clock::steady().in(kStorePatience));
  }
  queue_.fail(first);
  return first;
}

Status BorrowedGroup::failure() const {
  if (who_.in_forked_child()) return {};
  LOCKSTEP_TRY(queue_.failure());
  Status heard = recorded();
  if (!heard.ok()) queue_.fail(heard);
  return heard;
}

void BorrowedGroup::abort(const Status& why) {
  if (who_.in_forked_child()) return;
  // Who says it is a part of what is said.
  Cause cause = why.cause();
  if (cause.failure == Failure::kNone) cause.failure = Failure::kRemoteError;
  if (!cause.peer) cause.peer = who_.own();
  (void)fail(why.with_cause(std::move(cause)).with_prefix(cat("rank ", who_.own(), " said: ")));
  if (queue_.busy()) stop_lent();
}

Status BorrowedGroup::monitored_barrier(const OpOptions& options) {
  LOCKSTEP_TRY(who_.admit({.kind = OpKind::kMonitoredBarrier}));
  const Deadline deadline = who_.deadline_of(options);
  return queue_.run(
      {.deadline = deadline, .name = collective::name_of(OpKind::kMonitoredBarrier)},
      [&](std::uint64_t sequence) {
        const Status met = meet(sequence, deadline);
        return met.ok() || met.code() == Code::kUnsupported ? met : fail(met);
      },
      [this](const Status& why) { return fail(why); });
}

Status BorrowedGroup::meet(std::uint64_t sequence, const Deadline& deadline) {
  if (who_.store()) return barriers_.meet(sequence, deadline, {.look = [this] { return failure(); }});
  try {
    c10d::BarrierOptions barrier;
    barrier.timeout = milliseconds_to(deadline);
    lent_->monitoredBarrier(barrier, /*waitAllRanks=*/true);
    return {};
  } catch (...) {
    return status_of_c10d("monitoredBarrier", std::current_exception());
  }
}

Status BorrowedGroup::refuse_message(std::string_view op, std::optional<Rank> peer, std::uint64_t tag) const {
  LOCKSTEP_TRY(who_.refuse_in_forked_child(op));
  LOCKSTEP_TRY(queue_.failure());
  const Cause cause{.rank = who_.rank(), .op = std::string(op), .group = who_.name()};
  if (peer && !size().contains(*peer))
    return Status::invalid(cat("the peer is rank ", *peer, ", but the group has ", size(), " ranks"), cause);
  if (tag > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
    return Status::invalid(
        cat("the tag is ", tag, ", but c10d has none above ", std::numeric_limits<int>::max()), cause);
  return {};
}

WorkPtr BorrowedGroup::begin_message(std::string_view call, std::optional<Rank> peer, std::uint64_t tag,
                                     ByteView bytes, const OpOptions& options, const Begin& begin) {
  BorrowedMessagePlan plan{.sequence = ++messages_,
                           .deadline = who_.deadline_of(options),
                           .call = std::string(call),
                           .threads = threads_};
  const std::string op = call == "send" ? "send" : "recv";
  if (call == "recv") plan.from = peer;
  plan.describe = [own = who_.own(), op, group = who_.name(), number = plan.sequence](const Status& status) {
    if (status.ok() || status.cause().peer) return status;  // the group's own failure names its place
    Cause cause = status.cause();
    cause.rank = own;
    cause.op = op;
    cause.sequence = number;
    cause.group = group;
    return status.with_cause(std::move(cause)).with_prefix(cat("rank ", own, ": ", op, " #", number, ": "));
  };
  c10::intrusive_ptr<c10d::Work> lent;
  Status failed = refuse_message(op, peer, tag);
  if (failed.ok()) {
    try {
      std::vector<at::Tensor> tensors{tensor_of(bytes, at::kByte, {options_.device, options.keep})};
      lent = begin(tensors);
      if (!lent) failed = Status::internal(cat(call, " of c10d gave nothing to wait for"));
    } catch (...) {
      failed = status_of_c10d(call, std::current_exception());
    }
  }
  return std::make_shared<BorrowedMessage>(std::move(plan), std::move(lent), failed);
}

WorkPtr BorrowedGroup::send(Rank to, std::uint64_t tag, ByteView bytes, const OpOptions& options) {
  return begin_message("send", to, tag, bytes, options, [&](std::vector<at::Tensor>& tensors) {
    return lent_->send(tensors, to.value, static_cast<int>(tag));
  });
}

WorkPtr BorrowedGroup::recv(std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
                            const OpOptions& options) {
  return begin_message(from ? "recv" : "recvAnysource", from, tag, bytes, options,
                       [&](std::vector<at::Tensor>& tensors) {
                         return from ? lent_->recv(tensors, from->value, static_cast<int>(tag))
                                     : lent_->recvAnysource(tensors, static_cast<int>(tag));
                       });
}

}  // namespace

Result<std::unique_ptr<Backend>> borrow(c10::intrusive_ptr<c10d::Backend> lent, GroupPlan plan,
                                        const BorrowedOptions& options) {
  if (!lent)
    return Status::invalid(cat("no c10d backend was handed over for the group ", base::quoted(plan.name)));
  if (lent->getRank() != plan.rank.value || lent->getSize() != static_cast<int>(plan.members.size())) {
    return Status::invalid(cat("the c10d backend for the group ", base::quoted(plan.name),
                               " says that this is rank ", lent->getRank(), " of ", lent->getSize(),
                               ", but it is rank ", plan.rank, " of ", plan.members.size()),
                           {.failure = Failure::kWorldSizeMismatch, .rank = plan.rank});
  }
  return std::unique_ptr<Backend>(std::make_unique<BorrowedGroup>(std::move(lent), std::move(plan), options));
}

BackendSource borrowed_backend(MakeBorrowed make, const BorrowedOptions& options) {
  const auto make_group = [make = std::move(make),
                           options](const GroupPlan& plan) -> Result<std::unique_ptr<Backend>> {
    c10::intrusive_ptr<c10d::Backend> lent;
    try {
      lent = make(plan);
    } catch (...) {
      return status_of_c10d(cat("making the group ", base::quoted(plan.name)), std::current_exception());
    }
    return borrow(std::move(lent), plan, options);
  };
  return own_backend(make_group, {options.device});
}

}  // namespace lockstep::tensor

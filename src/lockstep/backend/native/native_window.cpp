#include "lockstep/backend/native/native_window.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

using transport::shm::Signal;
using transport::shm::Waited;

// How often who waits for another host looks whether the peer has left.
constexpr Duration kLook = std::chrono::milliseconds(50);
// For saying goodbye: it is on its way at once, unless there is no connection yet.
constexpr Duration kGoodbye = std::chrono::seconds(1);

// The counters lie in the memory of the one who waits for them.
Status changed_signals(Rank owner) {
  return Status::disconnected(
      cat("in the shared memory of rank ", owner, ", a count of signals has changed since it was written"),
      {.failure = Failure::kCorruptFrame, .peer = owner});
}

}  // namespace

// What each rank tells the others of its own part.
struct NativeWindow::Announcement {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t possible = 0;
  std::array<char, 232> why_not = {};
};

class NativeWindow::SignalWatch final : public transport::shm::Watch {
 public:
  SignalWatch(const Backend& group, const WindowControl& peer) : group_(group), peer_(peer) {}
  void changed(std::size_t /*place*/) override {
    failure_ = changed_signals(group_.world_rank(group_.rank()));
  }
  bool stop() override {
    failure_ = group_.failure();
    return !failure_.ok() || peer_.gone.load(std::memory_order_acquire) != 0;
  }
  // Ok if the peer has left.
  const Status& failure() const { return failure_; }

 private:
  const Backend& group_;
  const WindowControl& peer_;
  Status failure_;
};

NativeWindow::NativeWindow(NativeWindowParts parts, const Clock& clock)
    : parts_(std::move(parts)), clock_(clock), heard_(static_cast<std::size_t>(parts_.group->size().value)) {}

Result<std::unique_ptr<NativeWindow>> NativeWindow::make(NativeWindowParts parts, Bytes size,
                                                         const Clock& clock) {
  std::unique_ptr<NativeWindow> window(new NativeWindow(std::move(parts), clock));
  const int members = window->parts_.group->size().value;
  const auto own = OwnWindowBlock::make(window->parts_.domain, size, members);
  LOCKSTEP_TRY(window->exchange(own, size));
  if (window->reach_->spans_hosts()) {
    LOCKSTEP_ASSIGN(window->attendant_,
                    WindowAttendant::start(*window->parts_.group, window->memory().bytes, clock));
  }
  return window;
}

Status NativeWindow::exchange(const Result<std::shared_ptr<OwnWindowBlock>>& own, Bytes size) {
  Backend& group = *parts_.group;
  Announcement mine{.size = size.value, .possible = own.ok() ? 1U : 0U};
  if (own.ok()) {
    mine.offset = (*own)->offset();
    (*own)->set_users(std::nullopt);
  } else {
    own.status().message().copy(mine.why_not.data(), mine.why_not.size() - 1);
  }
  std::vector<Announcement> all(heard_.size());
  std::vector<ByteSpan> outputs;
  outputs.reserve(all.size());
  for (Announcement& one : all) outputs.push_back(span_of(one));
  const ByteView input = view_of(mine);
  LOCKSTEP_TRY(group.run({.kind = OpKind::kAllGather, .inputs = {&input, 1}, .outputs = outputs}));

  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].possible != 0) continue;
    if (own.ok()) (*own)->set_users(0);
    all[i].why_not.back() = '\0';
    const Rank rank = group.world_rank(Rank{static_cast<int>(i)});
    return Status::internal(
        cat("rank ", rank, " has no room for its part of a window: ", all[i].why_not.data()),
        {.failure = Failure::kNoSpace, .peer = rank, .group = group.name()});
  }
  own_ = *own;
  return reach_all(all);
}

Status NativeWindow::reach_all(const std::vector<Announcement>& all) {
  const Backend& group = *parts_.group;
  const auto reach = std::make_shared<WindowReach>(parts_.domain);
  for (int i = 0; i < group.size().value; ++i) {
    const Announcement& theirs = all[static_cast<std::size_t>(i)];
    sizes_.emplace_back(theirs.size);
    if (i == group.rank().value) {
      reach->add_own(own_->block());
      continue;
    }
    const Rank rank = group.world_rank(Rank{i});
    int index = 0;
    while (index < parts_.domain->size() && parts_.domain->rank_of(index) != rank) ++index;
    if (index == parts_.domain->size()) {
      reach->add_far();
      continue;
    }
    const std::size_t total = WindowBlock::header_size(group.size().value) + theirs.size;
    std::byte* const start = theirs.offset % alignof(WindowControl) == 0
                                 ? parts_.domain->at(index, theirs.offset, Bytes{total})
                                 : nullptr;
    if (start == nullptr) {
      return Status::internal(cat("rank ", rank, " announced no valid place for a window"),
                              {.failure = Failure::kCorruptFrame, .peer = rank});
    }
    reach->add_peer(WindowBlock(start, group.size().value));
  }
  own_->set_users(reach->peers());
  reach_ = reach;
  return {};
}

NativeWindow::~NativeWindow() {
  if (!reach_ || base::fork_generation() != reach_->fork_generation()) return;
  Backend& group = *parts_.group;
  // The attendant first: who hears the goodbye may count on it that none of its bytes are used any more.
  attendant_.reset();
  own_->block().control->gone.store(1, std::memory_order_release);
  std::vector<WorkPtr> said;
  for (int i = 0; i < group.size().value; ++i) {
    if (const std::optional<WindowBlock>& peer = reach_->block(Rank{i})) {
      peer->signals[group.rank().value].nudge();
    } else {
      said.push_back(send_goodbye(group, Rank{i}));
    }
  }
  const Deadline patience = clock_.in(kGoodbye);
  for (const WorkPtr& work : said) (void)work->wait(patience);
}

SharedMemory NativeWindow::memory() const {
  return {.bytes = {own_->block().data, size_of(parts_.group->rank()).value}, .owner = own_};
}

const WindowBlock* NativeWindow::block_of(Rank rank) const {
  const std::optional<WindowBlock>& block = reach_->block(rank);
  return block ? &*block : nullptr;
}

Deadline NativeWindow::deadline_of(const OpOptions& options) const {
  return options.deadline ? *options.deadline : clock_.in(parts_.group->timeout());
}

Status NativeWindow::described(const char* op, Rank peer, const Status& status) const {
  if (status.ok()) return status;
  const Backend& group = *parts_.group;
  Cause cause = status.cause();
  const Rank own = group.world_rank(group.rank());
  if (!cause.rank) cause.rank = own;
  if (cause.op.empty()) cause.op = op;
  if (cause.group.empty()) cause.group = group.name();
  return status.with_cause(std::move(cause))
      .with_prefix(cat("rank ", own, ": ", op, " with rank ", group.world_rank(peer), ": "));
}

Status NativeWindow::admit(const char* op, Rank peer) const {
  const Backend& group = *parts_.group;
  if (!group.size().contains(peer)) {
    return Status::invalid(
        cat(op, ": the peer is rank ", peer, ", but the group has ", group.size(), " ranks"),
        {.rank = group.rank(), .op = op, .group = group.name()});
  }
  if (base::fork_generation() != reach_->fork_generation()) {
    return Status::invalid(cat(op, " in a process that was forked after its window was made"),
                           {.failure = Failure::kForked, .rank = group.rank(), .op = op});
  }
  LOCKSTEP_TRY(described(op, peer, group.failure()));
  return is_gone(peer) ? described(op, peer, has_left(peer)) : Status();
}

bool NativeWindow::is_gone(Rank peer) const {
  if (peer == parts_.group->rank()) return false;
  const WindowBlock* block = block_of(peer);
  return block != nullptr ? block->control->gone.load(std::memory_order_acquire) != 0
                          : attendant_->has_left(peer);
}

Status NativeWindow::await(Rank peer, Work& work, std::optional<Deadline> deadline) {
  for (;;) {
    const bool gone = is_gone(peer);  // asked first: what it sent before has come by then
    Deadline look = clock_.in(kLook);
    if (deadline && deadline->at() < look.at()) look = *deadline;
    Status status = work.wait(look);
    if (work.is_completed()) return status;
    if (gone) return has_left(peer);
    if (deadline && deadline->expired()) return status;
  }
}

Status NativeWindow::check_range(const char* op, Rank peer, std::uint64_t offset, std::size_t size) const {
  LOCKSTEP_TRY(admit(op, peer));
  const std::uint64_t whole = size_of(peer).value;
  if (offset <= whole && size <= whole - offset) return {};
  return Status::invalid(cat(op, ": ", Bytes{size}, " at byte ", offset, " do not fit into the ",
                             Bytes{whole}, " of rank ", parts_.group->world_rank(peer)),
                         {.rank = parts_.group->rank(), .op = op, .group = parts_.group->name()});
}

Status NativeWindow::put(Rank to, std::uint64_t offset, ByteView bytes, const OpOptions& options) {
  LOCKSTEP_TRY(check_range("put", to, offset, bytes.size()));
  if (bytes.empty()) return {};
  if (const WindowBlock* block = block_of(to)) {
    std::memcpy(block->data + offset, bytes.data(), bytes.size());
    return {};
  }
  // Kept by the messages: those to a peer that has left stay until the window goes, and the caller's bytes
  // do not.
  struct Asked {
    WindowRequest request;
    Buffer payload;
    std::byte done{};
  };
  const auto asked = std::make_shared<Asked>();
  asked->payload.assign(bytes.begin(), bytes.end());
  asked->request = {
      .kind = WindowRequest::kPut, .number = ++requests_, .offset = offset, .size = bytes.size()};
  Backend& group = *parts_.group;
  const OpOptions within{.deadline = deadline_of(options), .keep = asked};
  const std::array<WorkPtr, 3> works{
      group.send(to, kWindowRequestTag, view_of(asked->request), within),
      group.send(to, payload_tag(asked->request.number), asked->payload, within),
      group.recv(to, reply_tag(asked->request.number), span_of(asked->done), within)};
  Status status;
  for (const WorkPtr& work : works) {
    const Status ended = await(to, *work, std::nullopt);
    if (status.ok()) status = ended;
  }
  return described("put", to, status);
}

Status NativeWindow::get(Rank from, std::uint64_t offset, ByteSpan bytes, const OpOptions& options) {
  LOCKSTEP_TRY(check_range("get", from, offset, bytes.size()));
  if (bytes.empty()) return {};
  if (const WindowBlock* block = block_of(from)) {
    std::memcpy(bytes.data(), block->data + offset, bytes.size());
    return {};
  }
  struct Asked {  // as put()'s
    WindowRequest request;
    Buffer payload;
  };
  const auto asked = std::make_shared<Asked>();
  asked->request = {
      .kind = WindowRequest::kGet, .number = ++requests_, .offset = offset, .size = bytes.size()};
  asked->payload.resize(bytes.size());
  Backend& group = *parts_.group;
  const OpOptions within{.deadline = deadline_of(options), .keep = asked};
  const WorkPtr reply = group.recv(from, reply_tag(asked->request.number), asked->payload, within);
  const WorkPtr ask = group.send(from, kWindowRequestTag, view_of(asked->request), within);
  const Status sent = await(from, *ask, std::nullopt);
  const Status status = await(from, *reply, std::nullopt);
  if (sent.ok() && status.ok()) std::ranges::copy(asked->payload, bytes.begin());
  return described("get", from, sent.ok() ? status : sent);
}

Status NativeWindow::signal(Rank to, const OpOptions& options) {
  LOCKSTEP_TRY(admit("signal", to));
  Backend& group = *parts_.group;
  if (const WindowBlock* block = block_of(to)) {
    const MutexLock lock(signalling_);
    Signal& signal = block->signals[group.rank().value];
    const Signal::Reading last = signal.read(std::memory_order_relaxed);
    if (!last.intact) return described("signal", to, changed_signals(group.world_rank(to)));
    signal.raise(last.value + 1);
    return {};
  }
  const auto word = std::make_shared<const std::byte>();
  const WorkPtr work =
      group.send(to, kWindowSignalTag, view_of(*word), {.deadline = deadline_of(options), .keep = word});
  return described("signal", to, await(to, *work, std::nullopt));
}

Status NativeWindow::wait_signal(Rank from, const OpOptions& options) {
  if (Status status = admit("wait_signal", from); !status.ok() && status.failure() != Failure::kDesync)
    return status;  // who has left may have signalled before
  const Deadline deadline = deadline_of(options);
  const WindowBlock* peer = block_of(from);
  return peer != nullptr ? wait_here(from, own_->block(), *peer, deadline) : wait_message(from, deadline);
}

Status NativeWindow::missing_signal(Rank from) const {
  const Backend& group = *parts_.group;
  const Rank own = group.world_rank(group.rank());
  const Rank peer = group.world_rank(from);
  const std::uint64_t number = heard_[static_cast<std::size_t>(from.value)].taken + std::uint64_t{1};
  return Status::timeout(cat("rank ", own, ": wait_signal: signal #", number, " of rank ", peer,
                             " has not come until the deadline"),
                         {.failure = Failure::kMissingRanks,
                          .rank = own,
                          .peer = peer,
                          .op = "wait_signal",
                          .sequence = number,
                          .group = group.name(),
                          .missing = {peer}});
}

Status NativeWindow::wait_here(Rank from, const WindowBlock& own, const WindowBlock& peer,
                               const Deadline& deadline) {
  Heard& heard = heard_[static_cast<std::size_t>(from.value)];
  Signal* const signal = &own.signals[from.value];
  SignalWatch watch(*parts_.group, *peer.control);
  const std::uint32_t target = heard.taken + 1;
  Waited waited = transport::shm::wait_for_all({&signal, 1}, target, watch, deadline, parts_.patience);
  // It may have signalled before it left.
  if (waited == Waited::kStopped && transport::shm::reached(signal->read().value, target))
    waited = Waited::kReached;
  if (waited == Waited::kReached) {
    heard.taken = target;
    return {};
  }
  if (waited == Waited::kTimeout) return missing_signal(from);
  if (!watch.failure().ok()) return described("wait_signal", from, watch.failure());
  return described("wait_signal", from, has_left(from));
}

Status NativeWindow::has_left(Rank rank) const {
  const Rank peer = parts_.group->world_rank(rank);
  return Status::disconnected(cat("rank ", peer, " has left the window"),
                              {.failure = Failure::kDesync, .peer = peer});
}

Status NativeWindow::wait_message(Rank from, const Deadline& deadline) {
  Heard& heard = heard_[static_cast<std::size_t>(from.value)];
  if (!heard.next) {
    const auto word = std::make_shared<std::byte>();
    heard.next = parts_.group->recv(from, kWindowSignalTag, span_of(*word),
                                    {.deadline = clock_.in(kForLong), .keep = word});
  }
  const Status status = await(from, *heard.next, deadline);
  // The message is still to come: the next wait goes on with it.
  if (status.code() == Code::kTimeout && !heard.next->is_completed()) return missing_signal(from);
  if (heard.next->is_completed()) heard.next = nullptr;
  if (status.ok()) ++heard.taken;
  return described("wait_signal", from, status);
}

Result<SharedMemory> NativeWindow::map(Rank rank) const {
  LOCKSTEP_TRY(admit("map", rank));
  if (rank == parts_.group->rank()) return memory();
  const WindowBlock* block = block_of(rank);
  if (block == nullptr) {
    const Rank peer = parts_.group->world_rank(rank);
    return Status(
        Code::kUnsupported,
        cat("map: rank ", peer, " is on another host, whose memory cannot be mapped; use get() and put()"),
        {.peer = peer, .op = "map", .group = parts_.group->name()});
  }
  return SharedMemory{.bytes = {block->data, size_of(rank).value}, .owner = reach_};
}

}  // namespace lockstep::backend

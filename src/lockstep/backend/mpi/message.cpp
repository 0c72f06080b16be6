#include "lockstep/backend/mpi/message.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"

namespace lockstep::backend::mpi {
namespace {

// How often a message that is waited for is tested before the group's failure is looked at.
constexpr int kLookEvery = 16;

}  // namespace

Message::Message(MessagePlan plan, std::shared_ptr<Mail> mail)
    : plan_(std::move(plan)),
      mail_(std::move(mail)),
      start_(plan_.deadline.clock().now()),
      keep_(plan_.keep) {}

void Message::begin() {
  mail_->add(shared_from_this());
  if (receives()) {
    mail_->expect(shared_from_this());
    return;
  }
  std::optional<Ending> ending;
  {
    const MutexLock lock(mutex_);
    if (done_) return;  // the group has ended
    if (const Status begun = begin_send(); !begun.ok()) ending = end(describe(begun), false);
  }
  if (ending) announce(*ending);
}

Status Message::begin_send() {
  LOCKSTEP_ASSIGN(MessageType type, MessageType::of(plan_.sent.size()));
  type_.emplace(std::move(type));
  if (!keep_) copy_.assign(plan_.sent.begin(), plan_.sent.end());
  const std::byte* const from = keep_ ? plan_.sent.data() : copy_.data();
  is_matched_ = true;
  return status_of(
      MPI_Isend(from, type_->count(), type_->type(), plan_.peer, plan_.tag, plan_.comm, &request_),
      "MPI_Isend");
}

Result<bool> Message::take(MPI_Message message, const MPI_Status& status) {
  const MutexLock lock(mutex_);
  if (done_) return false;
  const std::size_t size = size_of(status);
  source_ = Rank{status.MPI_SOURCE};
  const bool fits = size == plan_.received.size();
  if (!fits) {
    mismatch_ = Status::invalid(cat("rank ", *source_, " of the group has sent ", Bytes{size}, " where ",
                                    Bytes{plan_.received.size()}, " are expected"));
  }
  if (!keep_ || !fits) copy_.resize(size);
  LOCKSTEP_ASSIGN(MessageType type, MessageType::of(size));
  type_.emplace(std::move(type));
  is_matched_ = true;
  std::byte* const to = keep_ && fits ? plan_.received.data() : copy_.data();
  LOCKSTEP_TRY(status_of(MPI_Imrecv(to, type_->count(), type_->type(), &message, &request_), "MPI_Imrecv"));
  return true;
}

bool Message::poll() {
  std::optional<Ending> ending;
  bool waits = false;
  {
    const MutexLock lock(mutex_);
    if (done_) return true;
    waits = !is_matched_;
  }
  const Status matched = waits ? mail_->match(*this) : Status();
  {
    const MutexLock lock(mutex_);
    if (done_) return true;
    if (matched.ok()) {
      ending = poll_locked();
    } else {
      ending = give_up(matched);
    }
  }
  if (!ending) return false;
  announce(*ending);
  return true;
}

std::optional<Message::Ending> Message::poll_locked() {
  if (is_matched_) {
    int done = 0;
    const int tested = MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    if (tested != MPI_SUCCESS) return end(describe(status_of(tested, "MPI_Test")), false);
    if (done != 0) return end(result(), false);
  }
  if (!plan_.deadline.expired()) return std::nullopt;
  return give_up(Status::timeout("it has not ended in time"));
}

Status Message::result() {
  if (!mismatch_.ok()) return describe(mismatch_);
  if (receives() && !keep_ && !copy_.empty()) std::memcpy(plan_.received.data(), copy_.data(), copy_.size());
  return {};
}

Message::Ending Message::give_up(const Status& why) {
  int done = 0;
  if (request_ == MPI_REQUEST_NULL) return end(describe(why), false);
  const bool tested = MPI_Test(&request_, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS;
  return tested && done != 0 ? end(result(), false) : end(describe(why), tested);
}

Message::Ending Message::end(Status status, bool is_abandoned) {
  done_ = true;
  status_ = std::move(status);
  took_ = plan_.deadline.clock().now() - start_;
  if (!is_abandoned) {
    keep_.reset();
    copy_ = {};
  }
  return {.status = status_, .callbacks = std::exchange(callbacks_, {}), .is_abandoned = is_abandoned};
}

void Message::announce(const Ending& ending) {
  if (ending.is_abandoned) {
    mail_->note_abandoned();
    abandon(shared_from_this());
  }
  mail_->remove(plan_.sequence);
  for (const auto& callback : ending.callbacks) callback(ending.status);
}

void Message::fail(const Status& why) {
  std::optional<Ending> ending;
  {
    const MutexLock lock(mutex_);
    if (done_) return;
    ending = give_up(why);
  }
  announce(*ending);
}

Status Message::describe(const Status& status) const {
  if (status.ok() || status.cause().sequence) return status;
  Cause cause = plan_.cause;
  cause.failure = status.failure();
  if (status.cause().peer) cause.peer = status.cause().peer;
  return status.with_cause(std::move(cause)).with_prefix(cat(plan_.who, ": "));
}

Status Message::wait(std::optional<Deadline> deadline) {
  Pause pause;
  while (!poll()) {
    if (pause.count() % kLookEvery == kLookEvery - 1) {
      if (const Status failure = mail_->look(); !failure.ok()) {
        fail(failure);
        break;
      }
      if (deadline && deadline->expired())
        return Status::timeout(cat(plan_.who, " has not ended in time; it goes on."));
    }
    pause();
  }
  const MutexLock lock(mutex_);
  return status_;
}

// Asking makes progress: a program that only asks would never see the end.
bool Message::is_completed() const { return const_cast<Message*>(this)->poll(); }

Status Message::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

void Message::on_complete(std::function<void(const Status&)> then) {
  if (!poll()) {
    {
      const MutexLock lock(mutex_);
      if (!done_) callbacks_.push_back(std::exchange(then, nullptr));
    }
    if (!then) {
      if (const Status watched = mail_->watch(plan_.sequence); !watched.ok()) fail(watched);
      return;
    }
  }
  then(status());
}

std::optional<Rank> Message::source() const {
  const MutexLock lock(mutex_);
  return source_;
}

Duration Message::duration() const {
  const MutexLock lock(mutex_);
  return took_;
}

bool Message::given_back() {
  const MutexLock lock(mutex_);
  int done = 0;
  return request_ == MPI_REQUEST_NULL || MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
         done != 0;
}

void Mail::add(const std::shared_ptr<Message>& message) {
  bool many = false;
  {
    const MutexLock lock(mutex_);
    pending_.emplace(message->sequence(), message);
    many = pending_.size() > ask_beyond_;
  }
  if (!many) return;
  for (const auto& other : pending()) {
    if (other != message) other->poll();
  }
  constexpr std::size_t kLeast = 64;
  const MutexLock lock(mutex_);
  ask_beyond_ = std::max(kLeast, 2 * pending_.size());
}

void Mail::expect(const std::shared_ptr<Message>& receive) {
  const MutexLock lock(mutex_);
  if (pending_.contains(receive->sequence())) expecting_.emplace(receive->sequence(), receive);
}

Status Mail::deliver(const Arrival& arrival) {
  for (auto at = expecting_.begin(); at != expecting_.end();) {
    if (!at->second->wants(arrival.status.MPI_SOURCE, arrival.status.MPI_TAG)) {
      ++at;
      continue;
    }
    const auto taken = at->second->take(arrival.message, arrival.status);
    at = expecting_.erase(at);
    if (!taken.ok()) return taken.status();
    if (*taken) return {};
  }
  arrivals_.push_back(arrival);
  return {};
}

Status Mail::match(const Message& receive) {
  const MutexLock lock(mutex_);
  const int tag = receive.plan().tag;
  for (const Arrival& arrival : std::exchange(arrivals_, {})) LOCKSTEP_TRY(deliver(arrival));
  // An earlier receive from any rank may want what comes from this one.
  const bool any = std::any_of(expecting_.begin(), expecting_.end(), [&](const auto& other) {
    return other.second->plan().peer == MPI_ANY_SOURCE && other.second->plan().tag == tag;
  });
  while (expecting_.contains(receive.sequence())) {
    Arrival arrival{};
    int here = 0;
    LOCKSTEP_TRY(status_of(MPI_Improbe(any ? MPI_ANY_SOURCE : receive.plan().peer, tag, receive.plan().comm,
                                       &here, &arrival.message, &arrival.status),
                           "MPI_Improbe"));
    if (here == 0) return {};
    LOCKSTEP_TRY(deliver(arrival));
  }
  return {};
}

void Mail::remove(std::uint64_t sequence) {
  std::shared_ptr<Message> last;  // destroyed with no lock held
  const MutexLock lock(mutex_);
  watched_.erase(sequence);
  expecting_.erase(sequence);
  if (const auto found = pending_.find(sequence); found != pending_.end()) {
    last = std::move(found->second);
    pending_.erase(found);
  }
}

Status Mail::watch(std::uint64_t sequence) {
  const MutexLock lock(mutex_);
  const auto found = pending_.find(sequence);
  if (found == pending_.end()) return {};  // it has ended meanwhile
  if (!thread_.joinable() && !closed_) {
    LOCKSTEP_ASSIGN(thread_, base::start_thread("lockstep-mpi", [this] { progress(); }));
  }
  watched_.emplace(*found);
  changed_.notify_all();
  return {};
}

std::vector<std::shared_ptr<Message>> Mail::pending() {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Message>> all;
  all.reserve(pending_.size());
  for (const auto& [sequence, message] : pending_) all.push_back(message);
  return all;
}

void Mail::fail(const Status& why) {
  for (const auto& message : pending()) message->fail(why);
}

void Mail::close(const Status& why) {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    thread = std::move(thread_);
    changed_.notify_all();
  }
  fail(why);
  if (thread.joinable()) thread.join();
}

void Mail::progress() {
  Pause pause;
  std::size_t last = 0;
  for (;;) {
    std::vector<std::shared_ptr<Message>> watched;
    {
      const MutexLock lock(mutex_);
      while (watched_.empty() && !closed_) changed_.wait(mutex_);
      if (closed_) return;
      for (const auto& [sequence, message] : watched_) watched.push_back(message);
    }
    const Status failure = look();
    for (const auto& message : watched) {
      if (failure.ok()) {
        message->poll();
      } else {
        message->fail(failure);
      }
    }
    if (watched.size() != last) pause = Pause();
    last = watched.size();
    pause();
  }
}

}  // namespace lockstep::backend::mpi

// A message over MPI, and what the messages of a group share.
//
// A message is tested by whoever waits for it or asks about it, and, if it has a callback, by the group's
// progress thread, which is made for the first such message.
//
// A receive is given to MPI when its message has come and is seen to have the right size: where a message is
// larger than what was expected, MPI libraries have been seen to write behind the end. Until then it waits
// here, in the order in which receives were posted.
//
// Thread safety: any thread. Callbacks run with no lock held.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/backend/mpi/news.h"
#include "lockstep/backend/mpi/transfer.h"
#include "lockstep/backend/work.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"

namespace lockstep::backend::mpi {

class Message;

// The messages of a group that have not ended. Shared with them, because they may outlive the group.
class Mail {
 public:
  // Shared with the group, which may end while a message is waited for.
  explicit Mail(std::shared_ptr<News> news) : news_(std::move(news)) {}

  // Also lets go of those that have ended while nobody asked.
  void add(const std::shared_ptr<Message>& message);
  void remove(std::uint64_t sequence);
  // A receive that waits for its message.
  void expect(const std::shared_ptr<Message>& receive);
  // Gives messages that have come to the receives that wait for them, as far as that concerns `receive`.
  Status match(const Message& receive);
  // Has the progress thread test it until it ends.
  Status watch(std::uint64_t sequence);
  // The group's failure.
  Status look() { return news_->look(); }
  // Every message ends with `why`, as far as it has not, and so do later ones. Then there is no thread.
  void close(const Status& why);
  // Every message that has not ended ends with `why`.
  void fail(const Status& why);
  // Whether MPI still uses one that was given up.
  bool has_abandoned() const { return has_abandoned_; }
  void note_abandoned() { has_abandoned_ = true; }

 private:
  // A message that has come, and is taken by nobody yet.
  struct Arrival {
    MPI_Message message;
    MPI_Status status;
  };
  void progress();
  std::vector<std::shared_ptr<Message>> pending();
  // To the first receive that wants it; kept if there is none.
  Status deliver(const Arrival& arrival) LOCKSTEP_REQUIRES(mutex_);

  const std::shared_ptr<News> news_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, std::shared_ptr<Message>> pending_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<Message>> watched_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<Message>> expecting_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Arrival> arrivals_ LOCKSTEP_GUARDED_BY(mutex_);
  std::thread thread_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t ask_beyond_ LOCKSTEP_GUARDED_BY(mutex_) = 64;  // pending messages; so that asking is rare
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_abandoned_ = false;
};

struct MessagePlan {
  enum class Way : std::uint8_t { kSend, kReceive } way;
  ByteView sent = {};
  ByteSpan received = {};
  int peer = 0;  // or MPI_ANY_SOURCE
  int tag = 0;
  MPI_Comm comm = MPI_COMM_NULL;
  std::uint64_t sequence = 0;
  Deadline deadline;
  std::shared_ptr<const void> keep = {};
  // For errors: "rank 2: send #7".
  std::string who = {};
  Cause cause = {};
};

class Message final : public Work, public Abandoned, public std::enable_shared_from_this<Message> {
 public:
  Message(MessagePlan plan, std::shared_ptr<Mail> mail);

  // A send is given to MPI; a receive waits for its message. An error ends it.
  void begin();
  bool wants(int source, int tag) const {
    return (plan_.peer == MPI_ANY_SOURCE || plan_.peer == source) && plan_.tag == tag;
  }
  const MessagePlan& plan() const { return plan_; }
  // The message of a receive; false if it has ended, and does not take it.
  Result<bool> take(MPI_Message message, const MPI_Status& status);
  // Asks MPI, and the deadline; true once it has ended.
  bool poll();
  // As far as it has not ended: what MPI still uses is kept.
  void fail(const Status& why);

  Status wait(std::optional<Deadline> deadline) override;
  bool is_completed() const override;
  Status status() const override;
  void on_complete(std::function<void(const Status&)> then) override;
  std::optional<Rank> source() const override;
  std::uint64_t sequence() const override { return plan_.sequence; }
  Duration duration() const override;

  bool given_back() override;

 private:
  // What has to be done with no lock held, when a message has ended.
  struct Ending {
    Status status;
    std::vector<std::function<void(const Status&)>> callbacks;
    bool is_abandoned = false;
  };
  bool receives() const { return plan_.way == MessagePlan::Way::kReceive; }
  Status begin_send() LOCKSTEP_REQUIRES(mutex_);
  std::optional<Ending> poll_locked() LOCKSTEP_REQUIRES(mutex_);
  // The result of one that is complete.
  Status result() LOCKSTEP_REQUIRES(mutex_);
  // If it has ended meanwhile, its own result.
  Ending give_up(const Status& why) LOCKSTEP_REQUIRES(mutex_);
  Ending end(Status status, bool is_abandoned) LOCKSTEP_REQUIRES(mutex_);
  void announce(const Ending& ending);
  Status describe(const Status& status) const;

  const MessagePlan plan_;
  const std::shared_ptr<Mail> mail_;  // shared, because a message may outlive its group
  const base::TimePoint start_;
  mutable Mutex mutex_;
  bool is_matched_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // MPI has it
  MPI_Request request_ LOCKSTEP_GUARDED_BY(mutex_) = MPI_REQUEST_NULL;
  std::optional<MessageType> type_ LOCKSTEP_GUARDED_BY(mutex_);
  Status mismatch_ LOCKSTEP_GUARDED_BY(mutex_);  // of sizes
  std::shared_ptr<const void> keep_ LOCKSTEP_GUARDED_BY(mutex_);
  Buffer copy_ LOCKSTEP_GUARDED_BY(mutex_);  // what MPI uses for bytes that are not kept
  bool done_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Status status_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Rank> source_ LOCKSTEP_GUARDED_BY(mutex_);
  Duration took_ LOCKSTEP_GUARDED_BY(mutex_){};
  std::vector<std::function<void(const Status&)>> callbacks_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backend::mpi

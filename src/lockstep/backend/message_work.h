// The Work of a message. Whoever waits for it, or asks whether it is complete, moves it along meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/backend/work.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/transport/messages/progress.h"

namespace lockstep::backend {

// "rank 2: recv #7".
struct MessageName {
  const char* op;  // of static storage
  Rank rank;       // this rank's, in the world
  std::uint64_t sequence;
};

class MessageWork final : public Work {
 public:
  // `keep` is let go of when the message is done with its bytes. `progress` is the messenger's; nothing for a
  // message that is not sent.
  MessageWork(MessageName name, std::shared_ptr<const void> keep, const Clock& clock,
              std::shared_ptr<transport::messages::Progress> progress);

  // With no lock held; only the first time counts. Callbacks run here: all of them, also
  // where one throws; what the last of those has thrown is thrown then.
  void complete(const Status& status, std::optional<Rank> source);

  Status wait(std::optional<Deadline> deadline) override;
  bool is_completed() const override;
  Status status() const override;
  void on_complete(std::function<void(const Status&)> then) override;
  std::optional<Rank> source() const override;
  std::uint64_t sequence() const override { return name_.sequence; }
  Duration duration() const override;

 private:
  // False if it is complete: then it is called at once.
  bool keep_callback(const std::function<void(const Status&)>& then);

  const MessageName name_;
  const Clock& clock_;
  const base::TimePoint start_;
  const std::shared_ptr<transport::messages::Progress> progress_;  // shared with the messenger
  std::atomic<bool> done_ = false;  // set when the rest is; the messenger's bell is rung after it
  mutable Mutex mutex_;
  Status status_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Rank> source_ LOCKSTEP_GUARDED_BY(mutex_);
  Duration took_ LOCKSTEP_GUARDED_BY(mutex_){};
  std::shared_ptr<const void> keep_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::function<void(const Status&)>> callbacks_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backend

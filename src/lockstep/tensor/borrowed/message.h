// The Work of a message of a c10d::Backend. Internal.
//
// Some c10d backends know that a message is complete only when somebody has waited for it: so a callback gets
// a thread that waits, which the end of the group does not wait for.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lockstep/backend/work.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::tensor {

class CallbackThreads {
 public:
  CallbackThreads() = default;
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;
  ~CallbackThreads();
  void run(std::function<void()> body);

 private:
  Mutex mutex_;
  std::vector<std::thread> threads_ LOCKSTEP_GUARDED_BY(mutex_);
};

struct BorrowedMessagePlan {
  std::uint64_t sequence = 0;
  Deadline deadline;
  std::string call = {};                               // of c10d: "recv"
  std::optional<Rank> from = {};                       // of a receive from one rank
  std::function<Status(const Status&)> describe = {};  // says where an error was met
  std::shared_ptr<CallbackThreads> threads = {};       // the group's, which may be gone before
};

class BorrowedMessage final : public Work, public std::enable_shared_from_this<BorrowedMessage> {
 public:
  // `lent` holds the bytes. Nothing: one that was not begun, because of `failed`.
  BorrowedMessage(BorrowedMessagePlan plan, c10::intrusive_ptr<c10d::Work> lent, const Status& failed);

  Status wait(std::optional<Deadline> deadline) override;
  bool is_completed() const override;
  Status status() const override;
  void on_complete(std::function<void(const Status&)> then) override;
  std::optional<Rank> source() const override;
  std::uint64_t sequence() const override { return plan_.sequence; }
  Duration duration() const override;

 private:
  // How it ended.
  struct End {
    Status status;
    std::optional<Rank> source = {};
    Duration took{};
  };
  struct State {
    Mutex mutex;
    c10::intrusive_ptr<c10d::Work> lent LOCKSTEP_GUARDED_BY(mutex);  // until it has ended
    std::optional<End> end LOCKSTEP_GUARDED_BY(mutex);
  };
  // Waits in c10d until then.
  Status wait_for(const c10::intrusive_ptr<c10d::Work>& lent, const Deadline& until, bool is_last) const;
  Status finish(const Status& status, std::optional<Rank> source) const;

  const BorrowedMessagePlan plan_;
  const base::TimePoint start_;
  const std::unique_ptr<State> state_;  // changed by those who only ask, too
};

}  // namespace lockstep::tensor

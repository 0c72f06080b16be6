// The Work of a message: completed by the messenger's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/backend/work.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"

namespace lockstep::backend {

class MessageWork final : public Work {
 public:
  // `keep` is let go of when the message is done with its bytes.
  MessageWork(std::uint64_t sequence, std::shared_ptr<const void> keep, const Clock& clock);

  // Once, with no lock held. Callbacks run here.
  void complete(const Status& status, std::optional<Rank> source);

  Status wait(std::optional<Deadline> deadline) override;
  bool is_completed() const override;
  Status status() const override;
  void on_complete(std::function<void(const Status&)> then) override;
  std::optional<Rank> source() const override;
  std::uint64_t sequence() const override { return sequence_; }
  Duration duration() const override;

 private:
  const std::uint64_t sequence_;
  const Clock& clock_;
  const base::TimePoint start_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool done_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Status status_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Rank> source_ LOCKSTEP_GUARDED_BY(mutex_);
  Duration took_ LOCKSTEP_GUARDED_BY(mutex_){};
  std::shared_ptr<const void> keep_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::function<void(const Status&)>> callbacks_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backend

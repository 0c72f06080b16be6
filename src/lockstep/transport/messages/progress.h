// Progress is how threads move the messages of a messenger themselves: those that wait for one, and the
// attendant, a thread that looks after messages while nobody waits.
//
// Why an attendant: a message may need its receiver to take it out of a full pipe, or its sender to write the
// rest of it, while both are busy with something else: in a barrier, or in the program's own code. Why only
// then: a thread that waits has the message first, with no hand-over, and needs no second thread to be woken
// for each. So the attendant sleeps on the bell only while no other thread has moved anything for kTick and
// none waits. While others do it stays off the bell, and looks again every kTick, or when the last waiter
// leaves. Whoever leaves a callback behind (on_complete) calls it to the bell at once.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/shm/wait.h"

namespace lockstep::transport::messages {

class Progress {
 public:
  static constexpr Duration kTick = std::chrono::milliseconds(2);

  // Moves what can be moved at once.
  enum class Moved : std::uint8_t { kNothing, kSomething, kBusy };
  using Move = std::function<Moved()>;

  // `bell` rings when there may be something to move, and when a message was completed. It is shared with its
  // memory.
  Progress(Move move, std::shared_ptr<shm::Bell> bell, const shm::Patience& patience);

  // Moves what can be moved at once; counts as the work of a thread that is there.
  void poll();
  // Until `done`; false at the deadline, and at once in a forked child, where nothing moves. `done` is asked
  // often, and loads in the seq_cst order what it looks at.
  bool wait(const std::function<bool()>& done, const std::optional<Deadline>& deadline);
  // Somebody has left a callback behind: the attendant has to look.
  void call_attendant();
  // A thread other than the attendant is at work.
  void touch() { touched_.fetch_add(1, std::memory_order_relaxed); }
  bool in_forked_child() const { return base::fork_generation() != fork_generation_; }

  // The attendant's life.
  void attend(const std::atomic<bool>& stop);
  void wake_attendant();

 private:
  void leave();

  const Move move_;
  const std::shared_ptr<shm::Bell> bell_;
  const shm::Patience patience_;
  const std::uint64_t fork_generation_ = base::fork_generation();
  std::atomic<std::uint64_t> touched_ = 0;
  std::atomic<int> waiters_ = 0;
  std::atomic<bool> parked_ = false;  // the attendant waits for `changed_`
  Mutex mutex_;
  CondVar changed_;
  bool called_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// The thread. Destroyed before what it attends to.
class Attendant {
 public:
  // The error is what the system says to another thread.
  static Result<std::unique_ptr<Attendant>> start(std::shared_ptr<Progress> progress);
  ~Attendant();
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

 private:
  explicit Attendant(std::shared_ptr<Progress> progress);

  const std::shared_ptr<Progress> progress_;  // shared with those who wait
  const std::uint64_t fork_generation_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::transport::messages

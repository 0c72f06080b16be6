#include "lockstep/transport/messages/progress.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/thread.h"

namespace lockstep::transport::messages {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSleepSlice = 50ms;
constexpr Duration kLongSleep = 1s;  // of the attendant, which is woken for all that it waits for

}  // namespace

Progress::Progress(Move move, std::shared_ptr<shm::Bell> bell, const shm::Patience& patience)
    : move_(std::move(move)), bell_(std::move(bell)), patience_(patience) {}

void Progress::poll() {
  if (in_forked_child()) return;
  touch();
  (void)move_();
}

bool Progress::wait(const std::function<bool()>& done, const std::optional<Deadline>& deadline) {
  if (in_forked_child()) return false;
  waiters_.fetch_add(1);
  const Clock& clock = deadline ? deadline->clock() : Clock::steady();
  shm::Idling idling(patience_, clock);
  bool in_time = true;
  while (!done()) {
    touch();
    const Moved moved = move_();
    if (moved == Moved::kSomething) {
      idling.reset();
      continue;
    }
    if (done()) break;
    if (idling.pause()) continue;
    if (deadline && deadline->expired()) {
      in_time = false;
      break;
    }
    if (moved == Moved::kBusy) {  // whoever is on the strand may be doing it
      std::this_thread::yield();
      continue;
    }
    const Duration left = deadline ? clock.patience(deadline->remaining()) : kSleepSlice;
    bell_->sleep([&] { return move_() != Moved::kNothing || done(); }, std::min(left, kSleepSlice));
    touch();
  }
  leave();
  return in_time;
}

void Progress::leave() {
  if (waiters_.fetch_sub(1) == 1 && parked_) wake_attendant();
}

void Progress::call_attendant() {
  if (in_forked_child()) return;
  {
    const MutexLock lock(mutex_);
    called_ = true;
  }
  changed_.notify_all();
}

void Progress::wake_attendant() {
  { const MutexLock lock(mutex_); }
  changed_.notify_all();
  bell_->wake();
}

void Progress::attend(const std::atomic<bool>& stop) {
  std::uint64_t seen = 0;
  while (!stop) {
    const std::uint64_t touched = touched_.load(std::memory_order_relaxed);
    {
      const MutexLock lock(mutex_);
      if (!std::exchange(called_, false)) {
        if (std::exchange(seen, touched) != touched) {
          changed_.wait_until(mutex_, Clock::steady().in(kTick));
          continue;
        }
        parked_ = true;
        if (waiters_ > 0 && !stop) changed_.wait_until(mutex_, Clock::steady().in(kLongSleep));
        parked_ = false;
        if (waiters_ > 0) continue;
      }
      seen = touched;
    }
    const auto others = [&] { return stop || touched_.load(std::memory_order_relaxed) != seen; };
    const Moved moved = move_();
    if (moved == Moved::kBusy) std::this_thread::yield();
    if (moved != Moved::kNothing) continue;
    bell_->sleep([&] { return others() || move_() != Moved::kNothing; }, kLongSleep);
  }
}

Attendant::Attendant(std::shared_ptr<Progress> progress)
    : progress_(std::move(progress)), fork_generation_(base::fork_generation()) {}

Result<std::unique_ptr<Attendant>> Attendant::start(std::shared_ptr<Progress> progress) {
  std::unique_ptr<Attendant> attendant(new Attendant(std::move(progress)));
  LOCKSTEP_ASSIGN(attendant->thread_, base::start_thread("lockstep-mail", [self = attendant.get()] {
                    self->progress_->attend(self->stop_);
                  }));
  return attendant;
}

Attendant::~Attendant() {
  if (base::fork_generation() != fork_generation_) {
    base::abandon(thread_);
    return;
  }
  stop_ = true;
  progress_->wake_attendant();
  if (thread_.joinable()) thread_.join();
}

}  // namespace lockstep::transport::messages

#include <pybind11/pybind11.h>

#include "extension/interrupts.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/thread.h"

namespace lockstep::python {
namespace {

// An operation that is over by then is not watched.
constexpr Duration kSoon = std::chrono::milliseconds(50);

std::atomic<bool> g_came = false;
struct sigaction g_before = {};

void note_and_pass_on(int signal, siginfo_t* info, void* context) {
  g_came.store(true);
  if ((g_before.sa_flags & SA_SIGINFO) != 0) {
    g_before.sa_sigaction(signal, info, context);
  } else if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) {
    g_before.sa_handler(signal);
  }
}

// Stands in for the handler of SIGINT.
class StandIn {
 public:
  StandIn() {
    g_came.store(false);
    (void)::sigaction(SIGINT, nullptr, &g_before);
    const bool plain = (g_before.sa_flags & SA_SIGINFO) == 0;
    // The default ends the process, and what is ignored stays so.
    if (plain && (g_before.sa_handler == SIG_DFL || g_before.sa_handler == SIG_IGN)) return;
    struct sigaction ours = g_before;
    ours.sa_sigaction = &note_and_pass_on;
    ours.sa_flags |= SA_SIGINFO;
    installed_ = ::sigaction(SIGINT, &ours, nullptr) == 0;
  }
  ~StandIn() {
    struct sigaction now = {};
    if (!installed_ || ::sigaction(SIGINT, nullptr, &now) != 0) return;
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &note_and_pass_on)
      (void)::sigaction(SIGINT, &g_before, nullptr);
  }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
  bool heard() const { return installed_ && g_came.load(); }

 private:
  bool installed_ = false;
};

// Watches the main thread while it waits. Never destroyed: its thread is there until the process ends.
class Watch {
 public:
  static Watch& only() {
    static Watch* const watch = new Watch;
    return *watch;
  }

  bool enter(const std::function<void()>& stop) {
    if (::gettid() != ::getpid()) return false;
    const MutexLock lock(mutex_);
    if (stop_ != nullptr) return false;  // the outer one watches
    if (pid_ != ::getpid()) {            // in a forked child there is no thread yet
      auto thread = base::start_thread("lockstep-signal", [this] { watch(); });
      if (!thread.ok()) return false;
      thread->detach();
      pid_ = ::getpid();
    }
    stop_ = &stop;
    ++number_;
    if (sleeps_) changed_.notify_one();
    return true;
  }
  void leave() {
    const MutexLock lock(mutex_);
    stop_ = nullptr;
  }

 private:
  // Asks 20 times a second whether the same operation still runs, as long as there was one.
  void watch() {
    std::uint64_t seen = 0;
    while (true) {
      {
        const MutexLock lock(mutex_);
        if (number_ == seen && stop_ == nullptr) {
          sleeps_ = true;
          while (stop_ == nullptr && number_ == seen) changed_.wait(mutex_);
          sleeps_ = false;
        }
        seen = number_;
      }
      pause();
      if (runs(seen)) stand_in(seen);
    }
  }
  void stand_in(std::uint64_t number) {
    const StandIn handler;
    while (runs(number)) {
      if (handler.heard()) {
        const MutexLock lock(mutex_);  // as long as the thread cannot leave, `stop` is there
        if (stop_ != nullptr && number_ == number) (*stop_)();
        return;
      }
      pause();
    }
  }
  bool runs(std::uint64_t number) {
    const MutexLock lock(mutex_);
    return stop_ != nullptr && number_ == number;
  }
  static void pause() { std::this_thread::sleep_for(kSoon); }

  Mutex mutex_;
  CondVar changed_;
  const std::function<void()>* stop_ LOCKSTEP_GUARDED_BY(mutex_) =
      nullptr;  // nothing: the thread does not wait
  std::uint64_t number_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool sleeps_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  int pid_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of the process that has the thread
};

}  // namespace

Interruptible::Interruptible(const std::function<void()>& stop) : watched_(Watch::only().enter(stop)) {}
Interruptible::~Interruptible() {
  if (watched_) Watch::only().leave();
}

void check_signals() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

WithoutGil::WithoutGil()
    : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
WithoutGil::~WithoutGil() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

}  // namespace lockstep::python

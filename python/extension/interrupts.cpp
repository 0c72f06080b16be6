#include <pybind11/pybind11.h>

#include "extension/interrupts.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/thread.h"

namespace lockstep::python {
namespace {

// How soon an operation is looked at.
constexpr Duration kSoon = std::chrono::milliseconds(50);

std::atomic<bool> g_came = false;  // since the operation began that is watched
struct sigaction g_before = {};

void note_and_pass_on(int signal, siginfo_t* info, void* context) {
  static volatile std::sig_atomic_t inside = 0;
  if (inside != 0) return;  // the one before it calls this one
  inside = 1;
  g_came.store(true);
  if ((g_before.sa_flags & SA_SIGINFO) != 0) {
    g_before.sa_sigaction(signal, info, context);
  } else {
    g_before.sa_handler(signal);
  }
  inside = 0;
}

// Goes before the handler of SIGINT that is there, and stays. The default ends the process, and what is
// ignored stays so.
void go_before_the_handler() {
  struct sigaction now = {};
  if (::sigaction(SIGINT, nullptr, &now) != 0) return;
  const bool plain = (now.sa_flags & SA_SIGINFO) == 0;
  if (plain && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
  if (!plain && now.sa_sigaction == &note_and_pass_on) return;
  g_before = now;
  now.sa_sigaction = &note_and_pass_on;
  now.sa_flags |= SA_SIGINFO;
  (void)::sigaction(SIGINT, &now, nullptr);
}

// Asked once in each process for each thread.
bool is_main_thread() {
  static thread_local std::uint64_t asked_in = ~std::uint64_t{0};
  static thread_local bool is_main = false;
  if (const std::uint64_t generation = base::fork_generation(); asked_in != generation) {
    asked_in = generation;
    is_main = ::gettid() == ::getpid();
  }
  return is_main;
}

// Watches the main thread while it waits. Never destroyed: its thread is there until the process ends.
class Watch {
 public:
  static Watch& only() {
    static Watch* const watch = new Watch;
    return *watch;
  }

  bool enter(const std::function<void()>& stop) {
    if (!is_main_thread()) return false;
    const MutexLock lock(mutex_);
    if (stop_ != nullptr) return false;                            // the outer one watches
    if (!has_thread_ || generation_ != base::fork_generation()) {  // a forked child has none yet
      go_before_the_handler();
      auto thread = base::start_thread("lockstep-signal", [this] { watch(); });
      if (!thread.ok()) return false;
      thread->detach();
      has_thread_ = true;
      generation_ = base::fork_generation();
    }
    g_came.store(false);
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
      std::this_thread::sleep_for(kSoon);
      look(seen);
    }
  }
  void look(std::uint64_t number) {
    const MutexLock lock(mutex_);  // as long as the thread cannot leave, `stop` is there
    if (stop_ == nullptr || number_ != number) return;
    if (g_came.exchange(false)) return (*stop_)();
    go_before_the_handler();  // the program may have set one of its own
  }

  Mutex mutex_;
  CondVar changed_;
  const std::function<void()>* stop_ LOCKSTEP_GUARDED_BY(mutex_) =
      nullptr;  // nothing: the thread does not wait
  std::uint64_t number_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool sleeps_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool has_thread_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::uint64_t generation_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of the process that has the thread
};

}  // namespace

Interruptible::Interruptible(const std::function<void()>& stop) : watched_(Watch::only().enter(stop)) {}
Interruptible::~Interruptible() {
  if (watched_) Watch::only().leave();
}

void check_signals() {
  if (!is_main_thread() || Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

WithoutGil::WithoutGil()
    : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
WithoutGil::~WithoutGil() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

}  // namespace lockstep::python

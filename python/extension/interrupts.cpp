#include <pybind11/pybind11.h>

#include "extension/interrupts.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/thread.h"

namespace lockstep::python {
namespace {

// How soon an operation is looked at.
constexpr Duration kSoon = std::chrono::milliseconds(50);

// A signal that Python has noted too, and may have handled already: who waits next asks it.
std::atomic<bool> g_came = false;

// A handler that ours went before, and the one that ours had gone before when it was set: ours is what it
// passes a signal on to, and must go on from there. One that comes back does so with what was before it.
// Never changed once it is seen.
struct Before {
  struct sigaction handler = {};
  const Before* earlier = nullptr;
};
std::array<Before, 8> g_befores = {};
std::atomic<const Before*> g_before = nullptr;  // the last

void note_and_pass_on(int signal, siginfo_t* info, void* context) {
  static std::atomic<const Before*> inside = nullptr;  // whose handler runs
  const Before* const outer = inside;
  const Before* const next = outer == nullptr ? g_before.load() : outer->earlier;
  if (next == nullptr) return;
  inside = next;
  if ((next->handler.sa_flags & SA_SIGINFO) != 0) {
    next->handler.sa_sigaction(signal, info, context);
  } else {
    next->handler.sa_handler(signal);
  }
  inside = outer;
  g_came.store(true);  // last: who finds it asks Python, on another thread maybe
}

bool is_same(const struct sigaction& left, const struct sigaction& right) {
  const bool plain = (left.sa_flags & SA_SIGINFO) == 0;
  if (plain != ((right.sa_flags & SA_SIGINFO) == 0)) return false;
  return plain ? left.sa_handler == right.sa_handler : left.sa_sigaction == right.sa_sigaction;
}

// Goes before the handler of SIGINT that is there, and stays. The default ends the process, and what is
// ignored stays so. One thread at a time.
void go_before_the_handler() {
  struct sigaction now = {};
  if (::sigaction(SIGINT, nullptr, &now) != 0) return;
  const bool plain = (now.sa_flags & SA_SIGINFO) == 0;
  if (plain && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
  if (!plain && now.sa_sigaction == &note_and_pass_on) return;
  for (Before& before : g_befores) {
    const bool is_free = before.handler.sa_handler == nullptr;
    if (!is_free && !is_same(before.handler, now)) continue;
    if (is_free) before = {.handler = now, .earlier = g_before.load()};
    g_before = &before;
    now.sa_sigaction = &note_and_pass_on;
    now.sa_flags |= SA_SIGINFO;
    (void)::sigaction(SIGINT, &now, nullptr);
    return;
  }
}

std::atomic<pid_t> g_ending = 0;  // the thread on which the interpreter ends

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

// Whether Python raises KeyboardInterrupt for SIGINT. What a handler of the program's own does shows only
// when it is run, and only the main thread may run it.
bool is_pythons_handler() {
  if (g_ending != 0 || Py_IsInitialized() == 0) return true;
  const pybind11::gil_scoped_acquire gil;
  try {
    const auto module = pybind11::module_::import("signal");
    return module.attr("getsignal")(SIGINT).is(module.attr("default_int_handler"));
  } catch (const pybind11::error_already_set&) {
    return true;
  }
}

}  // namespace

// Watches the main thread while it waits. Never destroyed: its thread is there until the process ends.
class Watch {
 public:
  // Nothing on another thread than the main one. A forked child, which has no thread of its parent's, has
  // another.
  static Watch* of_this_thread() {
    if (!is_main_thread()) return nullptr;
    static Watch* watch = nullptr;  // both are the main thread's
    static std::uint64_t made_in = 0;
    if (watch == nullptr || made_in != base::fork_generation()) {
      watch = new Watch;
      made_in = base::fork_generation();
    }
    return watch;
  }

  // False where there is nobody to watch, or the outer call of two watches.
  bool enter(const std::function<void()>& stop) {
    const bool is_new = !has_thread_;
    if (is_new && !start()) return false;
    // What came before is Python's to raise now, unless it has; what comes after ends the operation.
    if (g_came.exchange(false) || is_new) check_signals();
    const MutexLock lock(mutex_);
    if (stop_ != nullptr) return false;
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
  bool start() {
    go_before_the_handler();
    auto thread = base::start_thread("lockstep-signal", [this] { watch(); });
    if (!thread.ok()) return false;
    thread->detach();
    has_thread_ = true;
    return true;
  }

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
      go_before_the_handler();  // the program may have set one of its own
      look(seen);
    }
  }
  void look(std::uint64_t number) {
    {
      const MutexLock lock(mutex_);
      if (stop_ == nullptr || number_ != number || !g_came.exchange(false)) return;
    }
    const bool at_once = is_pythons_handler();
    const MutexLock lock(mutex_);  // as long as the thread cannot leave, `stop` is there
    if (stop_ == nullptr || number_ != number) return;
    if (at_once || pressed_in_ == number) (*stop_)();
    pressed_in_ = number;
  }

  bool has_thread_ = false;  // the main thread's
  Mutex mutex_;
  CondVar changed_;
  const std::function<void()>* stop_ LOCKSTEP_GUARDED_BY(mutex_) =
      nullptr;  // nothing: the thread does not wait
  std::uint64_t number_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t pressed_in_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // the last wait in which a signal came
  bool sleeps_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

Interruptible::Interruptible(const std::function<void()>& stop) : watch_(Watch::of_this_thread()) {
  if (watch_ != nullptr && !watch_->enter(stop)) watch_ = nullptr;
}
Interruptible::~Interruptible() {
  if (watch_ != nullptr) watch_->leave();
}

void check_signals() {
  if (!is_main_thread() || Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

void wait_aside(std::function<void()> body) {
  const WithoutGil without_gil;
  if (!is_main_thread()) return body();
  struct Aside {
    Mutex mutex;
    CondVar changed;
    bool ended LOCKSTEP_GUARDED_BY(mutex) = false;
    std::exception_ptr error LOCKSTEP_GUARDED_BY(mutex) = {};
  };
  const auto aside = std::make_shared<Aside>();  // shared with the thread, which may outlive this call
  const std::function<void()> run = [aside, body = std::move(body)]() mutable {
    std::exception_ptr error;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    body = nullptr;  // what it has is let go of before this call returns
    const MutexLock lock(aside->mutex);
    aside->ended = true;
    aside->error = std::move(error);
    aside->changed.notify_one();
  };
  auto thread = base::start_thread("lockstep-aside", run);
  if (thread.ok()) {
    thread->detach();
  } else {
    run();
  }
  for (bool ended = false; !ended;) {
    check_signals();
    const MutexLock lock(aside->mutex);
    const Deadline soon = Clock::steady().in(kSoon);
    while (!aside->ended && aside->changed.wait_until(aside->mutex, soon)) {
    }
    ended = aside->ended;
    if (aside->error) std::rethrow_exception(aside->error);
  }
}

void stop_other_threads() { g_ending = ::gettid(); }

WithoutGil::WithoutGil()
    : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
WithoutGil::~WithoutGil() {
  if (const pid_t ending = g_ending; ending != 0 && ending != ::gettid()) {
    while (true) ::pause();
  }
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

}  // namespace lockstep::python

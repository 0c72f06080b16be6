#include "lockstep/transport/loop.h"

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <future>
#include <system_error>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"

namespace lockstep::transport {
namespace {

// Far enough; the timer looks again then.
constexpr Duration kLongestWait = std::chrono::hours(1);

}  // namespace

struct Loop::Impl {
  // A hint of one would keep what the loop itself posts aside until its task is done, and let what others
  // post meanwhile overtake it.
  asio::io_context context{2};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::thread thread;
};

Result<std::unique_ptr<Loop>> Loop::start(const char* name, const Clock& clock) {
  try {
    auto impl = std::make_unique<Impl>();
    asio::io_context& context = impl->context;
    LOCKSTEP_ASSIGN(impl->thread, base::start_thread(name, [&context] { context.run(); }));
    return std::unique_ptr<Loop>(new Loop(std::move(impl), clock));
  } catch (const std::system_error& error) {
    return Status::from_errno(cat("The loop ", name, " cannot be made"), error.code().value());
  }
}

Loop::Loop(std::unique_ptr<Impl> impl, const Clock& clock)
    : clock_(clock), fork_generation_(base::fork_generation()), impl_(std::move(impl)) {}

Loop::~Loop() {
  if (in_forked_child()) {
    // The thread is not in this process, and the epoll set is shared with the parent: both are left.
    static_cast<void>(impl_.release());
    return;
  }
  LOCKSTEP_CHECK(!is_this_thread(), "a transport is not destroyed in a callback of its own");
  LOCKSTEP_CHECK(guests_ == 0, "a transport outlives its connections and listeners");
  impl_->work.reset();
  impl_->thread.join();
}

base::TimePoint Loop::time_of(const Deadline& deadline) const {
  LOCKSTEP_CHECK(&deadline.clock() == &clock_, "a deadline is on the clock of the transport it is given to");
  return deadline.at();
}

asio::io_context& Loop::context() { return impl_->context; }

bool Loop::is_this_thread() const { return impl_->thread.get_id() == std::this_thread::get_id(); }

bool Loop::in_forked_child() const { return base::fork_generation() != fork_generation_; }

void Loop::run_and_drain(std::function<void()> task) {
  if (in_forked_child()) return;
  if (is_this_thread()) return task();
  // Shared: whoever waits may be gone before set_value() has returned.
  const auto drained = std::make_shared<std::promise<void>>();
  post([this, &task, drained] {
    task();
    // After all that the task has posted.
    post([drained] { drained->set_value(); });
  });
  drained->get_future().wait();
}

Timer::Timer(Loop& loop)
    : state_(std::make_shared<State>(
          State{.timer = asio::steady_timer(loop.context()), .clock = loop.clock(), .ring = nullptr})) {}

void Timer::arm_on_loop(base::TimePoint at, std::function<void()> ring) {
  disarm_on_loop();
  if (at == base::TimePoint::max()) return;
  state_->at = at;
  state_->ring = std::move(ring);
  wait_on_loop(state_);
}

void Timer::disarm_on_loop() {
  if (!armed()) return;
  ++state_->round;
  state_->ring = nullptr;
  state_->timer.cancel();
}

void Timer::wait_on_loop(const std::shared_ptr<State>& state) {
  const Duration left = std::max(Duration::zero(), state->at - state->clock.now());
  state->timer.expires_after(std::min(state->clock.patience(left), kLongestWait));
  state->timer.async_wait([state, round = state->round](const asio::error_code&) {
    if (state->round != round) return;
    if (state->clock.now() < state->at) return wait_on_loop(state);
    ++state->round;
    std::exchange(state->ring, nullptr)();
  });
}

}  // namespace lockstep::transport

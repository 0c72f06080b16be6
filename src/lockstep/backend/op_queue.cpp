#include "lockstep/backend/op_queue.h"

#include <exception>
#include <list>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/backend/callback_scope.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"

namespace lockstep::backend {
namespace {

Status from_a_callback(const std::string& whose) {
  return Status::invalid(
      cat(whose,
          "a collective was started in a completion callback, on the thread that would have to run it; start "
          "it on a thread of your own."));
}

Status waits_for_itself(const std::string& whose, std::string_view name, std::uint64_t number) {
  return Status::invalid(
      cat(whose, name, " #", number,
          " is waited for in a completion callback of its group, on the thread that would have to complete "
          "it; wait for it on a thread of your own."));
}

Status waited_behind(const std::string& whose, std::string_view name, std::uint64_t number,
                     const std::string& behind) {
  return Status::timeout(
      cat(whose, name, " #", number, " could not begin until its deadline: ", behind, " has not ended"),
      {.failure = Failure::kMissingRanks, .op = std::string(name), .sequence = number});
}

Status of_the_parent(const std::string& whose) {
  return Status::invalid(cat(whose, "the operation belongs to the parent of this forked process."),
                         {.failure = Failure::kForked});
}

}  // namespace

using Callback = std::function<void(const Status&)>;
// Callbacks and what they are told: handing a list on takes no memory.
using Callbacks = std::list<std::pair<Callback, Status>>;

// Operations that will not run; their bodies are destroyed with it, with no lock held.
struct OpQueue::Dropped {
  ~Dropped();
  std::list<std::shared_ptr<Op>> ops;
};

// What ends an operation, or takes it out of the queue, takes no memory: there may be none.
struct OpQueue::State {
  State(const Clock& given, std::string owner) : clock(given), whose(std::move(owner)) {}

  // Where the worker, and whoever held the mutex, do not exist.
  bool in_forked_child() const { return base::fork_generation() != made_in; }

  const Clock& clock;
  const std::string whose;  // "rank 2: group \"pair\": ", or nothing
  const std::uint64_t made_in = base::fork_generation();
  Mutex mutex;
  CondVar changed;
  std::list<std::shared_ptr<Op>> pending LOCKSTEP_GUARDED_BY(mutex);  // issued, not begun; in order
  Callbacks callbacks LOCKSTEP_GUARDED_BY(mutex);
  // What runs; a number of 0 is that of run_alone().
  struct Running {
    std::string_view name;
    std::uint64_t number = 0;
  };
  std::optional<Running> running LOCKSTEP_GUARDED_BY(mutex);
  bool stopped LOCKSTEP_GUARDED_BY(mutex) = false;
  Status failure LOCKSTEP_GUARDED_BY(mutex);
  std::uint64_t issued LOCKSTEP_GUARDED_BY(mutex) = 0;

  std::thread worker LOCKSTEP_GUARDED_BY(mutex);
  const Status no_memory =
      Status::internal(cat(whose, "this process is out of memory"), {.failure = Failure::kNoMemory});

  // Whether the first of `pending` can be run by whoever is there: an operation without a body is the place
  // of a thread that will run it itself. Whoever has less time than the operation must not run it.
  bool can_run_next(const std::optional<Deadline>& until = std::nullopt) LOCKSTEP_REQUIRES(mutex);
  void run_next() LOCKSTEP_REQUIRES(mutex);
  Status run_body(Op& op) const;
  void complete(Op& op, Status status) LOCKSTEP_REQUIRES(mutex);
  // `dropped`, which is empty, is given what will not run.
  void fail(const Status& why, Dropped& dropped) LOCKSTEP_REQUIRES(mutex);
  Status late(const Turn& turn, std::uint64_t number) LOCKSTEP_REQUIRES(mutex);
  Status destroyed() const;
  // What the operation that is the first of `pending`, or waits there, waits for: "all_reduce #3".
  std::string before_all() LOCKSTEP_REQUIRES(mutex);
  static Status make_worker(const std::shared_ptr<State>& state) LOCKSTEP_REQUIRES(state->mutex);
  void work();
};

struct OpQueue::Op final : public Work, public std::enable_shared_from_this<Op> {
  Op(std::shared_ptr<State> in, Deadline until) : state(std::move(in)), deadline(until) {}

  Status wait(std::optional<Deadline> until) override {
    if (state->in_forked_child()) return of_the_parent(state->whose);
    const MutexLock lock(state->mutex);
    while (!done) {
      if (CallbackScope::is_of(state.get())) return waits_for_itself(state->whose, name, number);
      if (!CallbackScope::is_here() && state->can_run_next(until)) {
        state->run_next();
        continue;
      }
      if (!until) {
        state->changed.wait(state->mutex);
        continue;
      }
      if (until->expired())
        return Status::timeout(cat(state->whose, name, " #", number, " has not ended in time; it goes on."));
      state->changed.wait_until(state->mutex, *until);
    }
    return result;
  }
  bool is_completed() const override {
    if (state->in_forked_child()) return false;
    const MutexLock lock(state->mutex);
    return done;
  }
  Status status() const override {
    if (state->in_forked_child()) return {};
    const MutexLock lock(state->mutex);
    return done ? result : Status();
  }
  void on_complete(Callback then) override {
    Status ended;
    if (state->in_forked_child()) {
      ended = of_the_parent(state->whose);
    } else {
      const MutexLock lock(state->mutex);
      if (!done) {
        callbacks.emplace_back(std::move(then), Status());
        return;
      }
      if (!state->stopped && State::make_worker(state).ok()) {
        state->callbacks.emplace_back(std::move(then), result);
        state->changed.notify_all();
        return;
      }
      ended = result;
    }
    const CallbackScope scope(state.get());
    then(ended);  // the group has no thread any more
  }
  std::optional<Rank> source() const override { return std::nullopt; }
  std::uint64_t sequence() const override { return number; }
  Duration duration() const override {
    if (state->in_forked_child()) return {};
    const MutexLock lock(state->mutex);
    return took;
  }

  const std::shared_ptr<State> state;
  const Deadline deadline;
  // Set before anyone else sees it.
  std::uint64_t number = 0;
  std::string_view name = "operation";
  // Guarded by state->mutex, which the analysis cannot name from here.
  Body body;
  Callbacks callbacks;
  bool done = false;
  Status result;
  Duration took{};
};

void OpQueue::State::complete(Op& op, Status status) {
  op.done = true;
  op.result = std::move(status);
  for (auto& [callback, told] : op.callbacks) told = op.result;
  callbacks.splice(callbacks.end(), op.callbacks);
}

bool OpQueue::State::can_run_next(const std::optional<Deadline>& until) {
  if (running || pending.empty() || !pending.front()->body) return false;
  return !until || until->at() >= pending.front()->deadline.at();
}

void OpQueue::State::run_next() {
  const std::shared_ptr<Op> op = std::move(pending.front());
  pending.pop_front();
  running = {.name = op->name, .number = op->number};
  mutex.unlock();
  const base::TimePoint start = clock.now();
  Status status = run_body(*op);
  op->body = nullptr;  // lets go of what it kept
  const Duration took = clock.now() - start;
  mutex.lock();
  op->took = took;
  complete(*op, std::move(status));
  running.reset();
  changed.notify_all();
}

Status OpQueue::State::run_body(Op& op) const {
  try {
    try {
      return op.body(op.number);
    } catch (const std::bad_alloc&) {
      return no_memory;
    } catch (const std::exception& thrown) {
      return Status::internal(cat(whose, op.name, " #", op.number, " has thrown: ", thrown.what()));
    } catch (...) {
      return Status::internal(cat(whose, op.name, " #", op.number, " has thrown"));
    }
  } catch (const std::bad_alloc&) {
    return no_memory;
  }
}

Status OpQueue::State::make_worker(const std::shared_ptr<State>& state) {
  if (state->worker.joinable()) return {};
  LOCKSTEP_ASSIGN(state->worker, base::start_thread("lockstep-ops", [state] { state->work(); }));
  return {};
}

void OpQueue::State::work() {
  const MutexLock lock(mutex);
  while (!stopped || !callbacks.empty()) {
    if (!callbacks.empty()) {
      Callbacks first;
      first.splice(first.end(), callbacks, callbacks.begin());
      mutex.unlock();
      {
        const CallbackScope scope(this);
        first.front().first(first.front().second);
        first.clear();
      }
      mutex.lock();
    } else if (can_run_next()) {
      run_next();
    } else {
      changed.wait(mutex);
    }
  }
}

OpQueue::Dropped::~Dropped() {
  for (const auto& op : ops) op->body = nullptr;
}

OpQueue::OpQueue(const Clock& clock, std::string whose)
    : state_(std::make_shared<State>(clock, whose.empty() ? std::move(whose) : whose + ": ")) {}

OpQueue::~OpQueue() {
  if (state_->in_forked_child()) {
    static_cast<void>(new (std::nothrow) std::shared_ptr<State>(state_));  // the parent's; never destroyed
    return;
  }
  fail(state_->destroyed());
  std::thread worker;
  {
    const MutexLock lock(state_->mutex);
    state_->stopped = true;
    state_->changed.notify_all();
    while (state_->running) state_->changed.wait(state_->mutex);
    worker = std::move(state_->worker);
  }
  if (!worker.joinable()) return;
  // In a callback of its own the worker cannot be waited for; it ends after that.
  if (worker.get_id() == std::this_thread::get_id()) {
    worker.detach();
  } else {
    worker.join();
  }
}

OpQueue::Begun OpQueue::begin_run(const Turn& turn) {
  if (CallbackScope::is_here()) return {.refused = from_a_callback(state_->whose)};
  std::shared_ptr<State> held;  // the queue may be destroyed while this thread waits
  Dropped dropped;
  State& state = *state_;
  const MutexLock lock(state.mutex);
  if (!state.failure.ok()) return {.refused = state.failure};
  if (!state.running && state.pending.empty()) {
    const std::uint64_t sequence = ++state.issued;
    state.running = {.name = turn.name, .number = sequence};
    return {.sequence = sequence};
  }
  // A place in the order, to be taken by this thread when it comes to the front.
  held = state_;
  const auto place = std::make_shared<Op>(held, turn.deadline);
  state.pending.push_back(place);
  const std::uint64_t sequence = ++state.issued;
  place->number = sequence;
  place->name = turn.name;
  while (!place->done && (state.running || state.pending.front() != place)) {
    if (state.can_run_next(turn.deadline)) {
      state.run_next();
    } else if (turn.deadline.expired()) {
      const Status late = state.late(turn, sequence);
      state.fail(late, dropped);
      return {.sequence = sequence, .late = late};
    } else {
      state.changed.wait_until(state.mutex, turn.deadline);
    }
  }
  if (place->done) return {.sequence = sequence, .refused = place->result};
  state.pending.pop_front();
  state.running = {.name = turn.name, .number = sequence};
  return {.sequence = sequence};
}

void OpQueue::end_run() {
  const MutexLock lock(state_->mutex);
  state_->running.reset();
  state_->changed.notify_all();
}

WorkPtr OpQueue::start(Body body, const Deadline& deadline, std::uint64_t numbers, std::string_view name) {
  if (CallbackScope::is_here()) return ended(from_a_callback(state_->whose));
  const auto op = std::make_shared<Op>(state_, deadline);
  op->body = std::move(body);
  op->name = name;
  const MutexLock lock(state_->mutex);
  if (!state_->failure.ok()) {
    op->body = nullptr;
    state_->complete(*op, state_->failure);
    return op;
  }
  if (const Status made = State::make_worker(state_); !made.ok()) {
    op->body = nullptr;
    state_->complete(*op, made);
    return op;
  }
  state_->pending.push_back(op);
  op->number = state_->issued + 1;
  state_->issued += numbers;
  state_->changed.notify_all();
  return op;
}

WorkPtr OpQueue::ended(const Status& status) const {
  const auto op = std::make_shared<Op>(state_, Deadline(state_->clock, base::TimePoint::max()));
  const MutexLock lock(state_->mutex);
  state_->complete(*op, status);
  return op;
}

std::string OpQueue::State::before_all() {
  const Running first =
      running ? *running : Running{.name = pending.front()->name, .number = pending.front()->number};
  return first.number == 0 ? std::string(first.name) : cat(first.name, " #", first.number);
}

Status OpQueue::State::late(const Turn& turn, std::uint64_t number) {
  try {
    return waited_behind(whose, turn.name, number, before_all());
  } catch (const std::bad_alloc&) {
    return no_memory;
  }
}

Status OpQueue::State::destroyed() const {
  try {
    return Status::aborted("the group was destroyed", {.failure = Failure::kClosed});
  } catch (const std::bad_alloc&) {
    return no_memory;
  }
}

void OpQueue::State::fail(const Status& why, Dropped& dropped) {
  if (!failure.ok()) return;
  failure = why;
  pending.swap(dropped.ops);
  for (const auto& op : dropped.ops) complete(*op, why);
  changed.notify_all();
}

void OpQueue::fail(const Status& why) {
  Dropped dropped;
  const MutexLock lock(state_->mutex);
  state_->fail(why, dropped);
}

void OpQueue::run_alone(const std::function<void()>& body) {
  {
    const MutexLock lock(state_->mutex);
    while (state_->running) state_->changed.wait(state_->mutex);
    state_->running = {.name = "the end of the group"};
  }
  const RunEnd end{*this};
  body();
}

bool OpQueue::busy() const {
  const MutexLock lock(state_->mutex);
  return state_->running.has_value();
}

Status OpQueue::failure() const {
  const MutexLock lock(state_->mutex);
  return state_->failure;
}

std::uint64_t OpQueue::last_sequence() const {
  const MutexLock lock(state_->mutex);
  return state_->issued;
}

}  // namespace lockstep::backend

// One rank of a chaos test: joins, runs steps whose results it knows, injects the fault of its plan if it is
// a victim, and reports what it meets. chaos.py starts it, and docs/reliability.md tells what is tested.
//
//   chaos_rank --seed N --steps N --fault NAME --victims R,R --step N --delay-us N --stall-ms N
//              --timeout-ms N ...                                                (the rest is in plan.cpp)
//
// Events: joining, joined, inject, failed (a status; "phase" says where), again (the error of one more
// operation), wrong, finished, left, end (what this process still holds).
#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <thread>

#include "faults.h"
#include "lockstep/backend/native/native_world.h"
#include "lockstep/backend/operations.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "plan.h"
#include "report.h"
#include "scenes.h"
#include "spoilt_links.h"
#include "steps.h"

namespace lockstep::chaos {
namespace {

using namespace std::chrono_literals;

constexpr int kStepsOfTheRest = 20;
// Half of a world without its lowest rank waits so long before it goes on alone.
constexpr Duration kPatience = 5s;
// Of fault "stop_barrier": the time of the barrier, and of a shrink that cannot succeed.
constexpr Duration kBarrierTime = 1s;
constexpr Duration kImpatience = 2s;

// Victims make another call than the others.
bool disagrees(const Plan& plan) {
  return plan.fault.starts_with("other_") || plan.fault == "same_size_dtype";
}

bool needs_all(Way way) {
  return way == Way::kBarrier || way == Way::kAllReduce || way == Way::kAllReduceShared ||
         way == Way::kAllGather || way == Way::kAllToAll;
}

// What everybody does in the step of the fault: one that needs all ranks at once, where the fault is to be
// seen by all.
Step step_at(const Plan& plan, int number, WorldSize size) {
  Step step = step_of(plan.seed, number, size);
  step.count = std::min(step.count, plan.largest);
  if (number == plan.step && (disagrees(plan) || plan.fault == "skip"))
    return step_to_disagree_on(plan, step);
  if (number == plan.step && plan.fault == "sleep" && !needs_all(step.way)) step.way = Way::kAllReduce;
  if (number == plan.step + 1 && plan.fault == "skip") step.way = Way::kBarrier;
  return step;
}

class RankProgram {
 public:
  RankProgram(const Plan& plan, const Environment& environment)
      : plan_(plan),
        environment_(environment),
        rank_(environment.rank.value_or(0)),
        victim_(plan.is_victim(rank_)),
        spoilt_links_(plan, rank_) {}

  int run() {
    json before = resources();
    if (victim_) {
      if (const Status status = prepare(plan_); !status.ok()) return fail("prepare", status);
      if (is_sudden(plan_.fault) && plan_.step < 0)
        alarm_.set(plan_.delay, [this] { inject_sudden(plan_.fault); });
    }
    play();
    if (victim_ && is_sudden(plan_.fault) && plan_.step == plan_.steps)
      alarm_.set(plan_.delay, [this] { inject_sudden(plan_.fault); });
    if (plan_.step < plan_.steps) alarm_.wait();  // it uses the world
    world_.reset();
    report("left");
    alarm_.wait();
    json after = resources_after(before);
    report("end", {{"before", std::move(before)}, {"after", std::move(after)}});
    return 0;
  }

 private:
  static int fail(const char* phase, const Status& status) {
    json said = to_json(status);
    said["phase"] = phase;
    report(is_wrong(status) ? "wrong" : "failed", said);
    return 1;
  }

  void play() {
    report("joining");
    using transport::link::SocketCalls;
    const bool spoils = victim_ && plan_.fault == "links";
    auto joined = backend::NativeWorld::join(
        {.timeout = plan_.timeout,
         .stall_after = plan_.stall_after,
         .without_shared_memory = plan_.without_shared_memory,
         .privacy = plan_.privacy,
         .memory_checks = plan_.memory_checks,
         .heap_capacity = plan_.heap_capacity},
        environment_, spoils ? static_cast<SocketCalls&>(spoilt_links_) : SocketCalls::kernel());
    if (!joined.ok()) {
      fail("join", joined.status());
      return;
    }
    world_ = std::move(*joined);
    report("joined");
    if (plan_.fault == "destroy") return play_destroy(plan_, *world_);
    if (plan_.fault == "attack") return play_attack(*world_);
    if (plan_.fault == "flip") return play_flip(plan_, *world_);
    if (plan_.fault == "opposite_order") return play_opposite_order(plan_, *world_);
    const Status status = run_steps();
    lift_limits();
    if (left_) return;
    if (status.ok()) return report("finished");
    fail("steps", status);
    // What has failed here alone ends the group only if its user says so.
    if (world_->group().failure().ok()) world_->group().abort(status);
    // A group that has failed says so, at once.
    report("again", to_json(barrier(world_->group())));
    if ((plan_.fault == "stop" || plan_.fault == "stop_barrier") && !victim_) go_on_without_victims();
  }

  Status run_steps() {
    Status status;
    for (int k = 0; k < plan_.steps && status.ok() && !left_; ++k) {
      Step step = step_at(plan_, k, world_->size());
      const bool now = k == plan_.step;
      if (now && plan_.fault == "stop_barrier") {
        if (victim_) inject_sudden("stop");
        status = world_->group().monitored_barrier({.deadline = Clock::steady().in(kBarrierTime)});
        continue;
      }
      if (victim_ && now) LOCKSTEP_TRY(inject(step));
      if (victim_ && plan_.fault == "slow") std::this_thread::sleep_for(plan_.slow);
      if (!left_ && !(victim_ && now && plan_.fault == "skip")) status = run_one(step);
    }
    return status;
  }

  // A user's program that runs out of memory says so.
  Status run_one(const Step& step) {
    try {
      return run_step(*world_, world_->group(), step);
    } catch (const std::bad_alloc&) {
      lift_limits();
      return Status::internal("a buffer of the user's program does not fit into memory",
                              {.failure = Failure::kNoMemory});
    }
  }

  Status inject(Step& step) {
    if (is_sudden(plan_.fault)) alarm_.set(plan_.delay, [this] { inject_sudden(plan_.fault); });
    if (plan_.fault == "say") {
      alarm_.set(plan_.delay, [this] {
        report("inject");
        world_->group().abort(what_is_said(world_->rank()));
      });
    }
    if (disagrees(plan_)) {
      report("inject");
      step = disagree(plan_, step, world_->size());
    }
    if (plan_.fault == "skip") report("inject");
    if (plan_.fault == "sleep") {
      report("inject");
      wait_for_a_word();
    }
    if (plan_.fault == "leave") {
      report("inject");
      world_.reset();
      left_ = true;
      return {};
    }
    return inject_before(plan_, environment_, *world_);
  }

  // What the stopped ones still write when they come back must not be seen by anybody.
  void go_on_without_victims() {
    const Duration patience = plan_.fault == "stop_barrier" ? kImpatience : kPatience;
    auto group = world_->shrink({.patience = patience, .group = {.timeout = plan_.timeout}});
    if (!group.ok()) {
      fail("rest", group.status());
      return;
    }
    for (int k = 0; k < kStepsOfTheRest; ++k) {
      if (k == kStepsOfTheRest / 2) report("half");
      const Status status = run_step(*world_, **group, step_of(plan_.seed + 1, k, (*group)->size()));
      if (status.ok()) continue;
      fail("rest", status);
      return;
    }
    report("went_on");
  }

  const Plan plan_;
  const Environment environment_;
  const Rank rank_;
  const bool victim_;
  SpoiltLinks spoilt_links_;
  std::unique_ptr<World> world_;
  bool left_ = false;
  Alarm alarm_;
};

}  // namespace
}  // namespace lockstep::chaos

int main(int argc, char** argv) {
  using namespace lockstep;
  const auto plan = chaos::Plan::parse(argc, argv);
  const auto environment = Environment::read();
  if (!plan.ok() || !environment.ok()) {
    chaos::report("failed", chaos::to_json(plan.ok() ? environment.status() : plan.status()));
    return 2;
  }
  base::configure_logging(environment->log);
  std::thread([] {}).join();  // with the first ThreadSanitizer starts one of its own, which would count
  return chaos::RankProgram(*plan, *environment).run();
}

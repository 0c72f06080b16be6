#include "scenes.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "faults.h"
#include "lockstep/backend/operations.h"
#include "report.h"
#include "steps.h"

namespace lockstep::chaos {
namespace {

std::vector<Rank> everyone(const World& world) {
  std::vector<Rank> ranks;
  for (int i = 0; i < world.size().value; ++i) ranks.emplace_back(i);
  return ranks;
}

std::unique_ptr<Backend> make_group(World& world, const Plan& plan, const char* name) {
  auto group = world.new_group(everyone(world), {.name = name, .timeout = plan.timeout});
  if (!group.ok()) report("failed", to_json(group.status()));
  return group.ok() ? std::move(*group) : nullptr;
}

void finish(const Status& status) {
  if (status.ok()) {
    report("finished");
  } else {
    report(is_wrong(status) ? "wrong" : "failed", to_json(status));
  }
}

}  // namespace

void play_destroy(const Plan& plan, World& world) {
  std::unique_ptr<Backend> group = make_group(world, plan, "doomed");
  if (!group) return;
  const bool victim = plan.is_victim(world.rank());
  Status status;
  for (int k = 0; k < plan.steps && status.ok(); ++k) {
    std::vector<WorkPtr> works;
    for (int i = 0; i < 3; ++i) {
      const auto data = std::make_shared<std::vector<float>>(100'000);
      const ByteSpan bytes = bytes_of(*data);
      works.push_back(group->start(
          {.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = {&bytes, 1}}, {.keep = data}));
    }
    if (victim && k == plan.step) {
      std::this_thread::sleep_for(plan.delay);
      report("inject");
      group.reset();
      for (const WorkPtr& work : works) report("pending", to_json(work->wait()));
      return report("destroyed");
    }
    for (const WorkPtr& work : works) {
      if (status.ok()) status = work->wait();
    }
  }
  finish(status);
}

void play_flip(const Plan& plan, World& world) {
  constexpr std::size_t kCount = 5003;  // the driver looks for its bytes
  std::vector<std::int32_t> data(kCount);
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<std::int32_t>(i * 2654435761U) ^ static_cast<std::int32_t>(world.rank().value);
  Status status = barrier(world.group());
  if (plan.is_victim(world.rank())) {
    report("ready");
  } else {
    wait_for_a_word();
  }
  const ByteSpan bytes = bytes_of(data);
  if (status.ok()) {
    status = world.group().run({.kind = OpKind::kAllReduce, .dtype = DType::kInt32, .outputs = {&bytes, 1}});
  }
  finish(status);
}

void play_attack(World& world) {
  constexpr std::size_t kCount = 16'384;
  constexpr Duration kReport = std::chrono::milliseconds(100);
  std::vector<std::int32_t> data(kCount);
  const ByteSpan bytes = bytes_of(data);
  Status status;
  bool over = false;
  auto since = Clock::steady().now();
  int steps = 0;
  while (status.ok() && !over) {
    std::fill(data.begin(), data.end(), 1);
    data[0] = world.rank().value == 0 && has_a_word() ? 1 : 0;
    status = world.group().run({.kind = OpKind::kAllReduce, .dtype = DType::kInt32, .outputs = {&bytes, 1}});
    if (status.ok() && data[1] != world.size().value) status = Status::internal("wrong sum");
    over = data[0] != 0;
    ++steps;
    const Duration took = Clock::steady().now() - since;
    if (world.rank().value != 0 || took < kReport) continue;
    report("pace", {{"step_us", std::chrono::duration<double, std::micro>(took).count() / steps}});
    since = Clock::steady().now();
    steps = 0;
  }
  finish(status);
}

void play_opposite_order(const Plan& plan, World& world) {
  const std::unique_ptr<Backend> first = make_group(world, plan, "first");
  const std::unique_ptr<Backend> second = make_group(world, plan, "second");
  if (!first || !second) return;
  const bool turned = plan.is_victim(world.rank());
  Backend& early = turned ? *second : *first;
  Backend& late = turned ? *first : *second;
  const auto loop = [&](Backend& group, std::uint64_t seed) {
    Status status;
    for (int k = 0; k < plan.step && status.ok(); ++k)
      status = run_step(world, group, step_of(seed, k, world.size()));
    return status;
  };
  Status of_other;
  std::thread other([&] { of_other = loop(*second, plan.seed + 1); });
  const Status of_this = loop(*first, plan.seed);
  other.join();
  if (!of_this.ok() || !of_other.ok()) return finish(of_this.ok() ? of_other : of_this);
  report("inject");
  Status status = barrier(early);
  if (status.ok()) status = barrier(late);
  finish(status);
  // Whoever leaves would be the next error of those who still wait.
  (void)world.rendezvous().store->barrier("all have heard", world.size());
}

}  // namespace lockstep::chaos

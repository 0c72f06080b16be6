#include "tools/bench/in_turns.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/text.h"
#include "tools/bench/output.h"

namespace lockstep::bench {
namespace {

Result<Measured> measure(const BenchSides& sides, std::size_t side, const TurnsCase& what,
                         const BatchPlan& plan) {
  const std::string command = what.command(plan, side);
  LOCKSTEP_ASSIGN(const auto answers, sides[side]->ask(command, Clock::steady().in(std::chrono::minutes(5))));
  return read_answers(answers, {.operations = what.kind.operations * plan.iterations,
                                .ends_together = what.kind.ends_together});
}

Status refuse_wrong(const BenchSide& side, const TurnsCase& what) {
  return Status::internal(cat(side.name(), " gave a wrong result for ", what.label));
}

BatchPlan plan_for(double micros, const Pace& pace) {
  micros = std::max(micros, 0.01);
  BatchPlan plan;
  plan.iterations =
      static_cast<int>(std::lround(std::clamp<double>(pace.batch_micros / micros, 1, pace.most_iterations)));
  plan.batches = static_cast<int>(std::lround(std::clamp<double>(
      pace.round_micros / (micros * plan.iterations), pace.fewest_batches, pace.most_batches)));
  return plan;
}

// By side; nothing for one that lacks the operation.
Result<std::vector<std::optional<BatchPlan>>> make_plans(const BenchSides& sides, const TurnsCase& what,
                                                         std::vector<std::string>& notes) {
  std::vector<std::optional<BatchPlan>> plans;
  for (std::size_t side = 0; side < sides.size(); ++side) {
    const auto first = measure(sides, side, what, {});
    if (first.status().code() == Code::kUnsupported) {
      const std::string note = cat(sides[side]->name(), " cannot do this: ", first.status().message());
      if (plans.empty()) return Status::unsupported(note);
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
      plans.emplace_back();
      continue;
    }
    LOCKSTEP_TRY(first.status());
    plans.emplace_back(plan_for(first->micros, what.pace));
  }
  return plans;
}

}  // namespace

Result<std::vector<PeerRounds>> measure_in_turns(const BenchSides& sides, const TurnsCase& what,
                                                 std::vector<std::string>& notes) {
  std::vector<PeerRounds> measured;
  for (const auto& side : sides) measured.push_back({.name = side->name()});
  show_progress(cat(what.label, ", warming up"));
  LOCKSTEP_ASSIGN(const auto plans, make_plans(sides, what, notes));
  for (int round = 0; round < what.rounds; ++round) {
    show_progress(cat(what.label, ", round ", round + 1, " of ", what.rounds));
    for (std::size_t i = 0; i < sides.size(); ++i) {
      const std::size_t side = round % 2 == 0 ? i : sides.size() - 1 - i;
      if (!plans[side]) continue;
      LOCKSTEP_ASSIGN(const Measured once, measure(sides, side, what, *plans[side]));
      if (side > 0 && !once.verified) return refuse_wrong(*sides[side], what);
      measured[side].rounds.push_back(once);
    }
  }
  return measured;
}

nlohmann::json versions_json(const BenchSides& sides) {
  nlohmann::json versions = nlohmann::json::object();
  for (const auto& side : sides) versions[side->name()] = side->version();
  return versions;
}

}  // namespace lockstep::bench

#include "lockstep/backend/native/straggler_watch.h"

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

std::int64_t millis(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

std::string StragglerWatch::Report::text() const {
  return cat("rank ", rank, " is slow: ", operations, " of the last ", kWindow,
             " operations have waited for it, ", millis(lost), " ms of ", millis(time), " ms");
}

std::optional<StragglerWatch::Report> StragglerWatch::note(std::uint64_t sequence, Rank last, Duration lost,
                                                           base::TimePoint now) {
  if (lost < kWorth) return std::nullopt;
  waits_.push_back({.sequence = sequence, .last = last, .lost = lost, .at = now});
  while (waits_.front().sequence + kWindow <= sequence) waits_.pop_front();
  Report report{.rank = last};
  Duration others{};
  for (const Wait& wait : waits_) {
    if (wait.last == last) {
      ++report.operations;
      report.lost += wait.lost;
    } else {
      others += wait.lost;
    }
  }
  // What the first one has cost was before the time that is looked at.
  report.time = now - waits_.front().at + waits_.front().lost;
  if (report.operations < kEnough || report.lost < std::max(others, kNotable) ||
      10 * report.lost < report.time)
    return std::nullopt;
  const auto [at, first] = reported_.try_emplace(last, now);
  if (!first && now - at->second < kPause) return std::nullopt;
  at->second = now;
  return report;
}

}  // namespace lockstep::backend

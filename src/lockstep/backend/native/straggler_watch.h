// Finds the rank that the others of a group wait for again and again: it is no failure, but somebody should
// know.
//
// A rank is a straggler if at least kEnough of the last kWindow operations have waited for it, and for nobody
// else as long, kNotable or more, and a tenth of the time went into that. It is reported at most once a
// minute.
//
// Thread safety: none. Time is what the caller says it is.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

class StragglerWatch {
 public:
  static constexpr std::uint64_t kWindow = 16;
  static constexpr int kEnough = 8;
  static constexpr Duration kWorth = std::chrono::milliseconds(1);  // less is not counted
  static constexpr Duration kNotable = std::chrono::milliseconds(100);
  static constexpr Duration kPause = std::chrono::minutes(1);

  struct Report {
    Rank rank;
    int operations = 0;  // of the last kWindow
    Duration lost = {};  // in these
    Duration time = {};  // that these have taken, from the end of the first

    // "rank 3 is slow: 14 of the last 16 operations have waited for it, 280 ms of 310 ms".
    std::string text() const;
  };

  // Operation `sequence` has ended at `now`. `last` has come to it last, and this rank has waited `lost` for
  // it.
  std::optional<Report> note(std::uint64_t sequence, Rank last, Duration lost, base::TimePoint now);

 private:
  struct Wait {
    std::uint64_t sequence;
    Rank last;
    Duration lost;
    base::TimePoint at;
  };
  std::deque<Wait> waits_;  // in the window
  std::map<Rank, base::TimePoint> reported_;
};

}  // namespace lockstep::backend

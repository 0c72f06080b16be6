// Logging: one line per event, to stderr, with time, level, rank and module.
//
//   constexpr Logger kLog("store");
//   kLog.warn(cat("rejected ", peer, ": wrong secret"));
//
// Thread safety: any thread; lines are never torn, also between processes that share a terminal (one
// write(2)). configure_logging() is called once, by main or by init; before it, warnings and errors are
// shown.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"

namespace lockstep::base {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };
std::optional<LogLevel> parse_log_level(std::string_view text);

struct LogOptions {
  LogLevel level = LogLevel::kWarn;
  std::map<std::string, LogLevel, std::less<>> modules = {};  // overrides, by module
  std::optional<Rank> rank = {};                              // shown as [rank 2] when known
};
// "info" or "warn,store=debug,backend=trace". A module that no layer has is warned of by configure_logging().
Result<LogOptions> parse_log_options(std::string_view text);
void configure_logging(const LogOptions& options);
// Lines name `rank` from now on; the rest stays as configured. For who learns it later: a scheduler's
// variables and a URL are read by the rendezvous.
void set_log_rank(Rank rank);

class Logger {
 public:
  constexpr explicit Logger(std::string_view module) : module_(module) {}

  bool enabled(LogLevel level) const;
  void trace(std::string_view message) const { log(LogLevel::kTrace, message); }
  void debug(std::string_view message) const { log(LogLevel::kDebug, message); }
  void info(std::string_view message) const { log(LogLevel::kInfo, message); }
  void warn(std::string_view message) const { log(LogLevel::kWarn, message); }
  void error(std::string_view message) const { log(LogLevel::kError, message); }
  void log(LogLevel level, std::string_view message) const;

 private:
  std::string_view module_;
};

// At most one line per key and period, for what an outsider can provoke. Remembers a bounded number of keys:
// when it is full, unknown keys share one allowance.
class RateLimit {
 public:
  RateLimit(Duration period, const Clock& clock) : period_(period), clock_(clock) {}
  // True if a line for `key` may be written now. `suppressed` is set to how many were refused since the last.
  bool allow(std::string_view key, std::uint64_t* suppressed = nullptr);

 private:
  struct Entry {
    TimePoint last;
    std::uint64_t suppressed = 0;
  };
  const Duration period_;
  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::base

namespace lockstep {
using base::Logger;
using base::LogLevel;
}  // namespace lockstep

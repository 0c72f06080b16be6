#include "lockstep/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

constexpr std::size_t kMaxRateKeys = 1024;

// Those of the layers, by name; a program may have loggers of its own.
constexpr std::string_view kModules[] = {"backend", "ddp",   "link",   "mpi",      "rendezvous",
                                         "shm",     "store", "tensor", "transport"};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

// One write(2) per line, so that lines of several processes never mix.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  void flush_() override {}
};

// What configure_logging() set. Replaced as a whole, and never freed: another thread may be using the old
// one.
struct Configuration {
  const Configuration* previous;
  LogOptions options;
  LogLevel lowest = LogLevel::kWarn;
  std::shared_ptr<spdlog::logger> logger;
};

const Configuration* make_configuration(const LogOptions& options, const Configuration* previous) {
  auto sink = std::make_shared<StderrSink>();
  auto logger = std::make_shared<spdlog::logger>("lockstep", std::move(sink));
  logger->set_level(spdlog::level::trace);
  const std::string rank = options.rank ? cat(" [rank ", *options.rank, "]") : "";
  logger->set_pattern(cat("%Y-%m-%d %H:%M:%S.%e %L", rank, " %v"));
  LogLevel lowest = options.level;
  for (const auto& [module, level] : options.modules) lowest = std::min(lowest, level);
  return new Configuration{previous, options, lowest, std::move(logger)};
}

std::atomic<const Configuration*>& current() {
  static std::atomic<const Configuration*> configuration = make_configuration({}, nullptr);
  return configuration;
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view text) {
  constexpr std::pair<std::string_view, LogLevel> kNames[] = {
      {"trace", LogLevel::kTrace}, {"debug", LogLevel::kDebug},  {"info", LogLevel::kInfo},
      {"warn", LogLevel::kWarn},   {"warning", LogLevel::kWarn}, {"error", LogLevel::kError},
      {"off", LogLevel::kOff}};
  for (const auto& [name, level] : kNames) {
    if (name == text) return level;
  }
  return std::nullopt;
}

Result<LogOptions> parse_log_options(std::string_view text) {
  LogOptions options;
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const auto level = parse_log_level(trim(equals == std::string::npos ? part : part.substr(equals + 1)));
    if (!level) {
      return Status::invalid(cat("log level ", quoted(part),
                                 " is not one of trace, debug, info, warn, error, off, or "
                                 "MODULE=LEVEL"));
    }
    if (equals == std::string::npos) {
      options.level = *level;
    } else {
      options.modules[std::string(trim(part.substr(0, equals)))] = *level;
    }
  }
  return options;
}

void configure_logging(const LogOptions& options) {
  current().store(make_configuration(options, current().load()), std::memory_order_release);
  if (options.rank && options.rank != Rank{0}) return;  // one rank says it for all
  for (const auto& [module, level] : options.modules) {
    if (std::ranges::find(kModules, module) != std::end(kModules)) continue;
    constexpr Logger kLog("log");
    kLog.warn(cat("the level of ", quoted(module),
                  " has an effect only if this program has a module of that ", "name; those of Lockstep are ",
                  join(std::vector<std::string>(std::begin(kModules), std::end(kModules)))));
  }
}

void set_log_rank(Rank rank) {
  const Configuration* before = current().load(std::memory_order_acquire);
  while (before->options.rank != rank) {
    LogOptions options = before->options;
    options.rank = rank;
    const Configuration* after = make_configuration(options, before);
    if (current().compare_exchange_strong(before, after)) return;
    delete after;
  }
}

bool Logger::enabled(LogLevel level) const {
  const Configuration& configuration = *current().load(std::memory_order_acquire);
  if (level < configuration.lowest || level == LogLevel::kOff) return false;
  const auto found = configuration.options.modules.find(module_);
  return level >=
         (found == configuration.options.modules.end() ? configuration.options.level : found->second);
}

void Logger::log(LogLevel level, std::string_view message) const {
  if (!enabled(level)) return;
  const std::string line = cat(module_, ": ", message);
  current()
      .load(std::memory_order_acquire)
      ->logger->log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

bool RateLimit::allow(std::string_view key, std::uint64_t* suppressed) {
  const TimePoint now = clock_.now();
  MutexLock lock(mutex_);
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    if (entries_.size() >= kMaxRateKeys) {
      std::erase_if(entries_, [&](const auto& entry) { return now - entry.second.last >= period_; });
    }
    const std::string_view name = entries_.size() >= kMaxRateKeys ? std::string_view("") : key;
    found = entries_.try_emplace(std::string(name), Entry{now - period_}).first;
  }
  Entry& entry = found->second;
  if (now - entry.last < period_) {
    ++entry.suppressed;
    return false;
  }
  if (suppressed != nullptr) *suppressed = entry.suppressed;
  entry = {now, 0};
  return true;
}

}  // namespace lockstep::base

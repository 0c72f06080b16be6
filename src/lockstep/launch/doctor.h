// What `lockstep doctor` says of this machine: one finding per topic, each with what to do about it.
//
// Nothing here changes the machine. Every probe ends by its own deadline, so a hanging driver or name server
// costs one line, not the report.
// Thread safety: any thread; a report is a value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

enum class Health : std::uint8_t {
  kOk,
  kWarning,   // works, but slower or with something missing
  kUnusable,  // a job cannot run here until it is mended
};
std::string_view health_name(Health health);

struct Finding {
  using Fact = std::variant<bool, std::int64_t, std::string, std::vector<std::string>>;

  std::string topic;  // "memory"; unique in a report
  Health health = Health::kOk;
  std::string found;                       // what there is
  std::string advice = {};                 // what to do about it; never empty unless kOk
  std::map<std::string, Fact> facts = {};  // the same for a program; bytes and counts are plain numbers
};

struct DoctorReport {
  std::string host;
  std::vector<Finding> findings;

  // The worst of its findings.
  Health health() const;
  // For a person. Colours only if asked for.
  enum class Colour : bool { kNever, kAlways };
  std::string text(Colour colour) const;
  // {"host", "status", "checks": [{"topic", "status", "found", "advice", "facts"}]}
  std::string json() const;
};

struct DoctorOptions {
  std::optional<std::string> master = {};  // a host, or host:port: shows the way there
  std::string python = "python3";          // the interpreter that is asked for torch
  Duration probe_timeout =
      std::chrono::seconds(30);  // for each probe; importing torch from a cold disk is slow
};

// `environment` is what Environment::read() gave: that it does not parse is a finding too.
DoctorReport examine(const DoctorOptions& options, const Result<Environment>& environment,
                     const Clock& clock);

}  // namespace lockstep::launch

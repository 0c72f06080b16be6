#include "lockstep/launch/doctor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/doctor_network.h"
#include "lockstep/launch/doctor_programs.h"
#include "lockstep/launch/doctor_system.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kHealthWidth = 10;
constexpr std::size_t kTopicWidth = 15;
constexpr std::size_t kLineWidth = 100;

std::string padded(std::string_view text, std::size_t width) {
  std::string out(text);
  out.resize(std::max(width, out.size()), ' ');
  return out;
}

// The words of `text` on lines of at most kLineWidth, all but the first behind the columns of health and
// topic.
std::string wrapped(std::string_view text) {
  constexpr std::size_t kIndent = kHealthWidth + kTopicWidth;
  std::string out;
  std::size_t column = kIndent;
  for (const std::string& word : base::split(text, ' ')) {
    if (column > kIndent && column + 1 + word.size() > kLineWidth) {
      out += cat("\n", std::string(kIndent, ' '));
      column = kIndent;
    } else if (column > kIndent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

const char* colour_of(Health health) {
  switch (health) {
    case Health::kOk:
      return "\033[32m";
    case Health::kWarning:
      return "\033[33m";
    case Health::kUnusable:
      return "\033[31m";
  }
  return "";
}

std::string painted(std::string_view text, Health health, DoctorReport::Colour colour) {
  if (colour == DoctorReport::Colour::kNever) return std::string(text);
  return cat(colour_of(health), text, "\033[0m");
}

std::string counted(std::ptrdiff_t count, std::string_view one, std::string_view many) {
  return cat(count, " ", count == 1 ? one : many);
}

}  // namespace

std::string_view health_name(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarning:
      return "warning";
    case Health::kUnusable:
      return "unusable";
  }
  return "unknown";
}

Health DoctorReport::health() const {
  Health worst = Health::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.health);
  return worst;
}

std::string DoctorReport::text(Colour colour) const {
  std::string out;
  for (const Finding& finding : findings) {
    const std::string health = padded(health_name(finding.health), kHealthWidth);
    out += cat(painted(health, finding.health, colour), padded(finding.topic, kTopicWidth),
               wrapped(finding.found));
    if (!finding.advice.empty()) {
      out += cat(std::string(kHealthWidth + kTopicWidth, ' '), wrapped(finding.advice));
    }
  }
  const auto count = [this](Health health) {
    return std::count_if(findings.begin(), findings.end(),
                         [health](const Finding& finding) { return finding.health == health; });
  };
  out += cat("\n", host, ": ", count(Health::kOk), " ok, ",
             counted(count(Health::kWarning), "warning", "warnings"), ", ", count(Health::kUnusable),
             " unusable.\n");
  return out;
}

std::string DoctorReport::json() const {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    nlohmann::ordered_json facts = nlohmann::ordered_json::object();
    for (const auto& [name, fact] : finding.facts) {
      std::visit([&facts, &name](const auto& value) { facts[name] = value; }, fact);
    }
    checks.push_back({{"topic", finding.topic},
                      {"status", health_name(finding.health)},
                      {"found", finding.found},
                      {"advice", finding.advice},
                      {"facts", std::move(facts)}});
  }
  const nlohmann::ordered_json report = {
      {"host", host}, {"status", health_name(health())}, {"checks", std::move(checks)}};
  // What other programs printed need not be UTF-8.
  return report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

DoctorReport examine(const DoctorOptions& options, const Result<Environment>& environment,
                     const Clock& clock) {
  const auto deadline = [&] { return clock.in(options.probe_timeout); };
  DoctorReport report{.host = base::host_name(), .findings = {}};
  std::vector<Finding>& findings = report.findings;
  findings.push_back(check_environment(environment));
  findings.push_back(check_kernel());
  findings.push_back(check_clock_source());
  findings.push_back(check_cores());
  findings.push_back(check_memory());
  findings.push_back(check_memory_sharing(deadline()));
  findings.push_back(check_dev_shm());
  findings.push_back(check_open_files());
  findings.push_back(check_locked_memory());
  findings.push_back(check_core_dumps());
  findings.push_back(check_debugging());
  const std::vector<std::string> named =
      environment.ok() ? environment->interfaces : std::vector<std::string>{};
  findings.push_back(check_interfaces(named));
  if (options.master) findings.push_back(check_master(*options.master, named, deadline()));
  findings.push_back(check_torch(options.python, deadline()));
  findings.push_back(check_gpu(deadline()));
  findings.push_back(check_mpi(deadline()));
  return report;
}

}  // namespace lockstep::launch

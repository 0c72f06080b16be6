#include "tools/bench/two_hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "lockstep/base/text.h"
#include "lockstep/base/types.h"
#include "lockstep/launch/run_program.h"

namespace lockstep::bench {
namespace {

constexpr const char* kThisSpace = "/proc/thread-self/ns/net";
// What a token bucket may send at once. A segment of a veth is up to 64 KiB, and must fit.
constexpr Bytes kBurst = Bytes::kib(256);

Status run(const std::vector<std::string>& words, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const auto output, launch::run_program(words, deadline));
  if (output.succeeded()) return {};
  return Status::unsupported(
      cat("two hosts cannot be made: '", base::join(words, " "), "' said: ", output.first_line()));
}

Result<UniqueFd> open_this_space() {
  UniqueFd fd(open(kThisSpace, O_RDONLY | O_CLOEXEC));
  if (!fd) return Status::from_errno("the network namespace cannot be opened", errno);
  return fd;
}

}  // namespace

Result<TwoHosts> TwoHosts::make(std::optional<std::uint64_t> bits_per_second, const Deadline& deadline) {
  if (geteuid() != 0) {
    return Status::unsupported("--hosts 2 makes network namespaces, which needs root: run it with sudo");
  }
  TwoHosts hosts;
  LOCKSTEP_ASSIGN(hosts.home_, open_this_space());
  const Visit back(hosts.home_.get());  // also after an error
  LOCKSTEP_TRY(hosts.add_hosts());
  LOCKSTEP_TRY(hosts.add_wire(deadline));
  for (const int host : {0, 1}) LOCKSTEP_TRY(hosts.set_up(host, bits_per_second, deadline));
  return hosts;
}

Status TwoHosts::add_hosts() {
  for (UniqueFd& space : spaces_) {
    if (unshare(CLONE_NEWNET) != 0) return Status::from_errno("no network namespace can be made", errno);
    LOCKSTEP_ASSIGN(space, open_this_space());
  }
  return {};
}

Status TwoHosts::add_wire(const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const Visit visit, enter(0));
  return run({"ip", "link", "add", kWire, "type", "veth", "peer", "name", kWire, "netns",
              cat("/proc/", getpid(), "/fd/", spaces_[1].get())},
             deadline);
}

Status TwoHosts::set_up(int host, std::optional<std::uint64_t> bits_per_second, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const Visit visit, enter(host));
  LOCKSTEP_TRY(run({"ip", "link", "set", "lo", "up"}, deadline));
  LOCKSTEP_TRY(run({"ip", "address", "add", cat("10.231.78.", host + 1, "/24"), "dev", kWire}, deadline));
  LOCKSTEP_TRY(run({"ip", "link", "set", kWire, "up"}, deadline));
  std::ofstream("/proc/sys/net/ipv4/tcp_congestion_control") << "cubic" << std::flush;
  if (!bits_per_second) return {};
  return run({"tc", "qdisc", "add", "dev", kWire, "root", "tbf", "rate", cat(*bits_per_second, "bit"),
              "burst", cat(kBurst.value), "latency", "50ms"},
             deadline);
}

Result<TwoHosts::Visit> TwoHosts::enter(int host) const {
  if (setns(spaces_.at(static_cast<std::size_t>(host)).get(), CLONE_NEWNET) != 0) {
    return Status::from_errno("a network namespace cannot be entered", errno);
  }
  return Visit(home_.get());
}

TwoHosts::Visit::~Visit() {
  if (home_ >= 0) setns(home_, CLONE_NEWNET);
}

std::optional<std::uint64_t> parse_rate(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = base::parse_integer<std::uint64_t>(text.substr(0, end));
  const std::string_view unit = text.substr(end);
  std::uint64_t factor = 0;
  if (unit == "kbit") factor = 1'000;
  if (unit == "mbit") factor = 1'000'000;
  if (unit == "gbit") factor = 1'000'000'000;
  constexpr std::uint64_t kMost = 1'000'000'000'000;
  if (!number || factor == 0 || *number == 0 || *number > kMost / factor) return std::nullopt;
  return *number * factor;
}

}  // namespace lockstep::bench

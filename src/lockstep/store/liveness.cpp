#include "lockstep/store/liveness.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

#include "lockstep/base/text.h"

namespace lockstep::store {

namespace {

struct ProcessStat {
  bool ended = false;  // a zombie that nobody has waited for
  std::uint64_t start_time = 0;
};

std::optional<ProcessStat> read_stat(int pid) {
  std::ifstream file(cat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // "pid (name) state ppid ...": the name may hold anything, so count from its last parenthesis. The state is
  // field 3, the start time field 22.
  const std::size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 2));
  ProcessStat stat;
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    if (!(fields >> field)) return std::nullopt;
    if (number == 3) stat.ended = field == "Z" || field == "X";
  }
  const auto start_time = base::parse_integer<std::uint64_t>(field);
  if (!start_time) return std::nullopt;
  stat.start_time = *start_time;
  return stat;
}

}  // namespace

std::optional<std::uint64_t> process_start_time(int pid) {
  const auto stat = read_stat(pid);
  if (!stat || stat->ended) return std::nullopt;
  return stat->start_time;
}

std::uint64_t boot_ticks() {
  timespec now{};
  const long per_second = ::sysconf(_SC_CLK_TCK);
  if (per_second <= 0 || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const auto rate = static_cast<std::uint64_t>(per_second);
  constexpr std::uint64_t kNanos = 1'000'000'000;
  return static_cast<std::uint64_t>(now.tv_sec) * rate +
         static_cast<std::uint64_t>(now.tv_nsec) * rate / kNanos;
}

bool is_certainly_gone(const Member& member, const base::HostIdentity& here) {
  if (here.boot_id.empty() || member.host.boot_id != here.boot_id) return false;
  if (member.host.pid_namespace != here.pid_namespace || member.pid <= 0) return false;
  if (const auto stat = read_stat(member.pid)) return stat->ended || stat->start_time != member.start_time;
  // /proc may hide the processes of others (hidepid): then only the kernel's answer to a signal is proof.
  return ::kill(member.pid, 0) != 0 && errno == ESRCH;
}

}  // namespace lockstep::store

#include "lockstep/base/cgroup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::base {
namespace {

// v1 says "no limit" with a number near 2^63.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream content;
  content << file.rdbuf();
  return std::move(content).str();
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(std::move(word));
  return words;
}

bool contains(const std::vector<std::string>& list, std::string_view item) {
  return std::ranges::find(list, item) != list.end();
}

template <typename T>
std::optional<T> read_number(const std::string& path) {
  const auto content = read_file(path);
  return content ? parse_integer<T>(trim(*content)) : std::nullopt;
}

// The number after `key` in a file of "key number" lines.
std::optional<std::uint64_t> read_keyed(const std::string& path, std::string_view key) {
  for (const std::string& line : read_lines(path)) {
    const auto words = words_of(line);
    if (words.size() >= 2 && words[0] == key) return parse_integer<std::uint64_t>(words[1]);
  }
  return std::nullopt;
}

// Where one controller's files for this process are.
struct Place {
  enum class Version { kV1, kV2 };
  Version version = Version::kV2;
  std::string mount_point;
  std::string path;  // of the process's group below the mount point: "" or "/a/b"

  // The process's own group first, then every one above it.
  std::vector<std::string> folders() const {
    std::vector<std::string> out;
    for (std::string rest = path; !rest.empty(); rest.resize(rest.rfind('/')))
      out.push_back(mount_point + rest);
    out.push_back(mount_point);
    return out;
  }
};

// A line of /proc/self/mountinfo that mounts control groups.
struct Mount {
  Place::Version version = Place::Version::kV2;
  std::string group;  // which group is mounted
  std::string point;
  std::vector<std::string> options;  // v1: the controllers are among them
};

// mountinfo writes space, tab, newline and backslash as \ooo.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && std::ranges::all_of(text.substr(i + 1, 3), is_octal)) {
      out += static_cast<char>((text[i + 1] - '0') << 6 | (text[i + 2] - '0') << 3 | (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<Mount> read_mounts(const std::string& root) {
  std::vector<Mount> mounts;
  for (const std::string& line : read_lines(root + "/proc/self/mountinfo")) {
    // id parent device root point options [tags...] - type source super-options
    const auto words = words_of(line);
    const auto dash = std::ranges::find(words, "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const std::string& type = dash[1];
    if (type != "cgroup" && type != "cgroup2") continue;
    mounts.push_back({.version = type == "cgroup" ? Place::Version::kV1 : Place::Version::kV2,
                      .group = unescaped(words[3]),
                      .point = unescaped(words[4]),
                      .options = split(dash[3], ',')});
  }
  return mounts;
}

// The process's group as seen below a mount. A container may have only its own group mounted; a path outside
// of what is mounted (groups moved after the mount) leaves the mount point itself.
std::string below_mount(const Mount& mount, std::string_view group) {
  std::string_view rest = group;
  if (mount.group != "/") {
    if (!rest.starts_with(mount.group)) return "";
    rest.remove_prefix(mount.group.size());
  }
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (!rest.starts_with('/')) return "";
  // "/../x": the namespace's root is below the group.
  return rest.starts_with("/..") ? "" : std::string(rest);
}

// v1 where the controller is mounted as v1, else v2. Its files may still be missing.
std::optional<Place> find_place(const std::string& root, std::string_view controller) {
  std::optional<std::string> v1_group, v2_group;
  for (const std::string& line : read_lines(root + "/proc/self/cgroup")) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = split(std::string_view(line).substr(first + 1, second - first - 1), ',');
    if (contains(controllers, controller)) v1_group = line.substr(second + 1);
    if (line.starts_with("0::")) v2_group = line.substr(second + 1);
  }
  const std::vector<Mount> mounts = read_mounts(root);
  const auto place = [&](const Mount& mount, const std::string& group) {
    return Place{
        .version = mount.version, .mount_point = root + mount.point, .path = below_mount(mount, group)};
  };
  std::vector<Place> places;
  for (const Mount& mount : mounts) {
    if (v1_group && mount.version == Place::Version::kV1 && contains(mount.options, controller))
      places.push_back(place(mount, *v1_group));
  }
  for (const Mount& mount : mounts) {
    if (v2_group && mount.version == Place::Version::kV2) places.push_back(place(mount, *v2_group));
  }
  if (places.empty()) return std::nullopt;
  // One that another mount covers (/sys mounted anew) is still listed: the first that can be seen counts.
  const auto seen = std::ranges::find_if(places, [](const Place& one) {
    return ::access((one.folders().front() + "/cgroup.procs").c_str(), F_OK) == 0;
  });
  return seen == places.end() ? places.front() : *seen;
}

// The quota of one group in cores.
std::optional<double> quota_of(const std::string& folder, Place::Version version) {
  std::optional<std::int64_t> quota, period;
  if (version == Place::Version::kV1) {
    quota = read_number<std::int64_t>(folder + "/cpu.cfs_quota_us");
    period = read_number<std::int64_t>(folder + "/cpu.cfs_period_us");
  } else {
    const auto words = words_of(read_file(folder + "/cpu.max").value_or(""));
    if (words.size() != 2) return std::nullopt;
    quota = parse_integer<std::int64_t>(words[0]);  // "max" is no number: no limit
    period = parse_integer<std::int64_t>(words[1]);
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// How many CPUs "0-3,8" names; nothing if it names none or does not parse.
std::optional<int> count_cpus(std::string_view list) {
  int count = 0;
  for (const std::string& part : split(trim(list), ',')) {
    const std::size_t dash = part.find('-');
    const auto first = parse_integer<int>(std::string_view(part).substr(0, dash));
    const auto last =
        dash == std::string::npos ? first : parse_integer<int>(std::string_view(part).substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first) return std::nullopt;
    count += *last - *first + 1;
  }
  return count;
}

// The limit of one group and what is still free below it. Page cache that can go at once counts as free.
struct MemoryGroup {
  std::uint64_t limit = 0;
  std::uint64_t available = 0;
};
std::optional<MemoryGroup> memory_of(const std::string& folder, Place::Version version) {
  const bool v1 = version == Place::Version::kV1;
  const auto limit = read_number<std::uint64_t>(folder + (v1 ? "/memory.limit_in_bytes" : "/memory.max"));
  if (!limit || *limit >= kNoLimit) return std::nullopt;
  const auto usage = read_number<std::uint64_t>(folder + (v1 ? "/memory.usage_in_bytes" : "/memory.current"));
  const auto cache = read_keyed(folder + "/memory.stat", v1 ? "total_inactive_file" : "inactive_file");
  const std::uint64_t used = usage.value_or(0) - std::min(usage.value_or(0), cache.value_or(0));
  return MemoryGroup{.limit = *limit, .available = *limit - std::min(*limit, used)};
}

}  // namespace

int usable_cores_below(const std::string& root, int affinity) {
  int cores = affinity;
  if (const auto place = find_place(root, "cpuset")) {
    // The effective set is what is left of the groups above, so the own group's is enough.
    const std::string folder = place->folders().front();
    const bool v1 = place->version == Place::Version::kV1;
    const auto list = read_file(folder + (v1 ? "/cpuset.effective_cpus" : "/cpuset.cpus.effective"));
    if (const auto count = list ? count_cpus(*list) : std::nullopt) cores = std::min(cores, *count);
  }
  if (const auto place = find_place(root, "cpu")) {
    for (const std::string& folder : place->folders()) {
      if (const auto quota = quota_of(folder, place->version); quota && *quota < cores)
        cores = static_cast<int>(std::ceil(*quota));
    }
  }
  return std::max(cores, 1);
}

Result<MemoryLimits> memory_limits_below(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const auto total = read_keyed(path, "MemTotal:");
  const auto available = read_keyed(path, "MemAvailable:");
  if (!total || !available) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return Status::from_errno(cat(quoted(path), " cannot be read"), errno);
    return Status::unsupported(cat(quoted(path), " does not say MemTotal and MemAvailable"));
  }
  MemoryLimits limits{.total = Bytes::kib(*total), .available = Bytes::kib(*available), .cgroup_limit = {}};
  const auto place = find_place(root, "memory");
  if (!place) return limits;
  for (const std::string& folder : place->folders()) {
    const auto group = memory_of(folder, place->version);
    if (!group) continue;
    const Bytes limit{group->limit};
    limits.cgroup_limit = std::min(limits.cgroup_limit.value_or(limit), limit);
    limits.total = std::min(limits.total, limit);
    limits.available = std::min(limits.available, Bytes{group->available});
  }
  return limits;
}

std::optional<std::uint64_t> oom_kills_below(const std::string& root) {
  const auto place = find_place(root, "memory");
  if (!place) return std::nullopt;
  const bool v1 = place->version == Place::Version::kV1;
  return read_keyed(place->folders().front() + (v1 ? "/memory.oom_control" : "/memory.events"), "oom_kill");
}

}  // namespace lockstep::base

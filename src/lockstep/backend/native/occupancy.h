// How many ranks of a host compete for how many of its cores, where each may be bound to some of them.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::backend {

// What a rank may run on.
struct Cores {
  std::vector<int> cpus;  // ascending
  int at_once = 1;        // less than these where the quota of a cgroup says so

  bool operator==(const Cores&) const = default;
};
// "0-3,8 4": how ranks tell each other.
std::string write_cores(const Cores& cores);
std::optional<Cores> parse_cores(std::string_view text);

struct Occupancy {
  int ranks = 1;       // the rank itself, and those that may run where it does, or where these do
  int cores = 1;       // of all of them
  int host_cores = 1;  // of all ranks of the host
  int threads = 1;     // that the rank may use at a time

  bool crowded() const { return ranks > cores; }
};
// Of the rank at `own`. `ranks` are those of its host, of which `unseen` more may run anywhere. Where the
// host as a whole has more ranks than cores, that is what counts.
Occupancy occupancy_of(std::span<const Cores> ranks, std::size_t own, int unseen = 0);

}  // namespace lockstep::backend

#include "lockstep/backend/native/occupancy.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "lockstep/backend/helper_pool.h"
#include "lockstep/base/text.h"
#include "lockstep/base/topology.h"

namespace lockstep::backend {
namespace {

constexpr int kMostCpus = 1 << 20;

// Those of `own`, of the ranks that have one of them too, of those that have one of theirs, and so on.
struct Company {
  int ranks = 0;
  std::set<int> cpus;
};
Company company_of(std::span<const Cores> ranks, std::size_t own) {
  Company company{.cpus = {ranks[own].cpus.begin(), ranks[own].cpus.end()}};
  std::vector<bool> in(ranks.size());
  for (bool grown = true; grown;) {
    grown = false;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto shares = [&](int cpu) { return company.cpus.contains(cpu); };
      if (in[i] || (i != own && std::ranges::none_of(ranks[i].cpus, shares))) continue;
      in[i] = grown = true;
      ++company.ranks;
      company.cpus.insert(ranks[i].cpus.begin(), ranks[i].cpus.end());
    }
  }
  return company;
}

}  // namespace

std::string write_cores(const Cores& cores) {
  return cat(base::cpu_list_text(cores.cpus), ' ', cores.at_once);
}

std::optional<Cores> parse_cores(std::string_view text) {
  const std::vector<std::string> words = base::split(text, ' ');
  if (words.size() != 2) return std::nullopt;
  const auto at_once = base::parse_integer<int>(words[1]);
  if (!at_once || *at_once < 1) return std::nullopt;
  Cores cores{.cpus = {}, .at_once = *at_once};
  for (const std::string& part : base::split(words[0], ',')) {
    const std::size_t dash = part.find('-');
    const auto first = base::parse_integer<int>(std::string_view(part).substr(0, dash));
    const auto last =
        dash == std::string::npos ? first : base::parse_integer<int>(std::string_view(part).substr(dash + 1));
    const int least = cores.cpus.empty() ? 0 : cores.cpus.back() + 1;
    if (!first || !last || *first < least || *last < *first || *last >= kMostCpus) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cores.cpus.push_back(cpu);
  }
  if (cores.cpus.empty()) return std::nullopt;
  return cores;
}

Occupancy occupancy_of(std::span<const Cores> ranks, std::size_t own, int unseen) {
  std::set<int> cpus;
  int quota = kMostCpus;
  for (const Cores& rank : ranks) {
    cpus.insert(rank.cpus.begin(), rank.cpus.end());
    if (rank.at_once < std::ssize(rank.cpus)) quota = std::min(quota, rank.at_once);
  }
  const int host_ranks = static_cast<int>(ranks.size()) + unseen;
  const int host_cores = std::clamp(static_cast<int>(cpus.size()), 1, quota);
  Occupancy out{.ranks = host_ranks, .cores = host_cores, .host_cores = host_cores};
  if (!out.crowded()) {
    const Company company = company_of(ranks, own);
    out.ranks = company.ranks + unseen;
    out.cores = std::clamp(static_cast<int>(company.cpus.size()), 1, quota);
  }
  out.threads = std::min(helpers_for(out.ranks, out.cores), std::max(ranks[own].at_once, 1));
  return out;
}

}  // namespace lockstep::backend

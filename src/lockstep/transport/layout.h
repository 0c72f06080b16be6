// Which members of a group are on which host. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::transport {

// Positions are ranks in the group. Hosts are in the order of their first members.
struct Layout {
  std::vector<std::vector<int>> hosts;  // the positions on each, ascending
  std::vector<int> host_of;             // by position
  std::vector<int> local_index;         // by position: where it stands in its host's list

  // `labels[i]` is anything that is equal for members of one host.
  template <typename Label>
  static Layout of(std::span<const Label> labels) {
    Layout layout;
    std::vector<Label> seen;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      std::size_t host = 0;
      while (host < seen.size() && !(seen[host] == labels[i])) ++host;
      if (host == seen.size()) {
        seen.push_back(labels[i]);
        layout.hosts.emplace_back();
      }
      layout.host_of.push_back(static_cast<int>(host));
      layout.local_index.push_back(static_cast<int>(layout.hosts[host].size()));
      layout.hosts[host].push_back(static_cast<int>(i));
    }
    return layout;
  }

  int size() const { return static_cast<int>(host_of.size()); }
  int host_count() const { return static_cast<int>(hosts.size()); }
  const std::vector<int>& on_host(int host) const { return hosts[static_cast<std::size_t>(host)]; }
  const std::vector<int>& neighbours_of(int position) const {
    return on_host(host_of[static_cast<std::size_t>(position)]);
  }
  // Every host's members follow each other, so that folding host by host is folding in rank order.
  bool contiguous() const {
    for (const std::vector<int>& members : hosts) {
      if (members.back() - members.front() != static_cast<int>(members.size()) - 1) return false;
    }
    return true;
  }
};

}  // namespace lockstep::transport

#include "lockstep/launch/doctor_network.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/launch/run_program.h"
#include "lockstep/store/interface_choice.h"

namespace lockstep::launch {
namespace {

constexpr std::uint16_t kAnyPort = 29500;  // the route does not depend on it

std::string interface_text(const base::Interface& interface) {
  std::vector<std::string> addresses;
  addresses.reserve(interface.addresses.size());
  for (const base::SocketAddress& address : interface.addresses) addresses.push_back(address.host());
  return cat(interface.name, " (", addresses.empty() ? "no address" : base::join(addresses), ")");
}

bool usable(const base::Interface& interface) { return interface.up && !interface.addresses.empty(); }

Finding unreachable(const std::string& found, const std::string& advice) {
  return {.topic = "master", .health = Health::kUnusable, .found = found, .advice = advice};
}

// The address of a name, asked of getent so that a name server that does not answer costs no more than the
// deadline (getaddrinfo cannot be interrupted).
Result<base::SocketAddress> look_up(const base::Endpoint& endpoint, const Deadline& deadline) {
  Result<base::SocketAddress> numeric = base::SocketAddress::parse(endpoint.host, endpoint.port);
  if (numeric.ok()) return numeric;
  LOCKSTEP_ASSIGN(const ProgramOutput answer,
                  run_program({"getent", "ahosts", "--", endpoint.host}, deadline));
  if (!answer.succeeded())
    return Status::invalid(cat("the name ", base::quoted(endpoint.host), " is not known"));
  const std::string line = answer.first_line();
  return base::SocketAddress::parse(line.substr(0, line.find_first_of(" \t")), endpoint.port);
}

// "10.0.0.7 (eth0)"
std::string address_text(const base::SocketAddress& address, const std::vector<base::Interface>& interfaces) {
  for (const base::Interface& interface : interfaces) {
    for (const base::SocketAddress& own : interface.addresses) {
      if (own.host() == address.host()) return cat(address.host(), " (", interface.name, ")");
    }
  }
  return address.host();
}

}  // namespace

Finding judge_interfaces(const std::vector<base::Interface>& interfaces,
                         const std::vector<std::string>& named) {
  std::vector<std::string> up;
  std::vector<std::string> names;
  for (const base::Interface& interface : interfaces) {
    if (!usable(interface)) continue;
    up.push_back(interface_text(interface));
    names.push_back(interface.name);
  }
  Finding finding{.topic = "interfaces", .found = up.empty() ? "none is up" : base::join(up)};
  finding.facts["up"] = static_cast<std::int64_t>(up.size());
  finding.facts["names"] = std::move(names);

  const auto chosen = store::choose_addresses(interfaces, named, std::nullopt);
  if (!chosen.ok()) {
    finding.health = Health::kUnusable;
    finding.advice = std::string(chosen.status().message());
    return finding;
  }
  const bool loopback =
      std::any_of(interfaces.begin(), interfaces.end(),
                  [](const base::Interface& interface) { return interface.loopback && usable(interface); });
  if (!loopback) {
    finding.health = Health::kUnusable;
    finding.advice = "Ranks of one host meet on the loopback: ip link set lo up.";
  } else if (!named.empty()) {
    finding.found += cat("; jobs on several hosts use ", base::join(named), " (LOCKSTEP_SOCKET_IFNAME)");
  } else {
    finding.found += "; used: lo by a job on one host, else the one that routes to the master";
  }
  return finding;
}

Finding check_interfaces(const std::vector<std::string>& named) {
  const Result<std::vector<base::Interface>> all = base::interfaces();
  if (!all.ok()) {
    return {.topic = "interfaces",
            .health = Health::kUnusable,
            .found = std::string(all.status().message()),
            .advice = "Without a network interface ranks cannot meet."};
  }
  return judge_interfaces(*all, named);
}

Finding check_master(const std::string& master, const std::vector<std::string>& named,
                     const Deadline& deadline) {
  const Result<base::Endpoint> endpoint = base::parse_endpoint(master, kAnyPort);
  if (!endpoint.ok()) {
    return unreachable(std::string(endpoint.status().message()), "Give a host or host:port.");
  }
  const Result<base::SocketAddress> remote = look_up(*endpoint, deadline);
  if (!remote.ok()) {
    return unreachable(std::string(remote.status().message()),
                       "Use a name that every host can look up, or a numeric address.");
  }
  const Result<base::SocketAddress> route = base::local_address_towards(*remote);
  if (!route.ok()) {
    return unreachable(std::string(route.status().message()), "Check the routes of this host: ip route.");
  }
  const auto interfaces = base::interfaces();
  if (!interfaces.ok())
    return unreachable(std::string(interfaces.status().message()), "Mount /proc and /sys.");
  const auto chosen = store::choose_addresses(*interfaces, named, *route);
  if (!chosen.ok())
    return unreachable(std::string(chosen.status().message()), "Name another interface, or none.");

  std::vector<std::string> told;
  told.reserve(chosen->size());
  for (const base::SocketAddress& address : *chosen) told.push_back(address_text(address, *interfaces));
  const std::string addresses = base::join(told);
  return {.topic = "master",
          .found = cat(endpoint->host, " is ", remote->host(), ", reached from ",
                       address_text(*route, *interfaces), "; the other ranks are told ", addresses),
          .facts = {{"remote", remote->host()}, {"route", route->host()}, {"addresses", addresses}}};
}

}  // namespace lockstep::launch

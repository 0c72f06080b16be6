#include "lockstep/launch/doctor_network.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/launch/run_program.h"

namespace lockstep::launch {
namespace {

constexpr std::uint16_t kAnyPort = 29500;  // the route does not depend on it

std::string interface_text(const base::Interface& interface) {
  std::vector<std::string> addresses;
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

std::optional<std::string> interface_with(const base::SocketAddress& address) {
  const Result<std::vector<base::Interface>> all = base::interfaces();
  if (!all.ok()) return std::nullopt;
  for (const base::Interface& interface : *all) {
    for (const base::SocketAddress& own : interface.addresses) {
      if (own.host() == address.host()) return interface.name;
    }
  }
  return std::nullopt;
}

}  // namespace

Finding judge_interfaces(const std::vector<base::Interface>& interfaces,
                         const std::vector<std::string>& named) {
  std::vector<std::string> up;
  for (const base::Interface& interface : interfaces) {
    if (usable(interface)) up.push_back(interface_text(interface));
  }
  Finding finding{.topic = "interfaces", .found = up.empty() ? "none is up" : base::join(up)};
  finding.facts["up"] = static_cast<std::int64_t>(up.size());

  for (const std::string& name : named) {
    const auto found =
        std::find_if(interfaces.begin(), interfaces.end(),
                     [&name](const base::Interface& interface) { return interface.name == name; });
    if (found != interfaces.end() && usable(*found)) continue;
    finding.health = Health::kUnusable;
    finding.advice = cat("LOCKSTEP_SOCKET_IFNAME names ", base::quoted(name), ", which ",
                         found == interfaces.end() ? "does not exist" : "is down or has no address",
                         ": name one of those above.");
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

Finding check_interfaces(const Result<Environment>& environment) {
  const Result<std::vector<base::Interface>> all = base::interfaces();
  if (!all.ok()) {
    return {.topic = "interfaces",
            .health = Health::kUnusable,
            .found = std::string(all.status().message()),
            .advice = "Without a network interface ranks cannot meet."};
  }
  return judge_interfaces(*all, environment.ok() ? environment->interfaces : std::vector<std::string>{});
}

Finding check_master(const std::string& master, const Deadline& deadline) {
  const Result<base::Endpoint> endpoint = base::parse_endpoint(master, kAnyPort);
  if (!endpoint.ok()) {
    return unreachable(std::string(endpoint.status().message()), "Give a host or host:port.");
  }
  const Result<base::SocketAddress> remote = look_up(*endpoint, deadline);
  if (!remote.ok()) {
    return unreachable(std::string(remote.status().message()),
                       "Use a name that every host can look up, or a numeric address.");
  }
  const Result<base::SocketAddress> local = base::local_address_towards(*remote);
  if (!local.ok()) {
    return unreachable(std::string(local.status().message()), "Check the routes of this host: ip route.");
  }
  const std::string interface = interface_with(*local).value_or("an interface without a name");
  return {.topic = "master",
          .found = cat(endpoint->host, " is ", remote->host(), ", reached from ", local->host(), " by ",
                       interface),
          .facts = {{"remote", remote->host()}, {"local", local->host()}, {"interface", interface}}};
}

}  // namespace lockstep::launch

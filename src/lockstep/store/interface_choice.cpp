#include "lockstep/store/interface_choice.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

using base::Interface;
using base::SocketAddress;

// fe80::/10 is of use only together with an interface, which another host does not know.
bool is_link_local(const SocketAddress& address) {
  if (address.family() != AF_INET6) return false;
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address.data())->sin6_addr;
  return IN6_IS_ADDR_LINKLOCAL(&v6);
}

std::optional<SocketAddress> best_address(const Interface& interface, int family) {
  std::optional<SocketAddress> best;
  for (const SocketAddress& address : interface.addresses) {
    if (is_link_local(address)) continue;
    if (address.family() == family) return address;
    if (!best) best = address;
  }
  return best;
}

std::string names_text(const std::vector<Interface>& interfaces) {
  std::vector<std::string> names;
  names.reserve(interfaces.size());
  for (const Interface& interface : interfaces) {
    names.push_back(interface.up ? interface.name : cat(interface.name, " (down)"));
  }
  return names.empty() ? "none" : base::join(names);
}

}  // namespace

Result<std::vector<SocketAddress>> choose_addresses(const std::vector<Interface>& interfaces,
                                                    const std::vector<std::string>& names,
                                                    const std::optional<SocketAddress>& towards_master) {
  const int family = towards_master ? towards_master->family() : AF_INET;
  std::vector<SocketAddress> out;
  for (const std::string& name : names) {
    const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                    [&](const Interface& interface) { return interface.name == name; });
    if (found == interfaces.end()) {
      return Status::invalid(cat("There is no network interface ", base::quoted(name),
                                 " (LOCKSTEP_SOCKET_IFNAME, "
                                 "GLOO_SOCKET_IFNAME); this host has ",
                                 names_text(interfaces), "."));
    }
    const auto address = best_address(*found, family);
    if (!found->up || !address) {
      return Status::invalid(cat("The network interface ", base::quoted(name),
                                 " (LOCKSTEP_SOCKET_IFNAME, "
                                 "GLOO_SOCKET_IFNAME) ",
                                 found->up ? "has no address" : "is down", "; this host has ",
                                 names_text(interfaces), "."));
    }
    if (std::find(out.begin(), out.end(), *address) == out.end()) out.push_back(*address);
  }
  if (!out.empty()) return out;
  if (towards_master) return std::vector{towards_master->with_port(0)};
  for (const Interface& interface : interfaces) {
    if (!interface.up || interface.loopback) continue;
    if (const auto address = best_address(interface, family)) return std::vector{*address};
  }
  LOCKSTEP_ASSIGN(const SocketAddress loopback, SocketAddress::parse("127.0.0.1", 0));
  return std::vector{loopback};
}

Result<std::vector<SocketAddress>> own_addresses(const std::vector<std::string>& names,
                                                 const std::optional<SocketAddress>& master) {
  LOCKSTEP_ASSIGN(const std::vector<Interface> all, base::interfaces());
  std::optional<SocketAddress> towards_master;
  if (master) {
    // No route: the error would come again, and clearer, from whoever connects.
    if (auto address = base::local_address_towards(*master); address.ok()) towards_master = *address;
  }
  return choose_addresses(all, names, towards_master);
}

}  // namespace lockstep::store

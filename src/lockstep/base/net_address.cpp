// Endpoints, socket addresses, look-up and interfaces; net.cpp has what opens sockets.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "lockstep/base/check.h"
#include "lockstep/base/net.h"
#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

constexpr std::size_t kMaxHostName = 253;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_';
}

// inet_pton on the whole of `text`: it would stop at a zero byte.
bool read_address(int family, std::string_view text, void* out) {
  return text.find('\0') == std::string_view::npos && inet_pton(family, std::string(text).c_str(), out) == 1;
}

bool is_ipv4(std::string_view host) {
  in_addr address{};
  return read_address(AF_INET, host, &address);
}

// The address without its scope, and the scope, which is empty if there is none.
struct Ipv6Text {
  in6_addr address{};
  std::string scope;
};
std::optional<Ipv6Text> read_ipv6(std::string_view host) {
  Ipv6Text out;
  const std::size_t percent = host.find('%');
  if (percent != std::string_view::npos) {
    out.scope = host.substr(percent + 1);
    if (out.scope.empty() || out.scope.size() >= IF_NAMESIZE ||
        !std::ranges::all_of(out.scope, [](char c) { return is_name_character(c) || c == '@'; }))
      return std::nullopt;
  }
  if (!read_address(AF_INET6, host.substr(0, percent), &out.address)) return std::nullopt;
  return out;
}

// Why `host` (without brackets) is not a host; empty if it is one.
std::string host_problem(std::string_view host) {
  if (host.empty()) return "the host is missing";
  if (host.size() > kMaxHostName) return "the host is longer than 253 characters";
  if (host.find(':') != std::string_view::npos || host.find('%') != std::string_view::npos)
    return read_ipv6(host) ? "" : cat(quoted(host), " is not an IPv6 address");
  const auto bad = std::ranges::find_if_not(host, is_name_character);
  if (bad != host.end()) return cat("a host has no ", quoted(std::string_view(&*bad, 1)), " in it");
  // What looks like an address must be one: a resolver would take 10.0.0 for 10.0.0.0.
  const bool numeric = host.find_first_not_of("0123456789.") == std::string_view::npos;
  if (numeric && !is_ipv4(host)) return cat(quoted(host), " is not an IPv4 address");
  return "";
}

Status bad_endpoint(std::string_view text, std::string_view problem) {
  return Status::invalid(cat(quoted(text), " is not host:port: ", problem,
                             " (write node7:29500, 10.0.0.1:29500 or [fe80::1%eth0]:29500)"));
}

// The two parts as written; the port is absent if there is none.
struct EndpointText {
  std::string_view host;
  std::optional<std::string_view> port;
};
Result<EndpointText> split_endpoint(std::string_view text) {
  if (text.find("://") != std::string_view::npos) return bad_endpoint(text, "it is a URL");
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return bad_endpoint(text, "the bracket is not closed");
    const std::string_view host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (host.find(':') == std::string_view::npos)
      return bad_endpoint(text, "brackets are for IPv6 addresses");
    if (rest.empty()) return EndpointText{host, {}};
    if (rest.front() != ':') return bad_endpoint(text, "after the bracket comes a colon");
    return EndpointText{host, rest.substr(1)};
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return EndpointText{text, {}};
  if (text.find(':', colon + 1) == std::string_view::npos)
    return EndpointText{text.substr(0, colon), text.substr(colon + 1)};
  // Several colons: an IPv6 address without brackets, and then it cannot have a port.
  return EndpointText{text, {}};
}

}  // namespace

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? cat(host, ":", port) : cat("[", host, "]:", port);
}

Result<Endpoint> parse_endpoint(std::string_view text, std::optional<std::uint16_t> default_port) {
  if (text.empty()) return bad_endpoint(text, "it is empty");
  LOCKSTEP_ASSIGN(const EndpointText parts, split_endpoint(text));
  if (const std::string problem = host_problem(parts.host); !problem.empty())
    return bad_endpoint(text, problem);
  if (!parts.port) {
    if (default_port) return Endpoint{std::string(parts.host), *default_port};
    const bool bare = !text.starts_with('[') && parts.host.find(':') != std::string_view::npos;
    return bad_endpoint(text, bare ? "an IPv6 address with a port needs brackets" : "the port is missing");
  }
  const auto port = parse_integer<std::uint16_t>(*parts.port);
  if (!port) return bad_endpoint(text, cat(quoted(*parts.port), " is not a port from 0 to 65535"));
  return Endpoint{std::string(parts.host), *port};
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size) : size_(size) {
  LOCKSTEP_CHECK(size <= sizeof(storage_), "a socket address fits its storage");
  std::memcpy(&storage_, address, size);
}

Result<SocketAddress> SocketAddress::parse(std::string_view host, std::uint16_t port) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (read_address(AF_INET, host, &v4.sin_addr))
    return SocketAddress(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
  const auto text = read_ipv6(host);
  if (!text) return Status::invalid(cat(quoted(host), " is not a numeric IPv4 or IPv6 address"));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  v6.sin6_addr = text->address;
  if (!text->scope.empty()) {
    const unsigned index = if_nametoindex(text->scope.c_str());
    const auto number = parse_integer<std::uint32_t>(text->scope);
    if (index == 0 && !number) {
      return Status::invalid(
          cat(quoted(host), " names the interface ", quoted(text->scope), ", which this host does not have"));
    }
    v6.sin6_scope_id = index != 0 ? index : *number;
  }
  return SocketAddress(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
}

namespace {
const sockaddr_in& v4_of(const SocketAddress& address) {
  return *reinterpret_cast<const sockaddr_in*>(address.data());
}
const sockaddr_in6& v6_of(const SocketAddress& address) {
  return *reinterpret_cast<const sockaddr_in6*>(address.data());
}

// The IPv4 address in it, also when it is written as ::ffff:a.b.c.d; host byte order.
std::optional<std::uint32_t> v4_inside(const SocketAddress& address) {
  if (address.family() == AF_INET) return ntohl(v4_of(address).sin_addr.s_addr);
  if (address.family() != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6_of(address).sin6_addr)) return std::nullopt;
  std::uint32_t value = 0;
  std::memcpy(&value, v6_of(address).sin6_addr.s6_addr + 12, sizeof(value));
  return ntohl(value);
}
}  // namespace

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(v4_of(*this).sin_port);
  return family() == AF_INET6 ? ntohs(v6_of(*this).sin6_port) : 0;
}

SocketAddress SocketAddress::with_port(std::uint16_t port) const {
  SocketAddress copy = *this;
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&copy.storage_)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&copy.storage_)->sin6_port = htons(port);
  return copy;
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (family() == AF_INET) return inet_ntop(AF_INET, &v4_of(*this).sin_addr, text, sizeof(text));
  if (family() != AF_INET6) return "no address";
  std::string host = inet_ntop(AF_INET6, &v6_of(*this).sin6_addr, text, sizeof(text));
  if (const std::uint32_t scope = v6_of(*this).sin6_scope_id; scope != 0) {
    char name[IF_NAMESIZE] = {};
    host += '%';
    host += if_indextoname(scope, name) != nullptr ? std::string(name) : cat(scope);
  }
  return host;
}

std::string SocketAddress::text() const { return Endpoint{host(), port()}.text(); }

bool SocketAddress::is_loopback() const {
  if (const auto v4 = v4_inside(*this)) return *v4 >> 24 == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6_of(*this).sin6_addr);
}

bool SocketAddress::is_any() const {
  if (const auto v4 = v4_inside(*this)) return *v4 == INADDR_ANY;
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6_of(*this).sin6_addr);
}

bool SocketAddress::operator==(const SocketAddress& other) const {
  if (family() != other.family() || port() != other.port()) return false;
  if (family() == AF_INET) return v4_of(*this).sin_addr.s_addr == v4_of(other).sin_addr.s_addr;
  if (family() != AF_INET6) return true;
  return IN6_ARE_ADDR_EQUAL(&v6_of(*this).sin6_addr, &v6_of(other).sin6_addr) &&
         v6_of(*this).sin6_scope_id == v6_of(other).sin6_scope_id;
}

Result<std::vector<SocketAddress>> resolve(const Endpoint& endpoint, const Deadline& deadline) {
  if (auto numeric = SocketAddress::parse(endpoint.host, endpoint.port); numeric.ok())
    return std::vector<SocketAddress>{*numeric};
  if (const std::string problem = host_problem(endpoint.host); !problem.empty())
    return Status::invalid(cat("cannot look up ", quoted(endpoint.host), ": ", problem));
  if (deadline.expired()) return Status::timeout(cat("no time was left to look up ", quoted(endpoint.host)));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(endpoint.host.c_str(), nullptr, &hints, &list);
  if (error != 0) {
    const std::string reason = error == EAI_SYSTEM ? ::strerrordesc_np(errno) : gai_strerror(error);
    const std::string message = cat("cannot look up host ", quoted(endpoint.host), ": ", reason);
    return error == EAI_AGAIN ? Status::timeout(message, {.host = endpoint.host})
                              : Status::invalid(message, {.host = endpoint.host});
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const SocketAddress address = SocketAddress(entry->ai_addr, entry->ai_addrlen).with_port(endpoint.port);
    if (std::ranges::find(addresses, address) == addresses.end()) addresses.push_back(address);
  }
  return addresses;
}

Result<std::vector<Interface>> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Status::from_errno("cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    auto at = std::ranges::find(found, entry->ifa_name, &Interface::name);
    if (at == found.end()) {
      found.push_back({.name = entry->ifa_name,
                       .addresses = {},
                       .up = (entry->ifa_flags & IFF_UP) != 0,
                       .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
      at = found.end() - 1;
    }
    if (entry->ifa_addr == nullptr) continue;
    if (entry->ifa_addr->sa_family == AF_INET)
      at->addresses.emplace_back(entry->ifa_addr, sizeof(sockaddr_in));
    if (entry->ifa_addr->sa_family == AF_INET6)
      at->addresses.emplace_back(entry->ifa_addr, sizeof(sockaddr_in6));
  }
  return found;
}

}  // namespace lockstep::base

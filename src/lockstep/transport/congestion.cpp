#include "lockstep/transport/congestion.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string_view>

namespace lockstep::transport {
namespace {

constexpr std::size_t kLongestName = 16;  // the kernel's own limit

void set(int socket, std::string_view name) {
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

}  // namespace

void choose_congestion_control(int socket, const std::string& name) {
  if (!name.empty()) return set(socket, name);
  std::array<char, kLongestName> current{};
  socklen_t size = current.size();
  if (::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, current.data(), &size) != 0) return;
  if (std::string_view(current.data()).starts_with("bbr")) set(socket, "cubic");
}

}  // namespace lockstep::transport

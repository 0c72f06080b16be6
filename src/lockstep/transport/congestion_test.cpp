#include "lockstep/transport/congestion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "lockstep/base/unique_fd.h"

namespace lockstep::transport {
namespace {

std::string current(int socket) {
  std::array<char, 16> name{};
  socklen_t size = name.size();
  EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
  return name.data();
}

// Whether a program may choose it here.
bool can_have(const std::string& name) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                      static_cast<socklen_t>(name.size())) == 0;
}

TEST(CongestionControl, TheOneThatIsNamedIsTaken) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  choose_congestion_control(socket.get(), "reno");  // every Linux has it, and allows it
  EXPECT_EQ(current(socket.get()), "reno");
}

TEST(CongestionControl, WhatTheSystemDoesNotHaveChangesNothing) {
  const UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string before = current(socket.get());
  choose_congestion_control(socket.get(), "no_such_thing");
  EXPECT_EQ(current(socket.get()), before);
}

TEST(CongestionControl, WithoutANameTheSystemsStaysUnlessItIsBbr) {
  for (const std::string name : {"reno", "cubic", "bbr"}) {
    if (!can_have(name)) continue;
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    choose_congestion_control(socket.get(), name);
    choose_congestion_control(socket.get(), "");
    EXPECT_EQ(current(socket.get()), name == "bbr" && can_have("cubic") ? "cubic" : name);
  }
}

}  // namespace
}  // namespace lockstep::transport

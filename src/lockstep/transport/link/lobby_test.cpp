#include "lockstep/transport/link/lobby.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::link {
namespace {

using lockstep::testing::StatusIs;

// With the other end, on which can be seen whether it is still open.
struct Visitor {
  Arrival arrival;
  UniqueFd other;

  bool turned_away() const {
    std::byte byte{};
    return ::recv(other.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }
};

Visitor visitor() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {.arrival = {.socket = UniqueFd(fds[0]), .keys = {}}, .other = UniqueFd(fds[1])};
}

Status news(const char* text) { return Status::aborted(text); }

TEST(Lobby, WhatComesEarlyIsThereWhenTheGroupIsMade) {
  Lobby lobby(10);
  Visitor early = visitor();
  ASSERT_OK(lobby.put(7, Rank{1}, 0, std::move(early.arrival)));
  EXPECT_FALSE(lobby.tell(7, news("first")));
  EXPECT_FALSE(lobby.tell(7, news("second")));
  const auto inbox = lobby.inbox(7);
  ASSERT_OK(inbox.status());
  EXPECT_TRUE((*inbox)->take(Rank{1}, 0).has_value());
  EXPECT_FALSE((*inbox)->take(Rank{1}, 0).has_value());
  std::vector<std::string> heard;
  lobby.listen_for_news(7, [&](const Status& status) {
    heard.emplace_back(status.message());
    return status;
  });
  EXPECT_EQ(lobby.tell(7, news("third"))->message(), "third");
  EXPECT_THAT(heard, ::testing::ElementsAre("first", "third"));
  EXPECT_EQ(lobby.sizes().early_sockets, 0U);
  EXPECT_EQ(lobby.sizes().early_news, 0U);
}

TEST(Lobby, WhoComesForAForgottenGroupIsTurnedAway) {
  Lobby lobby(10);
  ASSERT_OK(lobby.inbox(7).status());
  lobby.forget(7);
  Visitor late = visitor();
  EXPECT_THAT(lobby.put(7, Rank{1}, 0, std::move(late.arrival)), StatusIs(Code::kAborted));
  EXPECT_TRUE(late.turned_away());
  EXPECT_OK(lobby.tell(7, news("late")).value());
  EXPECT_EQ(lobby.sizes().early_news, 0U);
  // One of that name may be made again.
  ASSERT_OK(lobby.inbox(7).status());
  Visitor again = visitor();
  EXPECT_OK(lobby.put(7, Rank{1}, 0, std::move(again.arrival)));
  EXPECT_FALSE(again.turned_away());
}

TEST(Lobby, TenThousandGroupsLeaveNothingBehind) {
  Lobby lobby(100);
  for (std::uint64_t group = 1; group <= 10'000; ++group) {
    ASSERT_OK(lobby.put(group, Rank{1}, 0, visitor().arrival));
    ASSERT_OK(lobby.inbox(group).status());
    lobby.listen_for_news(group, [](const Status& status) { return status; });
    lobby.tell(group, news("failed"));
    lobby.forget(group);
    (void)lobby.put(group, Rank{2}, 0, visitor().arrival);
    lobby.tell(group, news("late"));
  }
  const Lobby::Sizes sizes = lobby.sizes();
  EXPECT_EQ(sizes.groups, 0U);
  EXPECT_EQ(sizes.listeners, 0U);
  EXPECT_EQ(sizes.early_sockets, 0U);
  EXPECT_EQ(sizes.early_news, 0U);
  EXPECT_EQ(sizes.forgotten, Lobby::kForgotten);
}

TEST(Lobby, GroupsThatAreNeverMadeTakeABoundedRoom) {
  Lobby lobby(100);
  Visitor oldest = visitor();
  ASSERT_OK(lobby.put(0, Rank{1}, 0, std::move(oldest.arrival)));
  for (std::uint64_t group = 1; group <= 10'000; ++group) {
    ASSERT_OK(lobby.put(group, Rank{1}, 0, visitor().arrival));
    lobby.tell(group, news("failed"));
  }
  EXPECT_TRUE(oldest.turned_away());
  EXPECT_EQ(lobby.sizes().early_sockets, 100U);
  EXPECT_EQ(lobby.sizes().early_news, Lobby::kEarlyNews);
  // The newest are those that are kept.
  const auto inbox = lobby.inbox(10'000);
  ASSERT_OK(inbox.status());
  EXPECT_TRUE((*inbox)->take(Rank{1}, 0).has_value());
}

}  // namespace
}  // namespace lockstep::transport::link

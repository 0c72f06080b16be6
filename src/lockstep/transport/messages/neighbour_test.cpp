#include "lockstep/transport/messages/neighbour.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/testing/pattern.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::messages {
namespace {

using lockstep::testing::FailureIs;
using lockstep::testing::pattern;

class NeighbourTest : public ::testing::Test {
 protected:
  NeighbourTest() {
    auto domains = shm::Domain::of_threads({Rank(0), Rank(1)}, Bytes::mib(16)).value();
    for (auto& domain : domains) pipes_.push_back(shm::Pipes::make(std::move(domain)).value());
    for (const auto& pipes : pipes_) {
      for (const int rank : {0, 1})
        EXPECT_OK(pipes->meet(Rank(rank), pipes_[static_cast<std::size_t>(rank)]->offset()));
    }
    neighbour_.emplace(*strand_, pipes_[0], 1);
  }
  void move() {
    strand_->run([&] { (void)neighbour_->move_on_strand(); });
  }
  static Done into(std::optional<Status>& outcome) {
    return [&outcome](const Status& status) { outcome = status; };
  }

  const std::shared_ptr<Strand> strand_ = std::make_shared<Strand>([] {});
  const Deadline never_{Clock::steady(), base::TimePoint::max()};
  std::vector<std::shared_ptr<shm::Pipes>> pipes_;
  std::optional<Neighbour> neighbour_;  // rank 1, as rank 0 sees it
};

TEST_F(NeighbourTest, WhatOneThatHasLeftWroteBeforeIsReadThoughNothingCanBeWrittenToIt) {
  const Buffer message = pattern(100, 1);
  ASSERT_EQ(*pipes_[1]->write(0, message), message.size());
  pipes_[1]->close(0, shm::Pipes::Why::kLeft);
  Buffer in(message.size());
  Buffer more(1);
  std::optional<Status> received;
  std::optional<Status> ended;
  std::optional<Status> sent;
  strand_->run([&] {
    neighbour_->recv(in, never_, into(received));
    neighbour_->recv(more, never_, into(ended));
    neighbour_->send(message, never_, into(sent));
  });
  EXPECT_FALSE(received || sent);
  move();
  ASSERT_TRUE(received && ended && sent);
  EXPECT_OK(*received);
  EXPECT_EQ(in, message);
  EXPECT_THAT(*ended, FailureIs(Failure::kClosed));
  EXPECT_THAT(*sent, FailureIs(Failure::kClosed));
}

TEST_F(NeighbourTest, WhereNothingIsToBeReadAMessageToOneThatHasLeftFailsAtOnce) {
  pipes_[1]->close(0, shm::Pipes::Why::kLeft);
  std::optional<Status> sent;
  const Buffer message = pattern(100, 1);
  strand_->run([&] { neighbour_->send(message, never_, into(sent)); });
  ASSERT_TRUE(sent);
  EXPECT_THAT(*sent, FailureIs(Failure::kClosed));
}

}  // namespace
}  // namespace lockstep::transport::messages

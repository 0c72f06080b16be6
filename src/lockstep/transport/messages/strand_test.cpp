#include "lockstep/transport/messages/strand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <thread>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::messages {
namespace {

using ::testing::ElementsAre;

// What callbacks have heard.
struct Heard {
  std::vector<Failure> failures;
  std::function<void(const Status&, std::optional<Rank>)> into() {
    return [this](const Status& status, auto) { failures.push_back(status.failure()); };
  }
};

TEST(Strand, ACallbackThatThrowsIsToldSoAndLosesNoOther) {
  int rung = 0;
  const auto strand = std::make_shared<Strand>([&] { ++rung; });
  const Status died = Status::disconnected("rank 1 died", {.failure = Failure::kPeerDied});
  Heard unable;
  Heard other;
  std::function<void(const Status&, std::optional<Rank>)> copies = [&](const Status& status, auto) {
    unable.failures.push_back(status.failure());
    if (status.failure() != Failure::kNoMemory) throw std::bad_alloc();
  };
  std::function<void(const Status&, std::optional<Rank>)> wrong = [](const Status&, auto) {
    throw std::runtime_error("a user's");
  };
  const auto fail_all = [&] {
    auto done = other.into();
    strand->call(copies, died, std::nullopt);
    strand->call(wrong, died, std::nullopt);
    strand->call(done, died, std::nullopt);
  };
  EXPECT_THROW(strand->run(fail_all), std::runtime_error);
  EXPECT_THAT(unable.failures, ElementsAre(Failure::kPeerDied, Failure::kNoMemory));
  EXPECT_THAT(other.failures, ElementsAre(Failure::kPeerDied));
  EXPECT_EQ(rung, 1);
  std::thread([&] { strand->await_calls(); }).join();  // nobody makes calls any more
}

// As where a thread has no memory at all, not even to say so.
TEST(Strand, WhatCouldNotBeToldIsToldInALaterTurn) {
  const auto strand = std::make_shared<Strand>([] {});
  bool poor = true;
  int told = 0;
  strand->when_failed([&](const Status& why) {
    if (poor) throw std::bad_alloc();
    EXPECT_EQ(why.failure(), Failure::kNoMemory);
    ++told;
  });
  EXPECT_FALSE(strand->run([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(strand->run([] {}));
  EXPECT_EQ(told, 0);
  poor = false;
  for (int turn = 0; turn < 2; ++turn) EXPECT_TRUE(strand->run([] {}));
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace lockstep::transport::messages

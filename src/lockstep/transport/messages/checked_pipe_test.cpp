#include "lockstep/transport/messages/checked_pipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lockstep/testing/pattern.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::messages {
namespace {

using lockstep::testing::FailureIs;
using lockstep::testing::pattern;

// Rank 0 writes, rank 1 reads; both are threads of this process.
class CheckedPipeTest : public ::testing::Test {
 protected:
  CheckedPipeTest() {
    auto domains = shm::Domain::of_threads({Rank(0), Rank(1)}, Bytes::mib(16)).value();
    for (auto& domain : domains) pipes_.push_back(shm::Pipes::make(std::move(domain)).value());
    for (const auto& pipes : pipes_) {
      for (const int rank : {0, 1})
        EXPECT_OK(pipes->meet(Rank(rank), pipes_[static_cast<std::size_t>(rank)]->offset()));
    }
  }
  // Changes one bit of `bytes` where rank 0 has written them.
  void flip_in_ring(ByteView bytes) {
    const ByteSpan heap(pipes_[0]->domain().heap().data(), Bytes::mib(1).value);
    const auto found = std::ranges::search(heap, bytes);
    ASSERT_FALSE(found.empty());
    found.front() ^= std::byte{4};
  }

  std::vector<std::unique_ptr<shm::Pipes>> pipes_;
};

TEST_F(CheckedPipeTest, CarriesBytesInOrderWhateverIsWrittenAndReadAtOnce) {
  CheckedPipe from(*pipes_[0], 1);
  CheckedPipe to(*pipes_[1], 0);
  const Buffer sent = pattern(3'000'000, 1);
  Buffer received;
  std::size_t written = 0;
  for (std::size_t round = 0; received.size() < sent.size(); ++round) {
    const ByteView rest = ByteView(sent).subspan(written);
    written += from.write(rest.first(std::min(rest.size(), round * 7919 % 200'000))).value();
    Buffer room(round * 104'729 % 150'000);
    room.resize(to.read(room).value());
    received.insert(received.end(), room.begin(), room.end());
  }
  EXPECT_EQ(received, sent);
}

TEST_F(CheckedPipeTest, AChangedBitEndsItAndNamesTheSender) {
  CheckedPipe from(*pipes_[0], 1);
  CheckedPipe to(*pipes_[1], 0);
  const Buffer right = pattern(100, 1);
  const Buffer wrong = pattern(1000, 2);
  ASSERT_EQ(*from.write(right), right.size());
  ASSERT_EQ(*from.write(wrong), wrong.size());
  flip_in_ring(ByteView(wrong).subspan(500));
  Buffer room(1100);
  EXPECT_EQ(*to.read(room), right.size());
  for (int i = 0; i < 2; ++i) {
    const auto read = to.read(room);
    EXPECT_THAT(read.status(), FailureIs(Failure::kCorruptFrame));
    EXPECT_EQ(read.status().cause().peer, Rank{0});
  }
}

}  // namespace
}  // namespace lockstep::transport::messages

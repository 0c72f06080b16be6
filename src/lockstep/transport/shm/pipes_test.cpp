#include "lockstep/transport/shm/pipes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::shm {
namespace {

using testing::FailureIs;
using ::testing::HasSubstr;
using testing::IsOkAnd;
using testing::StatusIs;

constexpr std::size_t kCapacity = 4096;

// Where a rank's block has what it says to a neighbour: what a damaged or hostile one may write there.
constexpr std::uint64_t kRing = 0;
constexpr std::uint64_t kWritten = 8;
constexpr std::uint64_t kRead = 64;

// Two ranks that are threads of this process.
class PipesTest : public ::testing::Test {
 protected:
  PipesTest() {
    auto domains = Domain::of_threads({Rank{0}, Rank{1}}, Bytes::mib(16));
    for (auto& domain : *domains)
      pipes_.push_back(Pipes::make(std::move(domain), {.capacity = Bytes{kCapacity}}).value());
    for (const auto& pipes : pipes_) {
      for (const int rank : {0, 1}) EXPECT_OK(pipes->meet(Rank{rank}, pipes_[std::size_t(rank)]->offset()));
    }
  }

  Pipes& operator[](std::size_t rank) { return *pipes_[rank]; }
  // Rank 1 says `value` to rank 0, for whom its block has the first place.
  void forge(std::uint64_t field, std::uint64_t value) {
    const std::uint64_t place = pipes_[1]->offset() + sizeof(Bell) + field;
    std::memcpy(pipes_[1]->domain().heap().data() + place, &value, sizeof(value));
  }
  static Buffer numbers(std::size_t count, unsigned first) {
    Buffer bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + i);
    return bytes;
  }

 private:
  std::vector<std::unique_ptr<Pipes>> pipes_;
};

TEST_F(PipesTest, CarryBytesInOrderAroundTheirRing) {
  Pipes& from = (*this)[0];
  Pipes& to = (*this)[1];
  Buffer sent;
  Buffer received;
  for (unsigned number = 0; number < 300; ++number) {
    const Buffer bytes = numbers(number * 7 % 1500, number);
    const std::size_t written = from.write(1, bytes).value();
    sent.insert(sent.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(written));
    Buffer room(number * 11 % 1300);
    const std::size_t read = to.read(0, room).value();
    received.insert(received.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(read));
  }
  Buffer rest(kCapacity);
  rest.resize(to.read(0, rest).value());
  received.insert(received.end(), rest.begin(), rest.end());
  EXPECT_GT(sent.size(), 10 * kCapacity);
  EXPECT_EQ(received, sent);
}

TEST_F(PipesTest, TakeWhatThereIsRoomForAndGiveWhatThereIs) {
  Pipes& from = (*this)[0];
  Pipes& to = (*this)[1];
  Buffer room(100);
  EXPECT_FALSE(to.has_spoken(0));
  EXPECT_THAT(to.read(0, room), IsOkAnd(0U));
  EXPECT_THAT(from.write(1, Buffer(kCapacity + 1)), IsOkAnd(kCapacity));
  EXPECT_THAT(from.write(1, Buffer(1)), IsOkAnd(0U));
  EXPECT_TRUE(to.has_spoken(0));
  EXPECT_THAT(to.read(0, room), IsOkAnd(100U));
  EXPECT_THAT(from.write(1, Buffer(101)), IsOkAnd(100U));
}

TEST_F(PipesTest, AClosedOneCanBeReadToItsEnd) {
  Pipes& from = (*this)[0];
  Pipes& to = (*this)[1];
  EXPECT_THAT(from.write(1, numbers(10, 1)), IsOkAnd(10U));
  from.close(1, Pipes::Why::kLeft);
  Buffer room(10);
  EXPECT_THAT(to.read(0, room), IsOkAnd(10U));
  EXPECT_EQ(room, numbers(10, 1));
  EXPECT_THAT(to.read(0, room), FailureIs(Failure::kClosed));
  EXPECT_THAT(to.write(0, room), FailureIs(Failure::kClosed));
  EXPECT_THAT(from.write(1, room), FailureIs(Failure::kClosed));
}

TEST_F(PipesTest, WhatANeighbourCannotHaveCountedIsTyped) {
  Buffer room(10);
  EXPECT_THAT((*this)[0].write(1, room), IsOkAnd(10U));
  for (const std::uint64_t read : {std::uint64_t{11}, std::uint64_t{1} << 40}) {
    forge(kRead, read);
    EXPECT_THAT((*this)[0].write(1, room), FailureIs(Failure::kCorruptFrame));
  }
  for (const std::uint64_t written : {std::uint64_t{kCapacity + 1}, ~std::uint64_t{0}}) {
    forge(kWritten, written);
    EXPECT_THAT((*this)[0].read(1, room), FailureIs(Failure::kCorruptFrame));
  }
  // Counted right, but with no ring, or one outside of its heap.
  forge(kWritten, 10);
  EXPECT_THAT((*this)[0].read(1, room), FailureIs(Failure::kCorruptFrame));
  for (const std::uint64_t ring : {std::uint64_t{16U << 20}, ~std::uint64_t{0}}) {
    forge(kRing, ring);
    EXPECT_THAT((*this)[0].read(1, room),
                StatusIs(Code::kDisconnected, HasSubstr("rank 1 has announced a ring at offset")));
  }
  EXPECT_THAT((*this)[0].meet(Rank{1}, 1), FailureIs(Failure::kCorruptFrame));
  EXPECT_THAT((*this)[0].meet(Rank{1}, std::uint64_t{16U << 20}), FailureIs(Failure::kCorruptFrame));
  EXPECT_THAT((*this)[0].meet(Rank{7}, 0), StatusIs(Code::kInvalid));
}

TEST_F(PipesTest, AnOfferIsTakenOrRevokedButNotBoth) {
  Pipes& from = (*this)[0];
  Pipes& to = (*this)[1];
  from.offer(1, 5);
  EXPECT_FALSE(to.take(0, 4));
  EXPECT_TRUE(to.take(0, 5));
  EXPECT_FALSE(from.revoke(1, 5));
  from.offer(1, 6);
  EXPECT_TRUE(from.revoke(1, 6));
  EXPECT_FALSE(to.take(0, 6));
  from.offer(1, 7);
  EXPECT_FALSE(to.take(0, 6));  // one that comes late
  EXPECT_TRUE(from.revoke(1, 7));
  EXPECT_EQ(to.offered(0, 0, Bytes::mib(17)), nullptr);
  EXPECT_EQ(to.offered(0, ~std::uint64_t{0}, Bytes{1}), nullptr);
  EXPECT_NE(to.offered(0, 0, Bytes::mib(16)), nullptr);
}

TEST_F(PipesTest, ASleeperIsWokenByBytesAndByRoom) {
  Pipes& from = (*this)[0];
  Pipes& to = (*this)[1];
  constexpr std::size_t kTotal = 100 * kCapacity + 17;
  const Buffer sent = numbers(kTotal, 1);
  std::thread reader([&] {
    Buffer received(kTotal);
    for (std::size_t done = 0; done < kTotal;) {
      std::size_t read = 0;
      const auto look = [&] {
        read = to.read(0, ByteSpan(received).subspan(done)).value();
        return read > 0;
      };
      if (!look()) to.bell().sleep(look, std::chrono::minutes(1));
      done += read;
    }
    EXPECT_EQ(received, sent);
  });
  for (std::size_t done = 0; done < kTotal;) {
    std::size_t written = 0;
    const auto look = [&] {
      written = from.write(1, ByteView(sent).subspan(done)).value();
      return written > 0;
    };
    if (!look()) from.bell().sleep(look, std::chrono::minutes(1));
    done += written;
  }
  reader.join();
}

}  // namespace
}  // namespace lockstep::transport::shm

#include "lockstep/transport/shm/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::shm {
namespace {

using ::testing::HasSubstr;

Bytes resident(const Segment& segment) {
  struct stat info {};
  EXPECT_EQ(::fstat(segment.fd(), &info), 0);
  return Bytes{static_cast<std::uint64_t>(info.st_blocks) * 512};
}

TEST(Segment, TakesNoMemoryUntilItIsReserved) {
  auto segment = Segment::create("test", Bytes::gib(256));
  ASSERT_OK(segment.status());
  EXPECT_EQ(resident(*segment), Bytes{0});
  ASSERT_OK(segment->reserve(1 << 20, Bytes::mib(3)));
  EXPECT_EQ(resident(*segment), Bytes::mib(3));
  EXPECT_EQ(segment->data()[1 << 20], std::byte{0});
  segment->release(1 << 20, Bytes::mib(2));
  EXPECT_EQ(resident(*segment), Bytes::mib(1));
}

TEST(Segment, APeerSeesTheSameBytes) {
  auto owner = Segment::create("test", Bytes::mib(1));
  ASSERT_OK(owner.status());
  ASSERT_OK(owner->reserve(0, Bytes::kib(4)));
  auto peer = Segment::open(UniqueFd(::dup(owner->fd())), owner->capacity());
  ASSERT_OK(peer.status());
  EXPECT_NE(owner->data(), peer->data());
  std::memcpy(owner->data(), "hello", 5);
  EXPECT_EQ(std::memcmp(peer->data(), "hello", 5), 0);
}

TEST(Segment, NobodyCanShrinkItUnderAPeer) {
  auto owner = Segment::create("test", Bytes::mib(1));
  ASSERT_OK(owner.status());
  EXPECT_NE(::ftruncate(owner->fd(), 0), 0);
  EXPECT_NE(::ftruncate(owner->fd(), 4 << 20), 0);
}

TEST(Segment, OnlyASealedDescriptorOfTheRightSizeIsOpened) {
  const UniqueFd plain(::memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(plain.get(), 1 << 20), 0);
  EXPECT_EQ(Segment::open(UniqueFd(::dup(plain.get())), Bytes::mib(1)).status().code(), Code::kInvalid);
  EXPECT_EQ(Segment::open(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)), Bytes::mib(1)).status().code(),
            Code::kInvalid);
  auto owner = Segment::create("test", Bytes::mib(1));
  ASSERT_OK(owner.status());
  const Status wrong = Segment::open(UniqueFd(::dup(owner->fd())), Bytes::mib(2)).status();
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("1.0 MiB, not the 2.0 MiB"));
}

TEST(Segment, AReservationBeyondTheFreeMemoryIsRefusedAndGivesBackWhatItTook) {
  std::uint64_t free_bytes = 300ULL << 20;
  int asked = 0;
  const MemoryProbe poor = [&]() -> Result<base::MemoryLimits> {
    if (++asked > 2) free_bytes = 10ULL << 20;
    return base::MemoryLimits{.total = Bytes::gib(1), .available = Bytes{free_bytes}, .cgroup_limit = {}};
  };
  auto segment = Segment::create("test", Bytes::gib(1), 0, poor);
  ASSERT_OK(segment.status());
  const Status status = segment->reserve(0, Bytes::mib(200));
  EXPECT_EQ(status.failure(), Failure::kNoSpace);
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 192.0 MiB more, but only 10.0 MiB"));
  EXPECT_EQ(resident(*segment), Bytes{0});
}

// Each begins when the one before it has asked, and not yet taken what it was told is there.
TEST(Segment, NeighboursThatAskAtTheSameMomentLeaveTheRestToOthers) {
  constexpr std::size_t kCount = 5;
  constexpr std::uint64_t kPool = 196ULL << 20;  // all want 200 MiB together
  std::vector<Segment> segments;
  std::vector<Status> reserved;
  std::int64_t lowest = kPool;
  const auto available = [&] {
    std::int64_t left = kPool;
    for (const Segment& segment : segments) left -= static_cast<std::int64_t>(resident(segment).value);
    lowest = std::min(lowest, left);
    return left;
  };
  const auto reserve_next = [&] {
    const std::size_t next = reserved.size();
    reserved.emplace_back();
    reserved[next] = segments[next].reserve(0, Bytes::mib(40));
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    auto segment =
        Segment::create("test", Bytes::mib(64), kCount - 1, [&, i]() -> Result<base::MemoryLimits> {
          const Bytes seen{static_cast<std::uint64_t>(std::max<std::int64_t>(0, available()))};
          if (reserved.size() == i + 1 && i + 1 < kCount) reserve_next();
          return base::MemoryLimits{.total = Bytes{kPool}, .available = seen, .cgroup_limit = {}};
        });
    ASSERT_OK(segment.status());
    segments.push_back(std::move(*segment));
  }
  reserve_next();
  available();
  EXPECT_GE(lowest, static_cast<std::int64_t>(Segment::kMargin.value));
  ASSERT_EQ(reserved.size(), kCount);
  EXPECT_OK(reserved.back());
  EXPECT_EQ(reserved.front().failure(), Failure::kNoSpace);
}

TEST(Segment, AReservationOutsideIsRefused) {
  auto segment = Segment::create("test", Bytes::mib(1));
  ASSERT_OK(segment.status());
  EXPECT_EQ(segment->reserve(0, Bytes{(1 << 20) + 1}).failure(), Failure::kLimitExceeded);
  EXPECT_EQ(segment->reserve(UINT64_MAX, Bytes{2}).failure(), Failure::kLimitExceeded);
  EXPECT_EQ(segment->reserve(4096, Bytes{UINT64_MAX}).failure(), Failure::kLimitExceeded);
}

TEST(Segment, AfterMovingHouseALateWriterChangesNothing) {
  auto owner = Segment::create("test", Bytes::mib(4));
  ASSERT_OK(owner.status());
  ASSERT_OK(owner->reserve(0, Bytes::mib(1)));
  auto stopped = Segment::open(UniqueFd(::dup(owner->fd())), owner->capacity());
  ASSERT_OK(stopped.status());
  std::byte* const address = owner->data();
  std::memcpy(owner->data(), "kept", 4);

  auto stays = Segment::open(UniqueFd(::dup(owner->fd())), owner->capacity());
  ASSERT_OK(stays.status());
  std::byte* const seen_at = stays->data();

  const Segment::Part used{.offset = 0, .size = 1 << 20};
  ASSERT_OK(owner->move_house({&used, 1}));
  ASSERT_OK(stays->follow(UniqueFd(::dup(owner->fd()))));
  std::memcpy(stopped->data(), "late", 4);

  EXPECT_EQ(owner->data(), address);
  EXPECT_EQ(std::memcmp(owner->data(), "kept", 4), 0);
  EXPECT_EQ(stays->data(), seen_at);
  EXPECT_EQ(std::memcmp(stays->data(), "kept", 4), 0);
  std::memcpy(stays->data(), "both", 4);
  EXPECT_EQ(std::memcmp(owner->data(), "both", 4), 0);
}

TEST(Segment, MovingHouseTakesMemoryForTheUsedPartsAlone) {
  auto owner = Segment::create("test", Bytes::gib(1));
  ASSERT_OK(owner.status());
  const Segment::Part parts[] = {{.offset = 0, .size = 4096}, {.offset = 512 << 20, .size = 8192}};
  for (const auto& [offset, size] : parts) ASSERT_OK(owner->reserve(offset, Bytes{size}));
  ASSERT_OK(owner->move_house(parts));
  EXPECT_EQ(resident(*owner), Bytes::kib(12));
}

TEST(Segment, AHouseThatCannotBeMovedStays) {
  bool poor = false;
  auto owner = Segment::create("test", Bytes::mib(4), 0, [&poor]() -> Result<base::MemoryLimits> {
    return base::MemoryLimits{
        .total = Bytes::gib(1), .available = poor ? Bytes{0} : Bytes::gib(1), .cgroup_limit = {}};
  });
  ASSERT_OK(owner.status());
  ASSERT_OK(owner->reserve(0, Bytes::mib(1)));
  auto peer = Segment::open(UniqueFd(::dup(owner->fd())), owner->capacity());
  ASSERT_OK(peer.status());
  poor = true;
  const Segment::Part used{.offset = 0, .size = 1 << 20};
  EXPECT_EQ(owner->move_house({&used, 1}).failure(), Failure::kNoSpace);
  std::memcpy(peer->data(), "seen", 4);
  EXPECT_EQ(std::memcmp(owner->data(), "seen", 4), 0);
}

}  // namespace
}  // namespace lockstep::transport::shm

#include "lockstep/transport/shm/heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <vector>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::shm {
namespace {

using ::testing::HasSubstr;

// A heap whose machine has `free_` memory, and that counts how often it was asked for that.
class Heaps : public ::testing::Test {
 protected:
  void make(Bytes capacity) {
    auto segment = Segment::create("test", capacity, 0, [this]() -> Result<base::MemoryLimits> {
      ++asked_;
      return base::MemoryLimits{.total = Bytes::gib(64), .available = free_, .cgroup_limit = {}};
    });
    ASSERT_OK(segment.status());
    heap_.emplace(std::move(*segment));
  }
  Bytes real() const {
    struct stat info {};
    EXPECT_EQ(::fstat(heap_->fd(), &info), 0);
    return Bytes{static_cast<std::uint64_t>(info.st_blocks) * 512};
  }

  Bytes free_ = Bytes::gib(1);
  int asked_ = 0;
  std::optional<Heap> heap_;
};

TEST_F(Heaps, GrowGiveBackAndSayWhenTheyAreFull) {
  make(Bytes::mib(8));
  auto first = heap_->allocate(Bytes::mib(5));
  ASSERT_OK(first.status());
  EXPECT_EQ(heap_->offset_of(first->data + 100, Bytes{10}), first->offset + 100);
  EXPECT_EQ(heap_->offset_of(&heap_, Bytes{1}), std::nullopt);
  const Status full = heap_->allocate(Bytes::mib(4)).status();
  EXPECT_EQ(full.failure(), Failure::kNoSpace);
  EXPECT_THAT(std::string(full.message()), HasSubstr("no room for 4.0 MiB (5.0 MiB are in use"));
  heap_->free(first->offset);
  EXPECT_EQ(heap_->used(), Bytes{0});
  EXPECT_EQ(real(), Bytes{0});
  EXPECT_OK(heap_->allocate(Bytes::mib(8)).status());
  EXPECT_EQ(real(), Bytes::mib(8));
}

TEST_F(Heaps, SmallRangesAskForMemoryOnce) {
  make(Bytes::mib(64));
  std::vector<std::uint64_t> offsets;
  for (int i = 0; i < 1000; ++i) {
    auto range = heap_->allocate(Bytes::kib(1));
    ASSERT_OK(range.status());
    offsets.push_back(range->offset);
  }
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(real(), Heap::kAhead);
  for (const std::uint64_t offset : offsets) heap_->free(offset);
  EXPECT_OK(heap_->allocate(Bytes::kib(900)).status()) << "their pages are kept";
  EXPECT_EQ(asked_, 1);
}

TEST_F(Heaps, NothingIsTakenAheadWhereMemoryIsShort) {
  make(Bytes::mib(64));
  free_ = Bytes{Bytes::mib(64).value + Bytes::kib(64).value};  // 64 MiB are left to others
  ASSERT_OK(heap_->allocate(Bytes::kib(64)).status());
  EXPECT_EQ(real(), Bytes::kib(64));
  const Status none = heap_->allocate(Bytes::kib(65)).status();
  EXPECT_EQ(none.failure(), Failure::kNoSpace);
  EXPECT_THAT(std::string(none.message()), HasSubstr("needs 68.0 KiB more"));
  EXPECT_EQ(heap_->used(), Bytes::kib(64));
}

TEST_F(Heaps, AFailedAllocationTakesNobodysPages) {
  make(Bytes::mib(64));
  auto low = heap_->allocate(Bytes::mib(3));
  auto high = heap_->allocate(Bytes::kib(4));
  ASSERT_OK(high.status());
  std::memset(high->data, 7, Bytes::kib(4).value);
  heap_->free(low->offset);
  const Bytes before = real();
  free_ = Bytes::mib(66);
  EXPECT_EQ(heap_->allocate(Bytes::mib(3)).status().failure(), Failure::kNoSpace);
  EXPECT_EQ(real(), before);
  EXPECT_EQ(high->data[4095], std::byte{7});
  free_ = Bytes::gib(1);
  EXPECT_EQ(heap_->allocate(Bytes::mib(3))->offset, low->offset);
}

TEST_F(Heaps, PagesThatWereGivenBackAreMadeAnew) {
  make(Bytes::mib(64));
  auto range = heap_->allocate(Bytes::mib(4));
  ASSERT_OK(range.status());
  heap_->free(range->offset);
  EXPECT_EQ(real(), Bytes{0});
  ASSERT_OK(heap_->allocate(Bytes{1}).status());
  EXPECT_EQ(real(), Heap::kAhead);
}

TEST_F(Heaps, AfterMovingHouseOnlyWhatIsInUseIsReal) {
  make(Bytes::mib(64));
  auto kept = heap_->allocate(Bytes::kib(8));
  ASSERT_OK(kept.status());
  std::memset(kept->data, 5, Bytes::kib(8).value);
  ASSERT_OK(heap_->move_house());
  EXPECT_EQ(real(), Bytes::kib(8));
  EXPECT_EQ(kept->data[8191], std::byte{5});
  auto next = heap_->allocate(Bytes::kib(8));
  ASSERT_OK(next.status());
  EXPECT_EQ(next->offset, Bytes::kib(8).value);
  EXPECT_EQ(real().value, Bytes::kib(8).value + Heap::kAhead.value);
}

TEST(HeapDeathTest, FreeingTwiceIsOurBug) {
  auto segment = Segment::create("test", Bytes::mib(1));
  ASSERT_OK(segment.status());
  Heap heap(std::move(*segment));
  auto range = heap.allocate(Bytes{1});
  heap.free(range->offset);
  EXPECT_DEATH(heap.free(range->offset), "freed twice");
}

}  // namespace
}  // namespace lockstep::transport::shm

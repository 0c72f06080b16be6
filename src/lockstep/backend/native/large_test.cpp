// Buffers of more than 2^31 bytes, which no 32-bit number counts. Takes some 4.5 GiB of memory.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/backend/operations.h"
#include "lockstep/testing/process_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;

constexpr std::size_t kSize = (std::size_t{1} << 31) + 77;

// Whether all bytes of it are `value`, at the speed of memory.
bool are_all(ByteView bytes, std::byte value) {
  return bytes.front() == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

TEST(WorldOfProcesses, BuffersBeyondTwoToTheThirtyOneAreWhole) {
  EXPECT_OK(ProcessWorld{2}.run([](const SpawnedRank& rank) {
    const auto world = join(rank);
    ASSERT_TRUE(world);
    Backend& group = world->group();
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(kSize);
    const ByteSpan bytes(memory.get(), kSize);
    const ByteSpan all_but_last = bytes.first(bytes.size() - 1);
    std::memset(bytes.data(), rank.rank.value + 1, bytes.size());
    bytes.back() = std::byte{10};
    const OpOptions options{.deadline = Clock::steady().in(5min)};

    ASSERT_OK(
        group.run({.kind = OpKind::kAllReduce, .dtype = DType::kUint8, .outputs = {&bytes, 1}}, options));
    EXPECT_TRUE(are_all(all_but_last, std::byte{3}));
    EXPECT_EQ(bytes.back(), std::byte{20});

    if (rank.rank.value == 0) {
      std::memset(bytes.data(), 7, bytes.size());
      bytes.back() = std::byte{8};
      ASSERT_OK(group.send(Rank{1}, 1, bytes, options)->wait());
    } else {
      ASSERT_OK(group.recv(Rank{0}, 1, bytes, options)->wait());
      EXPECT_TRUE(are_all(all_but_last, std::byte{7}));
      EXPECT_EQ(bytes.back(), std::byte{8});
    }
    ASSERT_OK(barrier(group, options));
  }));
}

}  // namespace
}  // namespace lockstep::backend

#include "lockstep/ddp/heap_top.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <vector>

#include "lockstep/testing/sanitized.h"

namespace lockstep::ddp {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::TensorOptions().dtype(at::kByte)); }

TEST(HeapTop, KeepsTheHighestOfAllThatItSaw) {
  if (testing::kSanitized) GTEST_SKIP() << "the heap is the sanitizer's";
  ASSERT_EQ(::mallopt(M_MMAP_THRESHOLD, 8 * kMiB), 1);  // what is smaller comes from the heap
  std::vector<at::Tensor> gradients;
  for (int i = 0; i < 3; ++i) gradients.push_back(bytes((i + 1) * kMiB));
  std::sort(gradients.begin(), gradients.end(),
            [](const at::Tensor& a, const at::Tensor& b) { return a.const_data_ptr() < b.const_data_ptr(); });
  HeapTop top;
  const auto keeps = [&](int which) {
    return top.kept() == gradients[static_cast<std::size_t>(which)].nbytes();
  };
  top.saw(gradients[1]);
  EXPECT_TRUE(keeps(1));
  top.saw(gradients[0]);
  EXPECT_TRUE(keeps(1));
  top.saw(gradients[2]);
  EXPECT_TRUE(keeps(2));
  const c10::Storage highest = gradients[2].storage();
  EXPECT_EQ(gradients[1].storage().use_count(), 1U);  // let go
  gradients.clear();
  EXPECT_EQ(highest.use_count(), 2U);
}

TEST(HeapTop, KeepsNothingThatIsLargeOrNotInTheHeap) {
  HeapTop top;
  top.saw(bytes(64 * kMiB));
  EXPECT_EQ(top.kept(), 0U);
  char on_stack[64] = {};
  top.saw(at::from_blob(on_stack, {64}, at::TensorOptions().dtype(at::kByte)));
  EXPECT_EQ(top.kept(), 0U);
}

}  // namespace
}  // namespace lockstep::ddp

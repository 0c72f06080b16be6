#include "lockstep/tensor/overlap.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace lockstep::tensor {
namespace {

TEST(Overlap, IsFoundInsideOneTensor) {
  const at::Tensor matrix = at::zeros({3, 4});
  EXPECT_FALSE(overlaps_itself(matrix));
  EXPECT_FALSE(overlaps_itself(matrix.t()));
  EXPECT_FALSE(overlaps_itself(matrix.select(1, 2)));
  EXPECT_FALSE(overlaps_itself(matrix.slice(1, 0, 4, 2)));
  EXPECT_FALSE(overlaps_itself(at::zeros({1}).expand({1})));
  EXPECT_FALSE(overlaps_itself(at::zeros({0}).expand({5, 0})));
  EXPECT_TRUE(overlaps_itself(at::zeros({1}).expand({4})));
  EXPECT_TRUE(overlaps_itself(matrix.select(0, 0).unsqueeze(0).expand({2, 4})));
  EXPECT_TRUE(overlaps_itself(at::zeros({9}).as_strided({4, 4}, {1, 1})));
  // Strides that are not nested and still never meet.
  EXPECT_FALSE(overlaps_itself(at::zeros({9}).as_strided({2, 2}, {2, 3})));
}

TEST(Overlap, OfTwoTensorsIsExact) {
  const at::Tensor matrix = at::zeros({3, 4});
  EXPECT_TRUE(overlap(matrix, matrix));
  EXPECT_TRUE(overlap(matrix, matrix.select(1, 2)));
  EXPECT_FALSE(overlap(matrix.select(0, 0), matrix.select(0, 1)));
  EXPECT_FALSE(overlap(matrix.select(1, 0), matrix.select(1, 1)));
  EXPECT_TRUE(overlap(matrix.select(1, 0), matrix.select(0, 1)));
  EXPECT_FALSE(overlap(matrix.slice(1, 0, 4, 2), matrix.slice(1, 1, 4, 2)));
  EXPECT_TRUE(overlap(matrix.slice(1, 0, 4, 2), matrix.slice(1, 0, 4, 3)));
  EXPECT_FALSE(overlap(matrix, at::zeros({3, 4})));
  EXPECT_FALSE(overlap(matrix, matrix.slice(0, 1, 1)));  // nothing is in it
}

TEST(Overlap, IsFoundInALongList) {
  const at::Tensor whole = at::zeros({100, 2});
  std::vector<at::Tensor> rows;
  for (int i = 0; i < 100; ++i) rows.push_back(whole.select(0, (i * 37) % 100));
  const auto find = [&](std::size_t written) {
    std::vector<const at::Tensor*> list;
    for (const at::Tensor& row : rows) list.push_back(&row);
    return find_overlap(list, [=](std::size_t i) { return i == written; });
  };
  EXPECT_EQ(find(3), std::nullopt);
  rows.push_back(whole.select(0, 37));
  EXPECT_EQ(find(3), std::nullopt);  // two inputs may share memory
  EXPECT_EQ(find(1), std::pair(std::size_t{1}, std::size_t{100}));
  EXPECT_EQ(find(100), std::pair(std::size_t{1}, std::size_t{100}));
}

}  // namespace
}  // namespace lockstep::tensor

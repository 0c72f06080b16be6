#include "lockstep/ddp/bucket.h"

#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/tensor/init.h"

namespace lockstep::ddp {
namespace {

using ::testing::HasSubstr;

GradBucket bucket_of(const std::vector<at::Tensor>& locals) {
  std::vector<std::vector<std::int64_t>> strides;
  for (const at::Tensor& local : locals) strides.push_back(gradient_strides(local));
  return {0, locals, strides};
}

// Large and small ones, of which some begin at odd places and one is laid out by columns.
TEST(GradBucket, HoldsWhatItsPlacesWereFilledWithWhicheverWayWasTaken) {
  const auto alone = init_process_group({.environment = Environment{}});
  const std::vector<at::Tensor> locals = {at::empty({3}), at::empty({300, 301}), at::empty({129, 257}).t(),
                                          at::empty({0}), at::empty({40'000})};
  GradBucket bucket = bucket_of(locals);
  collective::CopyChoice choice;
  for (int pass = 0; pass < 3; ++pass) {
    std::vector<at::Tensor> gradients;
    for (std::size_t place = 0; place < locals.size(); ++place) {
      gradients.push_back(at::rand(locals[place].sizes()));
      if (place == 1 && pass == 2) gradients[1] = at::rand({301, 300}).t();  // laid out as no other
      if (place == 2) gradients[2] = at::rand({129, 257}).t();
      bucket.fill(place, gradients[place], choice);
    }
    for (std::size_t place = 0; place < locals.size(); ++place) {
      EXPECT_TRUE(at::equal(bucket.view(place), gradients[place])) << place;
      EXPECT_TRUE(at::equal(bucket.gradients()[place], gradients[place])) << place;
    }
  }
}

TEST(GradBucket, IsFilledWithGradientsThatAreOtherThanTheirMemorySays) {
  const auto alone = init_process_group({.environment = Environment{}});
  GradBucket bucket = bucket_of({at::empty({3}, at::kComplexFloat), at::empty({40'000}, at::kComplexFloat)});
  collective::CopyChoice choice;
  for (std::size_t place : {0, 1}) {
    const at::Tensor gradient = at::rand(bucket.view(place).sizes(), at::kComplexFloat);
    bucket.fill(place, gradient.conj(), choice);
    EXPECT_TRUE(at::equal(bucket.view(place), gradient.conj().resolve_conj())) << place;
    bucket.fill(place, at::_neg_view(gradient), choice);
    EXPECT_TRUE(at::equal(bucket.view(place), -gradient)) << place;
    bucket.fill(place, at::_efficientzerotensor(gradient.sizes(), gradient.options()), choice);
    EXPECT_TRUE(at::equal(bucket.view(place), at::zeros_like(gradient))) << place;
  }
}

TEST(GradBucket, IsItsOwnAgainWhateverAHookHasMadeOfItsBuffer) {
  const auto alone = init_process_group({.environment = Environment{}});
  GradBucket bucket = bucket_of({at::empty({2}), at::empty({4})});
  const void* const home = bucket.buffer().const_data_ptr();
  const auto settled = [&](const std::function<void(const at::Tensor&)>& change) {
    change(bucket.buffer());
    const std::string wrong = bucket.settle();
    EXPECT_EQ(bucket.buffer().sizes(), at::IntArrayRef({6}));
    EXPECT_EQ(bucket.buffer().scalar_type(), at::kFloat);
    EXPECT_EQ(bucket.buffer().const_data_ptr(), home);
    EXPECT_EQ(bucket.view(1).numel(), 4);
    return wrong;
  };
  EXPECT_EQ(settled([](const at::Tensor& buffer) { buffer.fill_(1); }), "");
  EXPECT_THAT(settled([](const at::Tensor& buffer) { buffer.resize_({2}); }), HasSubstr("2 elements"));
  EXPECT_THAT(settled([](const at::Tensor& buffer) { buffer.set_data(at::ones({3})); }), HasSubstr("3 ele"));
  EXPECT_THAT(settled([](const at::Tensor& buffer) { buffer.set_data(at::ones({6}, at::kHalf)); }),
              HasSubstr("Half"));
  EXPECT_TRUE(at::equal(bucket.view(0), at::ones({2})));
  // What fits is taken, however it was brought.
  EXPECT_EQ(settled([](const at::Tensor& buffer) { buffer.unsqueeze_(0).mul_(2); }), "");
  EXPECT_TRUE(at::equal(bucket.view(1), at::full({4}, 2.F)));
  EXPECT_EQ(settled([](const at::Tensor& buffer) { buffer.set_data(at::full({3, 2}, 3.F)); }), "");
  EXPECT_TRUE(at::equal(bucket.view(1), at::full({4}, 3.F)));
}

}  // namespace
}  // namespace lockstep::ddp

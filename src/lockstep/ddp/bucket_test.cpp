#include "lockstep/ddp/bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/tensor/init.h"

namespace lockstep::ddp {
namespace {

// Large and small ones, of which some begin at odd places and one is laid out by columns.
TEST(GradBucket, HoldsWhatItsPlacesWereFilledWithWhicheverWayWasTaken) {
  const auto alone = init_process_group({.environment = Environment{}});
  const std::vector<at::Tensor> locals = {at::empty({3}), at::empty({300, 301}), at::empty({129, 257}).t(),
                                          at::empty({0}), at::empty({40'000})};
  GradBucket bucket(0, locals);
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

}  // namespace
}  // namespace lockstep::ddp

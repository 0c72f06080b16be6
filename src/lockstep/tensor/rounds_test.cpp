#include "lockstep/tensor/rounds.h"

#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

TEST(Rounds, EachKnowsWhatTheOneBeforeHasBrought) {
  for (const int size : {1, 2, 3}) {
    run_world(size, [size](int rank) {
      for (const bool async_op : {false, true}) {
        const at::Tensor first = at::full({3}, rank + 1, at::kFloat);
        const at::Tensor second = at::empty({5}, at::kDouble);
        bool finished = false;
        const WorkHandle work = all_reduce_rounds(
            first, {[&] { return second.fill_(first[0].item<double>()); }, [&] { return first.mul_(2); }},
            [&] { finished = true; }, {.async_op = async_op});
        const at::Tensor between = at::ones({2});  // comes after all rounds
        all_reduce(between);
        work.wait();
        const double sum = size * (size + 1) / 2.;
        EXPECT_TRUE(finished && all_equal(second, sum * size) && all_equal(first, sum * 2 * size));
        EXPECT_TRUE(all_equal(between, size));
      }
    });
  }
}

TEST(Rounds, WhatIsThrownBetweenThemIsHeardByAll) {
  for (const bool async_op : {false, true}) {
    run_world(2, [&](int rank) {
      const auto rounds = [&] {
        const at::Tensor first = at::ones({2});
        const auto next = [&]() -> at::Tensor {
          if (rank == 1) throw std::runtime_error("out of ideas");
          return first;
        };
        all_reduce_rounds(first, {next}, {}, {.async_op = async_op}).wait();
      };
      if (rank == 1) {
        expect_error<DistBackendError>(rounds, {"rank 1", "all_reduce_rounds", "out of ideas"});
      } else {
        expect_error<RemoteError>(rounds, {"rank 1", "out of ideas"});
      }
    });
  }
}

TEST(Rounds, WhatDoesNotFitIsRefusedInWords) {
  run_world(2, [](int) {
    expect_error([] { all_reduce_rounds(at::ones({4, 4}).t(), {}, {}); }, {"first", "not contiguous"});
    expect_error([] { all_reduce_rounds(at::ones({2}), {nullptr}, {}); }, {"next", "empty function"});
    expect_error([] { all_reduce_rounds(at::ones({2}), {}, {}, {.op = ReduceOp::kBand}); }, {"op", "float"});
    const auto gives = [](const at::Tensor& tensor) {
      return [=] {
        all_reduce_rounds(at::ones({2}), {[=] { return tensor; }}, {}, {.group = new_group({0, 1})});
      };
    };
    expect_error<DistBackendError>(gives({}), {"all_reduce_rounds", "undefined"});
    expect_error<DistBackendError>(gives(at::ones({4, 4}).t()), {"[4, 4]", "not contiguous"});
    expect_error<DistBackendError>(gives(at::ones({2}, at::kMeta)), {"meta", "cpu"});
  });
}

}  // namespace
}  // namespace lockstep::tensor

// Windows of tensors, on worlds of real processes.
#include "lockstep/tensor/window.h"

#include <optional>
#include <thread>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/tensor/resident.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;

// What init_process_group() makes of a world whose first ranks are on one host, as far as they know, and the
// others on another.
BackendSource on_two_hosts(const SpawnedRank& rank, int first) {
  return {.join = [&rank, first](const WorldOptions& options,
                                 const Environment&) -> Result<std::unique_ptr<Groups>> {
    return std::unique_ptr<Groups>(backend::join_on_two_hosts(rank, first, options));
  }};
}

void pass_round(int rank, int size) {
  const int next = (rank + 1) % size;
  const int before = (rank + size - 1) % size;
  const Window window({2, 3}, at::kDouble);
  EXPECT_TRUE(all_equal(window.tensor(), 0));
  EXPECT_TRUE(is_resident(window.tensor()));
  barrier();
  // A column: neither end is contiguous.
  const at::Tensor wide = at::full({2, 2}, rank + 1, at::kDouble);
  window.put(wide.select(1, 0), {.dst = next, .offset = 3});
  window.signal({.group_dst = next});
  window.wait_signal({.src = before});
  EXPECT_TRUE(
      window.tensor().equal(at::tensor({0, 0, 0, before + 1, before + 1, 0}, at::kDouble).view({2, 3})));
  const at::Tensor read = at::zeros({2, 2}, at::kDouble);
  window.get(read.select(1, 1), {.src = next, .offset = 4});
  EXPECT_TRUE(read.equal(at::tensor({0, rank + 1, 0, 0}, at::kDouble).view({2, 2})));
  window.signal({.dst = before});
  window.wait_signal({.src = next});
  barrier();
}

TEST(Window, PassesTensorsAndSignals) {
  for (const int size : {1, 2, 3}) {
    run_world(size, [size](int rank) {
      pass_round(rank, size);
      pass_round(rank, size);
      const Window window({4}, at::kLong);
      const at::Tensor next = window.map({.src = (rank + 1) % size});
      next.fill_(rank + 1);
      barrier();
      EXPECT_TRUE(all_equal(window.tensor(), (rank + size - 1) % size + 1));
      barrier();
    });
  }
}

TEST(Window, PassesThemBetweenHosts) {
  EXPECT_OK(ProcessWorld(3).run([](const SpawnedRank& rank) {
    const auto world = init_process_group(
        {.backend = "two", .backends = {{"two", on_two_hosts(rank, 1)}}, .environment = rank.environment});
    pass_round(rank.rank.value, 3);
    const Window window({4}, at::kLong);
    try {
      (void)window.map({.src = rank.rank.value == 0 ? 1 : 0});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const DistBackendError& error) {
      EXPECT_EQ(error.code(), Code::kUnsupported) << error.what();
    }
    barrier();
  }));
}

TEST(Window, RefusesWhatCannotBeMeantAndLivesOn) {
  run_world(2, [](int rank) {
    expect_error([] { const Window window({2, -1}, at::kFloat); }, {"Window: sizes", "-1"});
    expect_error([] { const Window window({1L << 61, 4}, at::kFloat); }, {"Window: sizes", "more bytes"});
    expect_error([] { const Window window({2}, at::kFloat, {.timeout = -1s}); }, {"Window", "negative"});
    const Window window({rank == 0 ? 4 : 2}, at::kFloat);
    const at::Tensor three = at::ones({3});
    expect_error([&] { window.put(three, {.dst = 1}); }, {"put", "3 elements", "2 of rank 1"});
    expect_error([&] { window.put(three, {.dst = 0, .offset = 2}); }, {"put", "offset 2"});
    expect_error([&] { window.get(three, {.src = 0, .offset = -1}); }, {"get", "offset -1"});
    expect_error([&] { window.put(at::ones({1}, at::kLong), {.dst = 0}); }, {"put", "Long", "Float"});
    expect_error([&] { window.put(three, {}); }, {"put", "neither dst nor group_dst"});
    expect_error([&] { window.signal({.dst = 2}); }, {"signal", "dst is 2"});
    expect_error<MissingRanks>([&] { window.wait_signal({.src = 1 - rank, .timeout = 10ms}); },
                               {"wait_signal", cat("rank ", 1 - rank)});
    barrier();
    window.signal({.dst = 1 - rank});
    window.wait_signal({.src = 1 - rank});
    barrier();
  });
}

TEST(Window, EndsWithItsWorldAndItsTensorsStay) {
  EXPECT_OK(ProcessWorld(2).run([](const SpawnedRank& rank) {
    std::optional<Window> window;
    at::Tensor own;
    at::Tensor peer;
    {
      const auto world = init_process_group({.environment = rank.environment});
      window.emplace(at::IntArrayRef{3}, at::kLong);
      own = window->tensor();
      peer = window->map({.src = 1 - rank.rank.value});
      own.fill_(rank.rank.value);
      barrier();
      // Ends because this rank leaves, or the other one, whichever is first.
      std::thread waiting([&] {
        try {
          window->wait_signal({.src = 1 - rank.rank.value});
          ADD_FAILURE() << "nothing was thrown";
        } catch (const std::exception& error) {
          const auto* fields = dynamic_cast<const ErrorFields*>(&error);
          ASSERT_NE(fields, nullptr) << error.what();
          EXPECT_THAT(fields->failure(), ::testing::AnyOf(Failure::kClosed, Failure::kDesync))
              << error.what();
        }
      });
      destroy_process_group();
      waiting.join();
    }
    expect_error([&] { window->signal({.dst = 0}); }, {"signal"});
    EXPECT_TRUE(all_equal(own, rank.rank.value));
    EXPECT_TRUE(all_equal(peer, 1 - rank.rank.value));
  }));
}

}  // namespace
}  // namespace lockstep::tensor

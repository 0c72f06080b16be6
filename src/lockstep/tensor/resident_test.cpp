// Resident tensors, on worlds of real processes.
#include "lockstep/tensor/resident.h"

#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/CPUAllocator.h>

#include "lockstep/backend/counting.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

using lockstep::testing::ProcessWorld;

constexpr std::int64_t kMany = 1 << 20;  // large enough to be used where it lies

// What the default group has copied to shared memory so far.
Bytes staged() {
  const auto* counting = dynamic_cast<const backend::Counting*>(ProcessGroup().backend().get());
  EXPECT_NE(counting, nullptr);
  return counting->counters().staged;
}

TEST(Resident, ACollectiveCopiesNothingBeforeTheReduction) {
  for (const int size : {2, 3}) {
    run_world(size, [size](int rank) {
      const at::Tensor resident = empty_resident({kMany}, at::kFloat);
      resident.fill_(rank + 1);
      const Bytes before = staged();
      all_reduce(resident);
      EXPECT_EQ(staged(), before);
      EXPECT_TRUE(all_equal(resident, size * (size + 1) / 2));

      const at::Tensor plain = at::full({kMany}, rank + 1, at::kFloat);
      all_reduce(plain);
      EXPECT_GT(staged(), before) << "the count does not count";
      EXPECT_TRUE(plain.equal(resident));

      const Bytes later = staged();
      broadcast(resident.fill_(rank), {.src = 1});
      EXPECT_TRUE(all_equal(resident, 1));
      all_reduce(resident.slice(0, 0, kMany / 2), {.async_op = true}).wait();
      EXPECT_EQ(staged(), later) << "a part of a resident tensor is resident";
    });
  }
}

TEST(Resident, TensorsAreAsOptionsSay) {
  for (const int size : {1, 2, 3}) {
    run_world(size, [size](int rank) {
      const at::Tensor zeros = zeros_resident({2, 3}, at::TensorOptions().dtype(at::kLong));
      EXPECT_TRUE(all_equal(zeros, 0));
      EXPECT_EQ(zeros.scalar_type(), at::kLong);
      EXPECT_TRUE(is_resident(zeros));
      EXPECT_TRUE(is_resident(zeros.select(0, 1)));
      EXPECT_FALSE(is_resident(at::zeros({3})));
      EXPECT_FALSE(is_resident(at::Tensor()));
      all_reduce(zeros.add_(rank));
      EXPECT_TRUE(all_equal(zeros, size * (size - 1) / 2));

      const at::Tensor leaf = zeros_resident({4}, at::TensorOptions().requires_grad(true));
      EXPECT_TRUE(leaf.is_leaf() && leaf.requires_grad());
      const at::Tensor none = empty_resident({0, 5});
      EXPECT_EQ(none.numel(), 0);
      const at::Tensor grown = empty_resident({2});
      grown.resize_({1000});
      EXPECT_TRUE(is_resident(grown));

      expect_error([] { empty_resident({2, -1}); }, {"empty_resident", "-1"});
      expect_error([] { empty_resident({2}, at::TensorOptions().device(at::kMeta)); }, {"meta"});
      expect_error([] { empty_resident({2}, at::TensorOptions().layout(at::kSparse)); }, {"sparse"});
      constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
      const std::string own = "rank " + std::to_string(rank) + ": ";
      expect_error([] { empty_resident({kMost}); }, {own, "empty_resident: sizes", "more bytes"});
      expect_error([] { zeros_resident({kMost, 0, 3}); }, {own, "zeros_resident: sizes", "more bytes"});
    });
  }
}

TEST(Resident, NeedsAWorld) {
  expect_error([] { empty_resident({2}); }, {"empty_resident", "init_process_group()"});
  expect_error([] { const ResidentScope scope; }, {"ResidentScope", "init_process_group()"});
}

TEST(Resident, AFullHeapIsATypedErrorAndTheGroupLivesOn) {
  EXPECT_OK(ProcessWorld(2).run([](const SpawnedRank& rank) {
    WorldOptions options;
    options.heap_capacity = Bytes::mib(16);
    const auto world = init_process_group({.world = options, .environment = rank.environment});
    expect_error<OutOfResources>([] { empty_resident({32 << 20}, at::kByte); },
                                 {"empty_resident", "shared heap"});
    const ResidentScope scope;
    const at::Tensor plain = at::ones({32 << 20}, at::kByte);
    EXPECT_FALSE(is_resident(plain)) << "there is no room for it";
    EXPECT_TRUE(is_resident(at::ones({10})));
    barrier();
  }));
}

TEST(Resident, TensorsOutliveTheirWorldAndServeInTheNext) {
  EXPECT_OK(ProcessWorld(2).run([](const SpawnedRank& rank) {
    std::vector<at::Tensor> kept;
    std::optional<ResidentScope> scope;
    for (int round = 0; round < 2; ++round) {
      const auto world = init_process_group({.environment = rank.environment});
      const at::Tensor tensor = empty_resident({kMany}, at::kFloat);
      all_reduce(tensor.fill_(1));
      kept.push_back(tensor);
      for (const at::Tensor& old : kept) {
        EXPECT_TRUE(all_equal(old, 2));
        EXPECT_EQ(is_resident(old), old.is_same(tensor));
      }
      all_reduce(kept.front().fill_(3));
      EXPECT_TRUE(all_equal(kept.front(), 6));
      kept.front().fill_(2);
      if (round == 1) {
        scope.emplace();
        kept.push_back(at::full({5}, 2));
        EXPECT_TRUE(is_resident(kept.back()));
      }
    }
    const at::Tensor late = at::full({7}, 2);  // in a scope whose world is gone
    for (const at::Tensor& old : kept) EXPECT_TRUE(all_equal(old, 2));
    EXPECT_TRUE(all_equal(late, 2));
    EXPECT_FALSE(is_resident(late));
    scope.reset();
    kept.clear();
  }));
}

TEST(ResidentScope, MakesWhatItsThreadAllocatesResident) {
  for (const int size : {1, 2}) {
    run_world(size, [](int) {
      at::Tensor before = at::ones({3});
      at::Tensor inside;
      {
        const ResidentScope outer;
        inside = at::ones({kMany}) * 2;
        EXPECT_TRUE(is_resident(inside));
        {
          const ResidentScope inner;
          EXPECT_TRUE(is_resident(at::zeros({3})));
        }
        EXPECT_TRUE(is_resident(at::zeros({3})));
        std::thread([] { EXPECT_FALSE(is_resident(at::ones({3}))); }).join();
        before.resize_({100});  // was allocated before there was a scope
        before.reset();
        // What torch asks for as raw memory, inside and outside of a scope.
        c10::Allocator* const allocator = c10::GetCPUAllocator();
        void* const raw = allocator->raw_allocate(100);
        allocator->raw_deallocate(raw);
      }
      c10::Allocator* const allocator = c10::GetCPUAllocator();
      allocator->raw_deallocate(allocator->raw_allocate(100));
      EXPECT_FALSE(is_resident(at::ones({3})));
      EXPECT_TRUE(is_resident(inside));
      inside.resize_({2 * kMany});
      EXPECT_FALSE(is_resident(inside));
    });
  }
}

TEST(Resident, AForkedChildThatFreesATensorTakesNothingFromItsParent) {
  run_world(2, [](int rank) {
    std::optional<at::Tensor> tensor = empty_resident({kMany}, at::kFloat).fill_(rank + 1);
    const pid_t child = ::fork();
    if (child == 0) {
      tensor.reset();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(all_equal(*tensor, rank + 1));
    all_reduce(*tensor);
    EXPECT_TRUE(all_equal(*tensor, 3));
  });
}

}  // namespace
}  // namespace lockstep::tensor

// Observers, profiler ranges and debug levels, on worlds of real processes.
#include "lockstep/tensor/debug_level.h"

#include <fcntl.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/tensor/coalescing.h"
#include "lockstep/tensor/group_state.h"
#include "lockstep/tensor/group_watch.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/observer.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "lockstep/testing/temporary_folder.h"

namespace lockstep::tensor {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;
using lockstep::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What observers were told, from any thread.
class Notes {
 public:
  Observer observer() {
    return [this](const OperationEvent& event) {
      const std::scoped_lock lock(mutex_);
      events_.push_back(event);
    };
  }
  std::vector<OperationEvent> all() {
    const std::scoped_lock lock(mutex_);
    return events_;
  }
  std::vector<OperationEvent> of(OperationPhase phase) {
    std::vector<OperationEvent> found;
    for (const OperationEvent& event : all()) {
      if (event.phase == phase) found.push_back(event);
    }
    return found;
  }
  // Completions come from other threads.
  void wait_for(OperationPhase phase, std::size_t count) {
    const Deadline limit = Clock::steady().in(30s);
    while (of(phase).size() < count && !limit.expired()) ::sched_yield();
  }

 private:
  std::mutex mutex_;
  std::vector<OperationEvent> events_;
};

TEST(Observers, SeeEveryPhaseOfEveryOperation) {
  for (const int size : {1, 2, 3}) {
    run_world(size, [size](int rank) {
      Notes notes;
      auto handle = observe(notes.observer());
      all_reduce(at::ones({2, 3}));
      ASSERT_EQ(notes.all().size(), 3U);
      const OperationEvent pre = notes.all()[0];
      EXPECT_EQ(pre.phase, OperationPhase::kPre);
      EXPECT_STREQ(pre.op, "all_reduce");
      EXPECT_EQ(pre.group, "world");
      EXPECT_EQ(pre.rank, rank);
      EXPECT_EQ(pre.sequence, 1U);
      EXPECT_THAT(pre.sizes, ElementsAre(ElementsAre(2, 3)));
      EXPECT_EQ(pre.dtype, at::kFloat);
      EXPECT_EQ(pre.bytes, Bytes{24});
      EXPECT_FALSE(pre.async_op);
      const OperationEvent complete = notes.all()[1];
      EXPECT_EQ(complete.phase, OperationPhase::kComplete);
      EXPECT_EQ(complete.sequence, 1U);
      EXPECT_GT(complete.duration, 0ns);
      EXPECT_OK(complete.status);
      EXPECT_EQ(notes.all()[2].phase, OperationPhase::kPost);

      all_gather_single(at::zeros({size}), at::zeros({1}), {.async_op = true}).wait();
      irecv(at::zeros({4}), {.src = rank});
      isend(at::ones({4}), {.dst = rank}).wait();
      monitored_barrier();
      notes.wait_for(OperationPhase::kComplete, 5);
      std::map<std::string, int> seen;
      for (const OperationEvent& event : notes.all()) ++seen[event.op];
      EXPECT_THAT(
          seen, ElementsAre(std::pair("all_gather_single", 3), std::pair("all_reduce", 3),
                            std::pair("irecv", 3), std::pair("isend", 3), std::pair("monitored_barrier", 3)));

      const std::size_t before = notes.all().size();
      EXPECT_THROW(all_reduce(at::Tensor()), InvalidArgument) << "is not seen";
      handle.stop();
      barrier();
      EXPECT_EQ(notes.all().size(), before);
    });
  }
}

TEST(Observers, SeeTheirOwnGroupAndItsErrors) {
  run_world(2, [](int rank) {
    Notes notes;
    const ProcessGroup pair = new_group();
    const auto first = observe(notes.observer(), pair);
    const auto throws = observe([](const OperationEvent&) { throw std::runtime_error("on purpose"); }, pair);
    const auto second = observe(notes.observer(), pair);
    barrier();
    EXPECT_TRUE(notes.all().empty());
    barrier({.group = pair});
    EXPECT_EQ(notes.all().size(), 6U);
    if (rank == 0) {
      expect_error<MissingRanks>([&] { barrier({.group = pair, .timeout = 10ms}); }, {"rank 1"});
      EXPECT_EQ(notes.of(OperationPhase::kComplete).back().status.failure(), Failure::kMissingRanks);
    }
    barrier();
  });
}

TEST(Profiler, SeesARangeWithShapesForEveryOperation) {
  namespace profiler = torch::autograd::profiler;
  run_world(2, [](int rank) {
    profiler::enableProfilerLegacy(profiler::ProfilerConfig(profiler::ProfilerState::CPU,
                                                            /*report_input_shapes=*/true,
                                                            /*profile_memory=*/false));
    all_reduce(at::ones({2, 3}));
    if (rank == 0) {
      send(at::ones({5}), {.dst = 1});
    } else {
      recv(at::ones({5}), {.src = 0});
    }
    broadcast(at::ones({4}), {.src = 0, .async_op = true}).wait();
    barrier();
    std::map<std::string, std::vector<std::vector<std::int64_t>>> seen;
    for (const auto& thread : profiler::disableProfilerLegacy()) {
      for (const auto& event : thread) {
        if (event.kind() == profiler::EventKind::PushRange) seen[event.name()] = event.shapes();
      }
    }
    EXPECT_THAT(seen["lockstep::all_reduce"], ElementsAre(ElementsAre(2, 3)));
    EXPECT_THAT(seen["lockstep::broadcast"], ElementsAre(ElementsAre(4)));
    EXPECT_THAT(seen[rank == 0 ? "lockstep::send" : "lockstep::recv"], ElementsAre(ElementsAre(5)));
    EXPECT_TRUE(seen.contains("lockstep::barrier"));
  });
}

TEST(DebugLevels, CanBeAskedForAndSetBeforeAWorldIsJoinedAndAfterItWasLeft) {
  EXPECT_OK(ProcessWorld(1).run([](const SpawnedRank& rank) {
    Environment environment = rank.environment;
    environment.debug = DebugLevel::kDetail;
    ::setenv("TORCH_DISTRIBUTED_DEBUG", "INFO", 1);
    EXPECT_EQ(get_debug_level(), DebugLevel::kInfo);
    {
      const auto world = init_process_group({.environment = environment});
      EXPECT_EQ(get_debug_level(), DebugLevel::kDetail) << "of the environment that was given";
    }
    set_debug_level(DebugLevel::kOff);
    EXPECT_EQ(get_debug_level(), DebugLevel::kOff);
    {
      const auto world = init_process_group({.environment = environment});
      EXPECT_EQ(get_debug_level(), DebugLevel::kOff) << "what was set comes before the environment";
      EXPECT_EQ(new_group().state("test")->watch()->level(), DebugLevel::kOff);
      set_debug_level_from_env();
      EXPECT_EQ(get_debug_level(), DebugLevel::kInfo);
    }
    EXPECT_EQ(get_debug_level(), DebugLevel::kInfo) << "as it was set in the world";
    {
      const auto world =
          init_process_group({.debug = {.level = DebugLevel::kDetail}, .environment = environment});
      EXPECT_EQ(get_debug_level(), DebugLevel::kDetail) << "the option comes first";
    }
    EXPECT_EQ(get_debug_level(), DebugLevel::kInfo) << "the option was for that world";
    ::setenv("TORCH_DISTRIBUTED_DEBUG", "much", 1);
    expect_error([] { set_debug_level_from_env(); }, {"TORCH_DISTRIBUTED_DEBUG=\"much\"", "detail"});
    EXPECT_EQ(get_debug_level(), DebugLevel::kInfo);
  }));
}

// With the debug level and what the ranks log as text.
std::string run_logged(int size, const DebugOptions& debug, const std::function<void(int rank)>& body) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("log");
  EXPECT_OK(ProcessWorld(size).run([&](const SpawnedRank& rank) {
    const int log = ::open(path.c_str(), O_CREAT | O_APPEND | O_WRONLY, 0600);
    ::dup2(log, STDERR_FILENO);
    base::configure_logging({.level = LogLevel::kInfo});
    const auto world = init_process_group({.debug = debug, .environment = rank.environment});
    body(rank.rank.value);
  }));
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(DebugLevels, InfoSaysWhoHasJoinedAndWhatGroupsHaveDone) {
  const std::string log = run_logged(2, {.level = DebugLevel::kInfo, .summary_every = 0ns}, [](int) {
    EXPECT_EQ(get_debug_level(), DebugLevel::kInfo);
    all_reduce(at::ones({256}));
    set_debug_level(DebugLevel::kOff);
    all_reduce(at::ones({512}));
    EXPECT_EQ(get_debug_level(), DebugLevel::kOff);
  });
  EXPECT_THAT(log, HasSubstr("rank 0 of 2 (0 of 2 on its host) has joined: backend cpu:native"));
  EXPECT_THAT(log, HasSubstr("rank 1 of 2 (1 of 2 on its host) has joined"));
  EXPECT_THAT(log, HasSubstr("group \"world\": 1 operations of 1.0 KiB"));
  EXPECT_THAT(log, HasSubstr("the longest was all_reduce #1 (1.0 KiB)"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("2.0 KiB")));
}

TEST(DebugLevels, ASummaryNamesThoseWhoWereWaitedFor) {
  GroupWatch watch(DebugLevel::kInfo, 0ns);
  const OperationEvent ended{.op = "all_reduce", .group = "world", .sequence = 7, .duration = 1s};
  const base::TimePoint now = Clock::steady().now();
  backend::Counters counted{.waits = {{Rank{1}, {.operations = 2, .lost = 30ms}}}};
  EXPECT_THAT(watch.summarize(ended, counted, now),
              HasSubstr("; it waited for rank 1 in 2 operations, 30.0 ms."));
  counted.waits[Rank{3}] = {.operations = 14, .lost = 280ms};
  counted.waits[Rank{1}] = {.operations = 3, .lost = 40ms};
  EXPECT_THAT(
      watch.summarize(ended, counted, now),
      HasSubstr("; it waited for rank 3 in 14 operations, 280.0 ms, for rank 1 in 1 operations, 10.0 ms."));
  EXPECT_THAT(watch.summarize(ended, counted, now), ::testing::Not(HasSubstr("it waited")));
}

TEST(DebugLevels, NothingIsSaidAtOff) {
  const std::string log = run_logged(2, {.level = DebugLevel::kOff, .summary_every = 0ns},
                                     [](int) { all_reduce(at::ones({256})); });
  EXPECT_EQ(log, "");
}

void at_detail(int size, const std::function<void(int rank)>& body) {
  EXPECT_OK(ProcessWorld(size).run([&](const SpawnedRank& rank) {
    const auto world =
        init_process_group({.debug = {.level = DebugLevel::kDetail}, .environment = rank.environment});
    body(rank.rank.value);
  }));
}

TEST(Detail, EveryOperationWorks) {
  for (const int size : {1, 2, 3}) {
    at_detail(size, [size](int rank) {
      const at::Tensor sum = at::full({1000}, rank, at::kFloat);
      const WorkHandle work = all_reduce(sum, {.async_op = true});
      work.wait();
      EXPECT_EQ(work.result().size(), 1U);
      EXPECT_TRUE(all_equal(sum, size * (size - 1) / 2));
      // What is overwritten may be anything.
      const at::Tensor given =
          rank == 0 ? at::ones({3}) : at::full({3}, std::numeric_limits<float>::quiet_NaN());
      broadcast(given, {.src = 0});
      EXPECT_TRUE(all_equal(given, 1));
      const at::Tensor all = at::full({size}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
      all_gather_single(all, at::ones({1}, at::kDouble));
      EXPECT_TRUE(all_equal(all, 1));
      all_reduce(at::ones({3}, at::kLong));
      all_reduce(at::ones({3}, at::kHalf));
      barrier();
    });
  }
}

TEST(Detail, AnAsynchronousCallDoesNotWaitForTheOthers) {
  at_detail(2, [](int rank) {
    const at::Tensor sum = at::ones({4});
    const at::Tensor columns = at::full({4, 2}, rank, at::kFloat);
    const at::Tensor sparse = at::full({3}, rank + 1, at::kFloat).to_sparse();
    if (rank == 1) recv(at::empty({1}), {.src = 0});  // comes when rank 0 has made its calls
    const WorkHandle first = all_reduce(sum, {.async_op = true});
    const WorkHandle second = broadcast(columns.select(1, 0), {.src = 1, .async_op = true});
    const WorkHandle third = all_reduce(sparse, {.async_op = true});
    const WorkHandle fourth = barrier({.async_op = true});
    if (rank == 0) send(at::ones({1}), {.dst = 1});
    third.wait();
    EXPECT_TRUE(first.is_completed() && second.is_completed());
    EXPECT_TRUE(all_equal(sum, 2) && all_equal(columns.select(1, 0), 1) &&
                all_equal(columns.select(1, 1), rank));
    EXPECT_TRUE(all_equal(sparse.to_dense(), 3));
    EXPECT_EQ(second.sequence(), 3U) << "after an operation and its comparison";
    EXPECT_EQ(fourth.sequence(), third.sequence() + 4) << "after three exchanges and their comparison";
    fourth.wait();

    const ProcessGroup pair = new_group();
    if (rank == 0) {
      const WorkHandle alone = all_reduce(sum, {.group = pair, .async_op = true, .timeout = 50ms});
      expect_error<MissingRanks>([&] { alone.wait(); }, {"rank 1", "all_reduce", "C++ stack", "frame #0"});
    }
    barrier();
  });
}

TEST(Detail, ANaNIsNamedWithItsStackAndEndsTheGroupForAll) {
  at_detail(3, [](int rank) {
    const at::Tensor tensor = at::ones({4, 5});
    if (rank == 1) tensor.select(0, 1).slice(0, 2, 4).fill_(std::numeric_limits<float>::quiet_NaN());
    if (rank == 1) {
      expect_error([&] { all_reduce(tensor); },
                   {"rank 1: all_reduce: tensor has 2 NaN among its 20 elements, "
                    "the first at 7",
                    "C++ stack", "frame #0"});
    } else {
      expect_error<RemoteError>([&] { all_reduce(tensor); }, {"rank 1", "tensor has 2 NaN", "C++ stack"});
    }
  });
}

// Everything is another world's but the results of broadcasts, of which one rank gets a byte wrong.
class Flipped final : public Backend {
 public:
  explicit Flipped(Backend& inner) : inner_(inner) {}
  Rank rank() const override { return inner_.rank(); }
  WorldSize size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  Rank world_rank(Rank member) const override { return inner_.world_rank(member); }
  Status run(const Call& call, const OpOptions& options) override {
    Status status = inner_.run(call, options);
    if (call.kind == OpKind::kBroadcast && rank() == Rank{1}) call.outputs[0][0] ^= std::byte{1};
    return status;
  }
  WorkPtr start(const Call& call, const OpOptions& options) override { return inner_.start(call, options); }
  Status monitored_barrier(const OpOptions& options) override { return inner_.monitored_barrier(options); }
  WorkPtr send(Rank to, std::uint64_t tag, ByteView bytes, const OpOptions& options) override {
    return inner_.send(to, tag, bytes, options);
  }
  WorkPtr recv(std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
               const OpOptions& options) override {
    return inner_.recv(from, tag, bytes, options);
  }
  Duration timeout() const override { return inner_.timeout(); }
  void set_timeout(Duration timeout) override { inner_.set_timeout(timeout); }
  std::uint64_t sequence() const override { return inner_.sequence(); }
  Status failure() const override { return inner_.failure(); }
  void abort(const Status& why) override { inner_.abort(why); }

 private:
  Backend& inner_;
};

class FlippedWorld final : public World {
 public:
  explicit FlippedWorld(std::unique_ptr<World> inner) : inner_(std::move(inner)), group_(inner_->group()) {}
  const Rendezvous& rendezvous() const override { return inner_->rendezvous(); }
  Backend& group() override { return group_; }
  Result<std::unique_ptr<Backend>> new_group(const std::vector<Rank>& members,
                                             const GroupOptions& options) override {
    return inner_->new_group(members, options);
  }
  Result<std::unique_ptr<Backend>> shrink(const ShrinkOptions& options) override {
    return inner_->shrink(options);
  }
  Result<SharedMemory> allocate(Bytes size) override { return inner_->allocate(size); }

 private:
  std::unique_ptr<World> inner_;
  Flipped group_;
};

TEST(Detail, ResultsThatDifferAreNamedOnAllRanks) {
  EXPECT_OK(ProcessWorld(3).run([](const SpawnedRank& rank) {
    const BackendSource source{.join = [](const WorldOptions& options,
                                          const Environment& environment) -> Result<std::unique_ptr<Groups>> {
      auto inner = World::join(options, environment);
      if (!inner.ok()) return inner.status();
      return std::unique_ptr<Groups>(std::make_unique<FlippedWorld>(std::move(*inner)));
    }};
    const auto world = init_process_group({.backend = "flipped",
                                           .debug = {.level = DebugLevel::kDetail},
                                           .backends = {{"flipped", source}},
                                           .environment = rank.environment});
    const at::Tensor tensor = at::ones({10});
    expect_error<CorruptFrame>([&] { broadcast(tensor, {.src = 0}); },
                               {"broadcast #1", "the result of rank 1 has another checksum", "C++ stack"});
    all_reduce(tensor);  // the group lives on
    set_debug_level(DebugLevel::kOff);
    broadcast(tensor, {.src = 0});
  }));
}

}  // namespace
}  // namespace lockstep::tensor

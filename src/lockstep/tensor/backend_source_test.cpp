// Which backend a group has for which device, and backends of one's own.
#include "lockstep/tensor/backend_source.h"

#include <string>
#include <vector>

#include "lockstep/tensor/init.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

using lockstep::testing::ProcessWorld;
using ::testing::ElementsAre;

constexpr auto kCpu = c10::DeviceType::CPU;
constexpr auto kMeta = c10::DeviceType::Meta;

// Native groups under another name, made as one's own would be: the first makes the world of the others.
BackendSource borrowed_native(std::vector<c10::DeviceType> devices, std::vector<std::string>& made) {
  return own_backend(
      [&made,
       world = std::shared_ptr<World>()](const GroupPlan& plan) mutable -> Result<std::unique_ptr<Backend>> {
        made.push_back(plan.name);
        if (!world) {
          LOCKSTEP_ASSIGN(const Environment environment, Environment::read());
          const WorldSize size{static_cast<int>(plan.members.size())};
          LOCKSTEP_ASSIGN(
              world, World::join({.rendezvous = {.store = plan.store, .rank = plan.rank, .world_size = size}},
                                 environment));
        }
        // The world has a group "world" of its own.
        return world->new_group(plan.members, {.name = "lent " + plan.name, .timeout = plan.timeout});
      },
      std::move(devices));
}

TEST(BackendConfig, IsANameOrOneForEachDevice) {
  const BackendSources own{{"mine", {.join = {}, .devices = {kMeta}}},
                           {"both", {.join = {}, .devices = {kCpu, kMeta}}}};
  const auto parse = [&](std::string_view text) { return parse_backend_config(text, own); };
  using Named = DeviceBackendName;
  EXPECT_THAT(parse("native"), ElementsAre(Named{kCpu, "native"}));
  EXPECT_THAT(parse("cpu:native"), ElementsAre(Named{kCpu, "native"}));
  EXPECT_THAT(parse("both"), ElementsAre(Named{kCpu, "both"}, Named{kMeta, "both"}));
  EXPECT_THAT(parse("meta:mine,cpu:native"), ElementsAre(Named{kMeta, "mine"}, Named{kCpu, "native"}));
}

TEST(BackendConfig, SaysWhatIsWrong) {
  const BackendSources own{{"mine", {.join = {}, .devices = {kMeta}}}, {"none", {.join = {}, .devices = {}}}};
  const auto expect_refused = [&](std::string_view text, const std::vector<std::string>& words) {
    expect_error([&] { parse_backend_config(text, own); }, words);
  };
  expect_refused("", {"no backend \"\"", "native", "mine"});
  expect_refused("nccl", {"no backend \"nccl\"", "InitOptions::backends"});
  expect_refused("cpu:gloo", {"no backend \"gloo\"", "native"});
  expect_refused("mpi", {"no backend \"mpi\"", "Lockstep::mpi"});  // not linked here
  expect_refused("cpu:nccl", {"no backend \"nccl\""});
  expect_refused("cpu:", {"neither a name nor a list", "\"cpu:\""});
  expect_refused("cpu:native,", {"neither a name nor a list", "\"\""});
  expect_refused("cpu:native,meta", {"neither a name nor a list", "\"meta\""});
  expect_refused("gpu:native", {"no device \"gpu\""});
  expect_refused("cpu:native,cpu:native", {"names cpu twice"});
  expect_refused("cuda:native", {"\"native\" does not take tensors of cuda", "cpu"});
  expect_refused("cpu:mine", {"\"mine\" does not take tensors of cpu", "meta"});
  expect_refused("none", {"for no device"});
  EXPECT_FALSE(is_mpi_available());
  EXPECT_TRUE(is_backend_available("native"));
}

TEST(OwnBackend, IsAFunctionThatMakesAGroup) {
  EXPECT_OK(ProcessWorld{3}.run([](const SpawnedRank& rank) {
    std::vector<std::string> made;
    const auto world = init_process_group({.backend = "mine",
                                           .timeout = std::chrono::seconds(50),
                                           .backends = {{"mine", borrowed_native({kCpu}, made)}},
                                           .environment = rank.environment});
    EXPECT_EQ(get_backend(), "mine");
    EXPECT_EQ(get_backend_config(), "cpu:mine");
    EXPECT_EQ(get_node_local_rank(), get_rank());
    EXPECT_EQ(ProcessGroup().timeout(), std::chrono::seconds(50));
    const at::Tensor tensor = at::full({3}, get_rank());
    all_reduce(tensor);
    EXPECT_TRUE(all_equal(tensor, 3));
    const ProcessGroup pair = new_group({2, 0});
    if (pair.is_member()) {
      all_reduce(tensor, {.group = pair});
      EXPECT_TRUE(all_equal(tensor, 6));
    }
    const ProcessGroup half = split_group(SplitBy{.color = get_rank() % 2});
    EXPECT_EQ(half.size(), get_rank() == 1 ? 1 : 2);
    EXPECT_EQ(made.front(), "world");
    EXPECT_EQ(made.size(), pair.is_member() ? 3U : 2U);
    expect_error<Unsupported>([] { shrink_group({2}); }, {"shrink_group", "\"mine\"", "native can"});
    barrier();
  }));
}

TEST(OwnBackend, IsOneOfSeveralByDevice) {
  EXPECT_OK(ProcessWorld{2}.run([](const SpawnedRank& rank) {
    std::vector<std::string> made;
    const auto world = init_process_group({.backend = "meta:mine,cpu:native",
                                           .backends = {{"mine", borrowed_native({kMeta}, made)}},
                                           .environment = rank.environment});
    EXPECT_EQ(get_backend(), "meta:mine,cpu:native");
    EXPECT_EQ(get_backend_config(), "meta:mine,cpu:native");
    EXPECT_EQ(ProcessGroup().backend_name(kMeta), "mine");
    EXPECT_EQ(ProcessGroup().backend_name(kCpu), "native");
    const ProcessGroup pair = new_group({0, 1});
    ASSERT_EQ(made.size(), 2U);
    EXPECT_EQ(pair.name(), "lent " + made.back());
    pair.set_timeout(std::chrono::seconds(40));
    EXPECT_EQ(pair.backend(kMeta)->timeout(), std::chrono::seconds(40));
    EXPECT_EQ(pair.backend(kCpu)->timeout(), std::chrono::seconds(40));

    const at::Tensor tensor = at::full({3}, get_rank() + 1);
    all_reduce(tensor, {.group = pair});
    EXPECT_TRUE(all_equal(tensor, 3));
    EXPECT_EQ(pair.backend(kCpu)->sequence(), 1U);
    EXPECT_EQ(pair.backend(kMeta)->sequence(), 0U);
    all_reduce(at::empty({0}, at::kMeta), {.group = pair});
    EXPECT_EQ(pair.backend(kCpu)->sequence(), 1U);
    EXPECT_EQ(pair.backend(kMeta)->sequence(), 1U);
    expect_error<Unsupported>([] { shrink_group({1}); }, {"meta:mine,cpu:native"});
    barrier();
  }));
}

TEST(OwnBackend, IsThatOfOneGroupAlone) {
  EXPECT_OK(ProcessWorld{3}.run([](const SpawnedRank& rank) {
    const std::string own = "rank " + std::to_string(rank.rank.value) + ": ";
    std::vector<std::string> made;
    const auto world = init_process_group({.group_backends = {"mine", "native"},
                                           .backends = {{"mine", borrowed_native({kCpu, kMeta}, made)},
                                                        {"idle", borrowed_native({kCpu}, made)}},
                                           .environment = rank.environment});
    EXPECT_EQ(get_backend(), "native");
    ASSERT_EQ(made.size(), 2U);  // for each of its devices

    const ProcessGroup pair = new_group({2, 0}, {.backend = "cpu:mine"});
    EXPECT_EQ(made.size(), pair.is_member() ? 3U : 2U);
    const at::Tensor tensor = at::ones({2});
    if (pair.is_member()) {
      EXPECT_EQ(get_backend(pair), "cpu:mine");
      EXPECT_EQ(get_backend_config(pair), "cpu:mine");
      all_reduce(tensor, {.group = pair});
      EXPECT_EQ(pair.backend(kCpu)->sequence(), 1U);
      // What comes of it has its backend.
      EXPECT_EQ(get_backend(split_group(SplitBy{.color = 0}, pair)), "cpu:mine");
      EXPECT_EQ(get_backend(split_group({{0, 1}}, pair)), "cpu:mine");
      EXPECT_EQ(get_backend(shrink_group({}, pair)), "cpu:mine");
      expect_error([&] { split_group(SplitBy{.color = 0}, pair, {.backend = "native"}); },
                   {own, "split_group: backend is \"native\"", "\"cpu:mine\""});
    }
    const ProcessGroup both = new_group({.backend = "mine"});
    EXPECT_EQ(get_backend_config(both), "cpu:mine,meta:mine");
    all_reduce(tensor, {.group = both});
    EXPECT_TRUE(all_equal(tensor, 5));
    EXPECT_EQ(get_backend(new_group({.backend = "cpu:native"})), "cpu:native");
    EXPECT_EQ(get_backend(new_group()), "native");

    expect_error([] { new_group({.backend = "idle"}); },
                 {own, "new_group: backend", "not joined \"idle\" for cpu", "group_backends"});
    expect_error([] { new_group({.backend = "nccl"}); }, {own, "new_group", "no backend \"nccl\""});
    expect_error([] { shrink_group({2}, {}, {.backend = "mine"}); }, {own, "shrink_group: backend"});
    expect_error<Unsupported>([] { shrink_group({2}); }, {own, "native,cpu:mine,meta:mine"});
    expect_error([&] { (void)init_process_group({.environment = rank.environment}); },
                 {own, "init_process_group", "already"});
    barrier();
  }));
}

}  // namespace
}  // namespace lockstep::tensor

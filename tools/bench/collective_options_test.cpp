#include "tools/bench/collective_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CollectiveOptions, AreReadFromWhatIsTyped) {
  const auto options = read_arguments(CollectiveOp::kAllGather, {.nproc = 3,
                                                                 .bytes = "4096,1MiB",
                                                                 .dtype = "float64",
                                                                 .memory = "foreign,resident",
                                                                 .against = "mpi,gloo"});
  ASSERT_TRUE(options.ok()) << options.status().text();
  EXPECT_THAT(options->bytes, ElementsAre(Bytes{4080}, Bytes{1048560}));  // three blocks of whole elements
  EXPECT_EQ(options->dtype, DType::kFloat64);
  EXPECT_THAT(options->memory, ElementsAre("foreign", "resident"));
  EXPECT_THAT(options->against, ElementsAre("mpi", "gloo"));
  EXPECT_EQ(options->rate, std::nullopt);
  EXPECT_EQ(options->world(), WorldSize{3});
}

TEST(CollectiveOptions, TheCallsOnTensorsAreTheFirstPeer) {
  const auto options = read_arguments(CollectiveOp::kAllReduce, {.against = "gloo", .api = "tensor"});
  ASSERT_TRUE(options.ok()) << options.status().text();
  EXPECT_THAT(options->against, ElementsAre("tensor", "gloo"));
}

TEST(CollectiveOptions, TwoHostsHaveNprocRanksEach) {
  const auto options =
      read_arguments(CollectiveOp::kAllReduce, {.nproc = 3, .against = "gloo", .hosts = 2, .rate = "10gbit"});
  ASSERT_TRUE(options.ok()) << options.status().text();
  EXPECT_EQ(options->world(), WorldSize{6});
  EXPECT_EQ(options->rate, 10'000'000'000U);
}

TEST(CollectiveOptions, ABarrierHasOneRow) {
  const auto options = read_arguments(CollectiveOp::kBarrier, {});
  ASSERT_TRUE(options.ok()) << options.status().text();
  EXPECT_THAT(options->bytes, ElementsAre(Bytes{0}));
  EXPECT_THAT(options->memory, ElementsAre("none"));
  EXPECT_THAT(options->against, IsEmpty());
}

TEST(CollectiveOptions, AMistakeIsOneSentenceThatNamesTheOption) {
  struct Mistake {
    CollectiveOp op;
    CollectiveArguments arguments;
    std::string sentence;
  };
  const auto all_reduce = CollectiveOp::kAllReduce;
  for (const auto& [op, arguments, sentence] : std::vector<Mistake>{
           {all_reduce,
            {.bytes = "4KiB,big"},
            "--bytes \"4KiB,big\" is not a list of sizes such as 4KiB,1MiB (at most 16GiB)"},
           {all_reduce,
            {.bytes = "17GiB"},
            "--bytes \"17GiB\" is not a list of sizes such as 4KiB,1MiB (at most 16GiB)"},
           {CollectiveOp::kAllGather,
            {.nproc = 4, .bytes = "12"},
            "--bytes \"12\" has no float32 for each of 4 ranks"},
           {all_reduce,
            {.dtype = "float"},
            "--dtype \"float\" is not one of uint8, int8, int32, int64, float16, bfloat16, float32, float64"},
           {all_reduce,
            {.peer_dtype = "half"},
            "--peer-dtype \"half\" is not one of uint8, int8, int32, int64, float16, bfloat16, float32, "
            "float64"},
           {all_reduce,
            {.memory = "shared"},
            "--memory \"shared\" is not a list of resident and foreign, each at most once"},
           {all_reduce,
            {.against = "gloo,gloo"},
            "--against \"gloo,gloo\" is not a list of gloo and mpi, each at most once"},
           {all_reduce,
            {.against = "mpi", .hosts = 2},
            "--against mpi is for one host: leave --hosts out, or compare with gloo alone"},
           {all_reduce, {.api = "torch"}, "--api \"torch\" is neither core nor tensor"},
           {all_reduce, {.hosts = 2, .rate = "fast"}, "--rate \"fast\" is not a rate such as 1gbit"},
           {all_reduce, {.cpu_binding = "numa"}, "--cpu-binding \"numa\" is neither none nor cores"},
           {all_reduce, {.rate = "1gbit"}, "--rate bounds the wire between two hosts: give --hosts 2"},
           {CollectiveOp::kSendRecv,
            {.nproc = 1},
            "send_recv needs at least two ranks: give a larger --nproc"},
       }) {
    const auto options = read_arguments(op, arguments);
    ASSERT_FALSE(options.ok()) << sentence;
    EXPECT_EQ(options.status().code(), Code::kInvalid);
    EXPECT_EQ(options.status().message(), sentence);
  }
}

}  // namespace
}  // namespace lockstep::bench

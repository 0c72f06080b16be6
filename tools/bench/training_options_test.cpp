#include "tools/bench/training_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bench/training_case.h"

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TrainingOptions, AreReadFromWhatIsTyped) {
  const auto options = read_arguments({.nproc = 3,
                                       .model = "mlp-512x4,resnet18,gpt-small",
                                       .option = "no_sync,default",
                                       .against = "plain,torch"});
  ASSERT_TRUE(options.ok()) << options.status().text();
  EXPECT_EQ(options->nproc, 3);
  EXPECT_THAT(options->model, ElementsAre("mlp-512x4", "resnet18", "gpt-small"));
  EXPECT_THAT(options->option, ElementsAre("no_sync", "default"));
  EXPECT_THAT(options->against, ElementsAre("plain", "torch", "torch_tuned"));
  EXPECT_THAT(read_arguments(TrainingArguments{})->against, IsEmpty());
}

TEST(TrainingOptions, WrongOnesAreRefusedInASentenceThatNamesThem) {
  for (const char* model :
       {"", "mlp", "mlp-0x4", "mlp-4x0", "mlp-4x4x4", "mlp-99999x1", "mlp-ax2", "vgg", "resnet18,"}) {
    EXPECT_THAT(read_arguments({.model = model}).status().message(), HasSubstr("--model")) << model;
  }
  EXPECT_THAT(read_arguments({.option = "fast"}).status().message(), HasSubstr("--option \"fast\""));
  EXPECT_THAT(read_arguments({.against = "gloo"}).status().message(), HasSubstr("plain and torch"));
  EXPECT_THAT(read_arguments({.against = "plain,plain"}).status().message(), HasSubstr("at most once"));
  EXPECT_EQ(read_arguments({.cpu_binding = "sockets"}).status().code(), Code::kInvalid);
}

TEST(TrainingModel, AnMlpSaysItsWidthAndDepth) {
  const TrainingModel mlp{.kind = ModelKind::kMlp, .width = 1024, .depth = 8};
  EXPECT_EQ(parse_training_model("mlp-1024x8"), mlp);
  EXPECT_EQ(parse_training_model("resnet18")->kind, ModelKind::kResNet18);
}

}  // namespace
}  // namespace lockstep::bench

// What forward takes and gives: tensors that nobody has registered, and types that are not looked into.
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <array>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "two_layers.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::expect_error;
using tensor::run_world;
using testing::ones;
using testing::Two;

// A layer, and a tensor that was never registered.
struct Careless : nn::Module {
  Careless() { register_module("layer", layer); }
  at::Tensor forward(const at::Tensor& x) { return layer(x) * scale; }
  nn::Linear layer{2, 2};
  at::Tensor scale = torch::ones({1, 2}, at::TensorOptions().requires_grad(true));
};

std::size_t times_warned(const std::string& said) {
  std::size_t times = 0;
  const std::string sentence = "no parameter of the module";
  for (auto at = said.find(sentence); at != std::string::npos; at = said.find(sentence, at + 1)) ++times;
  return times;
}

TEST(Faults, ATensorThatWasNotRegisteredIsWarnedAboutOnce) {
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<Careless>());
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < 3; ++step) model(ones()).sum().backward();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(times_warned(said), 1U) << said;
    EXPECT_THAT(said, ::testing::HasSubstr(cat("rank ", rank, ": DistributedDataParallel: forward uses 1")));
    EXPECT_THAT(said, ::testing::HasSubstr("Float of shape [1, 2]"));
    EXPECT_THAT(said, ::testing::HasSubstr("register_parameter()"));
  });
}

struct Inputs {
  at::Tensor x;
};

TEST(Faults, WhatIsNotCheckedIsSaidOnceWithTheType) {
  struct Opaque : Careless {
    at::Tensor forward(const std::vector<Inputs>& inputs, double, const std::string&) {
      return Careless::forward(inputs[0].x);
    }
  };
  run_world(2, [](int) {
    DistributedDataParallel model(std::make_shared<Opaque>());
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < 3; ++step) model(std::vector{Inputs{ones()}}, 1., "name").sum().backward();
    const std::string said = ::testing::internal::GetCapturedStderr();
    const std::string sentence = "it is not checked";
    const auto first = said.find(sentence);
    ASSERT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find(sentence, first + 1), std::string::npos) << said;
    EXPECT_THAT(said, ::testing::HasSubstr("Inputs, which is not looked into"));
    EXPECT_THAT(said, ::testing::HasSubstr("lockstep::ddp::OutputTensors"));
  });
}

TEST(Faults, OutputsThatAreNotLookedIntoAreNamedWhereTheyMustBe) {
  struct Gives : Two {
    using Two::forward;
    Inputs forward(const at::Tensor& x, double) { return {Two::forward(x)}; }
    void forward(const at::Tensor& x, const char*) { Two::forward(x); }
    std::pair<at::Tensor, std::array<double, 2>> forward(const std::string&) {
      return {Two::forward(ones()), {}};
    }
    std::tuple<at::Tensor, at::Scalar, std::optional<at::Generator>, c10::SymInt> forward(
        const at::Scalar& x) {
      return {Two::forward(x * ones()), x, {}, 1};
    }
  };
  run_world(2, [](int rank) {
    const auto wrap = [](const DataParallelOptions& options) {
      DataParallelOptions with_group = options;
      with_group.process_group = tensor::new_group({0, 1});
      return DistributedDataParallel(std::make_shared<Gives>(), with_group);
    };
    auto plain = wrap({});
    plain(ones(), 1.).x.sum().backward();
    auto searches = wrap({.find_unused_parameters = true});
    searches(std::string()).first.sum().backward();  // what can hold no tensor is known
    std::get<0>(searches(at::Scalar(2))).sum().backward();
    tensor::barrier();
    expect_error([&] { searches(ones(), 1.); },
                 {cat("rank ", rank), "find_unused_parameters", "Inputs, which is not looked into",
                  "lockstep::ddp::OutputTensors"});
    auto silent = wrap({.find_unused_parameters = true});
    tensor::barrier();
    expect_error([&] { silent(ones(), "nothing"); }, {"find_unused_parameters", "gives nothing"});
  });
}

// Types that nobody can hold by value where forward is called.
struct Context {
  Context() = default;
  virtual ~Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  virtual double scale() const = 0;
};
struct OnlyDeclared;

TEST(Faults, AnArgumentThatIsAbstractOrOnlyDeclaredIsTaken) {
  struct Takes : Two {
    at::Tensor forward(const at::Tensor& x, const Context& by) { return Two::forward(x) * by.scale(); }
    at::Tensor forward(const at::Tensor& x, const OnlyDeclared&) { return Two::forward(x); }
  };
  struct Twice final : Context {
    double scale() const override { return 2; }
  };
  run_world(2, [](int) {
    const auto said_of = [](const auto& argument) {
      DistributedDataParallel model(std::make_shared<Takes>());
      ::testing::internal::CaptureStderr();
      model(ones(), argument).sum().backward();
      return ::testing::internal::GetCapturedStderr();
    };
    const Twice twice;
    EXPECT_THAT(said_of(static_cast<const Context&>(twice)),
                ::testing::HasSubstr("Context, which is not looked"));
    int hidden = 0;
    EXPECT_THAT(said_of(reinterpret_cast<const OnlyDeclared&>(hidden)),
                ::testing::HasSubstr("OnlyDeclared*, which is not looked"));
  });
}

TEST(Faults, WhatBelongsToOthersIsNotWarnedAbout) {
  struct Taking : nn::Module {
    Taking() { register_module("layer", layer); }
    at::Tensor forward(const Inputs& inputs) { return layer(inputs.x); }
    at::Tensor forward(const std::vector<at::Tensor>& both) { return layer(both[0]) * both[1]; }
    nn::Linear layer{2, 2};
  };
  run_world(2, [](int) {
    ::testing::internal::CaptureStderr();
    nn::Linear before(2, 2);
    const at::Tensor leaf = ones().requires_grad_();
    DistributedDataParallel first(std::make_shared<Two>());
    DistributedDataParallel second(std::make_shared<Two>());
    second(first(before(leaf))).sum().backward();
    DistributedDataParallel taking(std::make_shared<Taking>());
    taking(std::vector{before(leaf), leaf}).sum().backward();
    DistributedDataParallel opaque(std::make_shared<Taking>());  // what it is given cannot be looked into
    opaque(Inputs{before(leaf)}).sum().backward();
    DistributedDataParallel ignoring(std::make_shared<Two>(),
                                     {.parameters_and_buffers_to_ignore = {"first.weight"}});
    ignoring(leaf).sum().backward();
    EXPECT_EQ(times_warned(::testing::internal::GetCapturedStderr()), 0U);
  });
}

}  // namespace
}  // namespace lockstep

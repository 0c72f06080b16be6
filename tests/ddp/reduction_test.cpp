// What becomes of gradients: where they lie, which passes are reduced, and what a program may do with them.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/resident.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "one_process.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::run_world;
using testing::descend;
using testing::difference;
using testing::make_net;
using testing::Net;
using testing::OneProcess;

TEST(Reduction, GradientsLieInResidentBucketsHoweverTheyAreCleared) {
  run_world(2, [](int rank) {
    torch::manual_seed(1);
    nn::Sequential net(nn::Linear(3, 4), nn::Linear(4, 2));
    DistributedDataParallel model(net);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const auto step = [&] {
      model(torch::full({2, 3}, rank + 1.)).sum().backward();
      for (const at::Tensor& parameter : net->parameters()) EXPECT_TRUE(is_resident(parameter.grad()));
      return net[1]->as<nn::Linear>()->weight.grad().clone();
    };
    const at::Tensor first = step();
    optimizer.zero_grad();
    EXPECT_FALSE(net->parameters()[0].grad().defined());
    EXPECT_TRUE(at::equal(step(), first));
    optimizer.zero_grad(false);
    EXPECT_TRUE(at::equal(step(), first));
    model.zero_grad();
    EXPECT_TRUE(at::equal(step(), first));
    net->zero_grad(false);
    const void* const place = net->parameters()[0].grad().const_data_ptr();
    EXPECT_TRUE(at::equal(step(), first));
    EXPECT_EQ(net->parameters()[0].grad().const_data_ptr(), place);
    // Not cleared: what the next pass adds is averaged, what was there stays.
    EXPECT_TRUE(at::allclose(step(), 2 * first));
    optimizer.step();
    // A gradient that the program has replaced is taken from where it is.
    net->parameters()[0].mutable_grad() = torch::zeros({4, 3});
    step();
  });
}

TEST(Reduction, NoSyncAccumulatesAndTheNextPassReducesAll) {
  for (const int size : {2, 3}) {
    run_world(size, [&](int rank) {
      torch::set_num_threads(1);
      const std::shared_ptr<Net> net = make_net("branches");
      DistributedDataParallel model(net, {.find_unused_parameters = true});
      OneProcess reference("branches", size);
      for (int step = 0; step < 6; ++step) {
        net->zero_grad();
        reference.net().zero_grad();
        {
          const auto guard = model.no_sync();
          model(net->batch(rank, 3 * step)).backward();
          model(net->batch(rank, 3 * step + 1)).backward();
        }
        model(net->batch(rank, 3 * step + 2)).backward();
        reference.backward(step, 3);
        ASSERT_EQ(difference(*net, reference.net()), "") << "rank " << rank << " of " << size;
        descend(*net, 0.05);
        descend(reference.net(), 0.05);
      }
    });
  }
}

TEST(Reduction, NoSyncIsDecidedByForward) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 1);
    DistributedDataParallel model(net);
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    at::Tensor inside;
    {
      const auto guard = model.no_sync();
      inside = model(x);
    }
    inside.sum().backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), rank + 1));
    net->zero_grad();
    const at::Tensor outside = model(x);
    {
      const auto guard = model.no_sync();
      outside.sum().backward();
    }
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
  });
}

TEST(Reduction, SeveralForwardsOneBackwardAndTheOtherWayRound) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 1);
    DistributedDataParallel model(net);
    const at::Tensor x = torch::full({1, 2}, rank + 1.);
    (model(x).sum() + model(2 * x).sum()).backward();
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 3 * 1.5));
    net->zero_grad();
    const at::Tensor loss = model(x).sum();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
    loss.backward();  // a pass of its own
    EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 2 * 1.5));
    net->zero_grad();
    // With a graph of the gradient.
    model(x).square().sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    EXPECT_TRUE(net->weight.grad().requires_grad());
    const at::Tensor all = torch::empty({2, 1, 2});
    tensor::all_gather_single(all, net->weight.grad().detach());
    EXPECT_TRUE(at::equal(all[0], all[1]));
    net->weight.mutable_grad().reset();
    net->bias.mutable_grad().reset();
  });
}

TEST(Reduction, GradIsThisRanksOwnAndNoBackwardPass) {
  const std::vector<DataParallelOptions> options = {
      {}, {.find_unused_parameters = true}, {.static_graph = true}};
  run_world(2, [&](int rank) {
    for (const DataParallelOptions& each : options) {
      nn::Linear net(2, 1);
      DistributedDataParallel model(net, each);
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        const at::Tensor x = torch::full({1, 2}, rank + 1.).requires_grad_();
        const at::Tensor y = model(x).sum();
        const at::Tensor own = torch::autograd::grad({y}, {net->weight}, {}, /*retain_graph=*/true)[0];
        EXPECT_TRUE(tensor::all_equal(own, rank + 1));
        // A penalty on the slope, which is a gradient itself.
        const at::Tensor slope = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
        (y + slope.square().sum()).backward();
        EXPECT_TRUE(at::allclose(net->weight.grad(), 1.5 + 2 * net->weight.detach())) << step;
      }
    }
  });
}

// One that a program may have written: it clips gradients where they lie, and keeps handles of its own.
class Clipping final : public torch::optim::Optimizer {
 public:
  explicit Clipping(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.5)) {}
  at::Tensor step(LossClosure) override {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : param_groups()[0].params()) {
      parameter.mutable_grad() = parameter.grad().detach();
      kept.push_back(parameter.grad());
      parameter.grad().clamp_(-1, 1);
      parameter.add_(parameter.grad(), -0.5);
    }
    return {};
  }
  std::vector<at::Tensor> kept;
};

TEST(Reduction, AnOptimizerOfOnesOwnMayChangeGradientsWhereTheyLie) {
  run_world(2, [](int rank) {
    nn::Linear net(2, 1);
    DistributedDataParallel model(net);
    Clipping optimizer(model.parameters());
    for (int step = 0; step < 4; ++step) {
      const at::Tensor before = net->weight.detach().clone();
      model((step % 2 == 0 ? 1 : 0.1) * torch::full({1, 2}, rank + 1.)).sum().backward();
      const at::Tensor mean = torch::full({1, 2}, step % 2 == 0 ? 1.5 : 0.15);
      EXPECT_TRUE(at::allclose(net->weight.grad(), mean));
      optimizer.step({});
      EXPECT_TRUE(at::allclose(net->weight, before - 0.5 * mean.clamp(-1, 1)));
      optimizer.zero_grad(/*set_to_none=*/step < 2);
    }
  });
}

TEST(Reduction, OutputsThatAreNobodysResultStayUntouched) {
  struct GivesItsScale : nn::Module {
    GivesItsScale() { scale = register_parameter("scale", torch::ones({1})); }
    std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {x * scale, scale}; }
    at::Tensor scale;
  };
  run_world(2, [](int rank) {
    DistributedDataParallel model(std::make_shared<GivesItsScale>());
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      auto [y, scale] = model(torch::full({1}, rank + 1.));
      (y + scale).backward();
      EXPECT_TRUE(tensor::all_equal(model->scale.grad(), 2.5));
    }
    EXPECT_EQ(torch::autograd::impl::get_autograd_meta(model->scale)->cpp_hooks_list_, nullptr);
  });
}

TEST(Reduction, ReadsAndWritesAGradientSlotOfOnesOwn) {
  // Gradients are kept in a table instead of in `.grad`.
  struct Table {
    std::map<const void*, at::Tensor> gradients;
  };
  struct Slot final : GradientSlot {
    Slot(const at::Tensor& parameter, Table& to) : own(tensor::own_gradient(parameter)), table(to) {}
    at::Tensor local() const override { return own->local(); }
    at::Tensor gradient() const override {
      const auto found = table.gradients.find(key());
      return found == table.gradients.end() ? at::Tensor() : found->second;
    }
    void set_gradient(const at::Tensor& gradient) override { table.gradients[key()] = gradient.clone(); }
    bool may_alias() const override { return false; }
    const torch::autograd::Node* accumulator() const override { return own->accumulator(); }
    bool follow() override { return own->follow(); }
    void when_accumulated(std::function<void()> then) override {
      own->when_accumulated([this, then = std::move(then)] {
        table.gradients[key()] = own->gradient().clone();
        own->set_gradient({});
        then();
      });
    }
    const void* key() const { return own->local().unsafeGetTensorImpl(); }
    std::unique_ptr<GradientSlot> own;
    Table& table;
  };
  run_world(2, [](int rank) {
    Table table;
    nn::Linear net(2, 1);
    DistributedDataParallel model(net, {.gradient_slot = [&](const at::Tensor& parameter) {
                                    return std::make_unique<Slot>(parameter, table);
                                  }});
    model(torch::full({1, 2}, rank + 1.)).sum().backward();
    EXPECT_FALSE(net->weight.grad().defined());
    EXPECT_TRUE(tensor::all_equal(table.gradients.at(net->weight.unsafeGetTensorImpl()), 1.5));
  });
}

}  // namespace
}  // namespace lockstep

// Collectives that return new tensors: their values, and their gradients against differences, across ranks.
#include "lockstep/tensor/functional.h"

#include <torch/csrc/autograd/autograd.h>

#include <thread>

#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

namespace F = lockstep::functional;
using F::Shapes;

// Numbers of this rank, different for each `seed`.
at::Tensor numbers(at::IntArrayRef sizes, int seed) {
  const at::Tensor tensor = at::empty(sizes, at::kDouble);
  auto* value = tensor.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    value[i] = static_cast<double>((i * 37 + get_rank() * 53 + seed * 71) % 101) / 50 - 1;
  return tensor;
}

using Function = std::function<Tensors(const Tensors& inputs)>;

// This rank's part of the loss: each output counts with a factor of its own.
at::Tensor loss_of(const Tensors& outputs) {
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    loss = loss + (numbers(outputs[i].sizes(), 100 + static_cast<int>(i)) * outputs[i]).sum();
  return loss;
}

// The sum of the losses of all ranks, where one of them may have changed an input.
double total_loss(const Function& function, const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  const at::Tensor loss = loss_of(function(inputs));
  all_reduce(loss);
  return loss.item<double>();
}

Tensors gradients_of(const Function& function, const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.clone().requires_grad_());
  return torch::autograd::grad({loss_of(function(leaves))}, leaves, {}, std::nullopt, false,
                               /*allow_unused=*/true);
}

// The inputs of each rank in turn are moved, by another amount for each element, while the others take part.
void check_gradients(const char* what, const Function& function, const Tensors& inputs) {
  const Tensors gradients = gradients_of(function, inputs);
  constexpr double kStep = 1e-5;
  for (int who = 0; who < get_world_size(); ++who) {
    const auto loss_at = [&](double step) {
      Tensors moved = inputs;
      for (std::size_t i = 0; i < moved.size() && get_rank() == who; ++i)
        moved[i] = inputs[i] + step * numbers(inputs[i].sizes(), 200 + static_cast<int>(i));
      return total_loss(function, moved);
    };
    const double expected = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    if (get_rank() != who) continue;
    double predicted = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_TRUE(gradients[i].defined()) << what;
      predicted +=
          (gradients[i] * numbers(inputs[i].sizes(), 200 + static_cast<int>(i))).sum().item<double>();
    }
    EXPECT_NEAR(predicted, expected, 1e-7) << what << " on rank " << who;
  }
}

// Those of the gradients: the function's outputs are squared, so that they depend on the inputs.
void check_second_gradients(const char* what, const Function& function, const Tensors& inputs) {
  const Function first = [&](const Tensors& given) {
    const at::AutoGradMode recorded(true);
    Tensors leaves;
    for (const at::Tensor& input : given)
      leaves.push_back(input.requires_grad() ? input : input.clone().requires_grad_());
    Tensors outputs = function(leaves);
    for (at::Tensor& output : outputs) output = output * output;
    return torch::autograd::grad({loss_of(outputs)}, leaves, {}, true, /*create_graph=*/true);
  };
  check_gradients(what, first, inputs);
}

void check(const char* what, const Function& function, const Tensors& inputs) {
  check_gradients(what, function, inputs);
  check_second_gradients(what, function, inputs);
}

Tensors list_of(int count, at::IntArrayRef sizes) {
  Tensors list;
  for (int i = 0; i < count; ++i) list.push_back(numbers(sizes, i));
  return list;
}

constexpr int kWorlds[] = {1, 2, 3};

TEST(Functional, ReductionsHaveGradients) {
  for (const int size : kWorlds) {
    run_world(size, [size](int rank) {
      const Tensors one{numbers({2, 3}, 0).t()};
      for (const Reduction& op :
           {Reduction(ReduceOp::kSum), Reduction(ReduceOp::kAvg), premul_sum(0.5 + rank)}) {
        check(
            "all_reduce", [&](const Tensors& in) { return Tensors{F::all_reduce(in[0], {.op = op})}; }, one);
        check(
            "all_reduce_coalesced",
            [&](const Tensors& in) { return F::all_reduce_coalesced(in, {.op = op}); }, list_of(2, {2}));
        check(
            "reduce_scatter", [&](const Tensors& in) { return Tensors{F::reduce_scatter(in, {.op = op})}; },
            list_of(size, {2}));
        check("reduce_scatter_single",
              [&](const Tensors& in) { return Tensors{F::reduce_scatter_single(in[0], 1, {.op = op})}; },
              {numbers({2, 2 * size}, 0)});
        check("reduce_scatter_single_coalesced",
              [&](const Tensors& in) {
                return F::reduce_scatter_single_coalesced(in, {0, -1}, {.op = op});
              },
              {numbers({size}, 0), numbers({2, size}, 1)});
        check(
            "reduce",
            [&](const Tensors& in) {
              const at::Tensor result = F::reduce(in[0], {.dst = size - 1, .op = op});
              return Tensors{rank == size - 1 ? result : result * 0};
            },
            one);
      }
    });
  }
}

TEST(Functional, MovesHaveGradients) {
  for (const int size : kWorlds) {
    run_world(size, [size](int rank) {
      const Tensors one{numbers({2, 3}, 0).t()};
      const int root = size - 1;
      check(
          "broadcast", [&](const Tensors& in) { return Tensors{F::broadcast(in[0], {.src = root})}; }, one);
      check(
          "gather", [&](const Tensors& in) { return F::gather(in[0], {.dst = root}); }, one);
      check(
          "scatter", [&](const Tensors& in) { return Tensors{F::scatter(in, {.src = root})}; },
          list_of(size, {2, 2}));
      check(
          "all_gather", [&](const Tensors& in) { return F::all_gather(in[0]); }, one);
      check(
          "all_gather_single", [&](const Tensors& in) { return Tensors{F::all_gather_single(in[0], -1)}; },
          one);
      check("all_gather_single of a number",
            [&](const Tensors& in) { return Tensors{F::all_gather_single_autograd(in[0])}; },
            {numbers({}, 0)});
      check("all_gather_single_coalesced",
            [&](const Tensors& in) { return F::all_gather_single_coalesced(in); },
            {numbers({2}, 0), numbers({1, 2}, 1)});
      check(
          "permute_tensor",
          [&](const Tensors& in) {
            std::vector<int> next;
            for (int r = 0; r < size; ++r) next.push_back((r + 1) % size);
            return Tensors{F::permute_tensor(in[0], next)};
          },
          one);
      // Rank a sends a + b + 1 rows to rank b.
      SplitSizes rows;
      Shapes shapes;
      Tensors uneven;
      for (int r = 0; r < size; ++r) {
        rows.push_back(rank + r + 1);
        shapes.push_back({rank + r + 1, 2});
        uneven.push_back(numbers({rank + r + 1, 2}, r));
      }
      check(
          "all_to_all", [&](const Tensors& in) { return F::all_to_all(in, shapes); }, uneven);
      check("all_to_all_single",
            [&](const Tensors& in) { return Tensors{F::all_to_all_single(in[0], rows, rows)}; },
            {at::cat(uneven)});
      check("all_to_all_single, even",
            [&](const Tensors& in) { return Tensors{F::all_to_all_single(in[0])}; }, {numbers({size}, 0)});
    });
  }
}

TEST(Functional, ResultsAreNewAndChain) {
  run_world(3, [](int rank) {
    const at::Tensor x = at::full({6}, rank + 1.0);
    const at::Tensor whole = F::all_gather_single(F::reduce_scatter_single(x));
    EXPECT_TRUE(all_equal(F::wait_tensor(whole), 6));
    EXPECT_TRUE(all_equal(x, rank + 1.0));
    EXPECT_FALSE(whole.requires_grad());
    // Of any type, where no gradient is asked for.
    EXPECT_TRUE(all_equal(F::all_reduce(at::full({2}, rank, at::kLong), {.op = ReduceOp::kMax}), 2));
    EXPECT_EQ(F::all_gather(at::empty({0, 2})).size(), 3U);
    EXPECT_TRUE(all_equal(F::permute_tensor(x, {2, 0, 1}), (rank + 1) % 3 + 1.0));
    // What needs no gradient here takes part all the same.
    const at::Tensor w = at::ones({2}).requires_grad_();
    const at::Tensor fixed = at::ones({2});
    F::all_reduce(w * fixed * (rank + 1)).sum().backward();
    EXPECT_TRUE(all_equal(w.grad(), 3.0 * (rank + 1)));
    barrier();
  });
}

TEST(Functional, BackwardMayRunOnAnyThreadAndKeepsItsGroup) {
  run_world(3, [](int rank) {
    ProcessGroup pair = new_group({0, 2});
    const at::Tensor x = at::full({2}, rank + 1.0).requires_grad_();
    at::Tensor y = F::all_reduce(x, {.group = pair});
    pair = {};
    std::thread([&] { (y * (rank + 1)).sum().backward(); }).join();
    EXPECT_TRUE(all_equal(x.grad(), rank == 1 ? 2 : 4));  // a non-member has its input back
    EXPECT_TRUE(F::gather(x, {.group = ProcessGroup::non_member()}).empty());
    EXPECT_FALSE(F::scatter({x}, {.group = ProcessGroup::non_member()}).defined());
    barrier();
  });
}

// An output that enters no loss has a gradient of zero, and the collective runs.
TEST(Functional, OutputsThatAreNotUsedCountAsZero) {
  run_world(2, [](int rank) {
    const at::Tensor x = at::ones({2}).requires_grad_();
    const Tensors all = F::all_gather(x);
    all[0].sum().backward();
    EXPECT_TRUE(all_equal(x.grad(), rank == 0 ? 2 : 0));
    barrier();
  });
}

TEST(Functional, RefuseWhatIsWrong) {
  run_world(2, [](int rank) {
    const std::string own = "rank " + std::to_string(rank) + ": ";
    const at::Tensor x = at::ones({3}).requires_grad_();
    expect_error([&] { F::all_reduce(x, {.op = ReduceOp::kMax}); }, {own, "all_reduce", "have a gradient"});
    expect_error([&] { F::reduce(x, {.dst = 0, .op = ReduceOp::kProduct}); },
                 {own, "reduce", "have a gradient"});
    expect_error([&] { F::all_reduce(at::Tensor()); }, {own, "all_reduce", "tensor", "undefined"});
    expect_error([&] { F::all_reduce_coalesced({}); }, {own, "all_reduce_coalesced", "empty"});
    expect_error([&] { F::broadcast(x, {}); }, {own, "broadcast", "neither src"});
    expect_error([&] { F::scatter({x}); }, {own, "scatter", "1 tensors", "2 ranks"});
    expect_error([&] { F::all_gather_single(x, 1); }, {own, "all_gather_single", "gather_dim is 1"});
    expect_error([&] { F::reduce_scatter_single(x); }, {own, "reduce_scatter_single", "[3]", "2 ranks"});
    expect_error([&] { F::reduce_scatter_single_coalesced({x}, {0, 0}); }, {own, "scatter_dims has 2"});
    expect_error([&] { F::all_to_all({x, x}, {{3}}); }, {own, "all_to_all", "output_shapes has 1"});
    expect_error([&] { F::all_to_all_single(x); }, {own, "all_to_all_single", "3 rows"});
    expect_error([&] { F::all_to_all_single(x, {1, 2}); }, {own, "together or not at all"});
    expect_error([&] { F::permute_tensor(x, {0, 0}); }, {own, "permute_tensor", "no permutation"});
    EXPECT_TRUE(all_equal(F::all_reduce(at::ones({1})), 2));  // the group lives on
    barrier();
  });
}

}  // namespace
}  // namespace lockstep::tensor

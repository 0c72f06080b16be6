// Collectives that return new tensors: their values, and their Jacobians against differences, across ranks.
#include "lockstep/tensor/functional.h"

#include <thread>

#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/gradcheck_test_support.h"
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
    value[i] = static_cast<double>((i * 37 + get_rank() * 53L + seed * 71L) % 101) / 50 - 1;
  return tensor;
}

// Linear functions: what is left is the rounding of the differences.
constexpr double kTolerance = 1e-8;

Tensors as_complex(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(at::complex(tensor, 2 * tensor + 1));
  return all;
}

// First and second derivatives, of float64 and, in one of the worlds, of complex128.
void check(const char* what, const CollectiveFunction& function, const Tensors& given) {
  std::vector<Tensors> kinds{given};
  if (get_world_size() == 2) kinds.push_back(as_complex(given));
  for (const Tensors& inputs : kinds) {
    SCOPED_TRACE(std::string(what) + (inputs[0].is_complex() ? " of complex numbers" : ""));
    EXPECT_LT(Gradcheck(function, inputs).difference(), kTolerance);
    Tensors all = inputs;
    for (const at::Tensor& output : function(inputs)) all.push_back(output.detach() * 0.5 + 1);
    EXPECT_LT(Gradcheck(derivative_of(function, inputs.size()), all).difference(), kTolerance);
  }
}

Tensors list_of(int count, at::IntArrayRef sizes) {
  Tensors list;
  for (int i = 0; i < count; ++i) list.push_back(numbers(sizes, i));
  return list;
}

constexpr int kWorlds[] = {1, 2, 3};

// A derivative that forgets the other ranks, and one that is wrong on one rank alone.
TEST(Gradcheck, SeesADerivativeThatIsWrong) {
  run_world(2, [](int rank) {
    const auto with = [](const Derivative& derivative) {
      return [derivative](const Tensors& in) {
        return differentiable(
            in,
            [&] {
              const at::Tensor sum = in[0].clone();
              all_reduce(sum);
              return Tensors{sum};
            },
            derivative);
      };
    };
    const Tensors inputs{numbers({2}, 0)};
    const auto sum_of = [](const at::Tensor& gradient) {
      at::Tensor sum = gradient.clone();
      all_reduce(sum);
      return sum;
    };
    EXPECT_LT(Gradcheck(with([&](const Tensors& g) { return Tensors{sum_of(g[0])}; }), inputs).difference(),
              kTolerance);
    EXPECT_GT(Gradcheck(with([](const Tensors& g) { return g; }), inputs).difference(), 0.9);
    EXPECT_GT(Gradcheck(with([&](const Tensors& g) { return Tensors{sum_of(g[0]) * (rank + 1)}; }), inputs)
                  .difference(),
              0.9);
    barrier();
  });
}

TEST(Functional, ReductionsHaveGradients) {
  for (const int size : kWorlds) {
    run_world(size, [size](int rank) {
      const Tensors one{numbers({2, 2}, 0).t()};
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
              {numbers({1, 2L * size}, 0)});
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
      const Tensors one{numbers({2, 2}, 0).t()};
      const int root = size - 1;
      check(
          "broadcast", [&](const Tensors& in) { return Tensors{F::broadcast(in[0], {.src = root})}; }, one);
      check(
          "gather", [&](const Tensors& in) { return F::gather(in[0], {.dst = root}); }, one);
      check(
          "scatter", [&](const Tensors& in) { return Tensors{F::scatter(in, {.src = root})}; },
          list_of(size, {2}));
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
    expect_error([&] { F::all_reduce(at::Tensor()); }, {own, "all_reduce: tensor is an undefined"});
    expect_error(
        [&] {
          F::all_gather_single_coalesced({x, at::Tensor()});
        },
        {own, "tensors[1] is an undefined"});
    expect_error([&] { F::all_reduce_coalesced({}); }, {own, "all_reduce_coalesced", "empty"});
    expect_error([&] { F::broadcast(x, {}); }, {own, "broadcast", "neither src"});
    expect_error([&] { F::scatter({x}); }, {own, "scatter", "1 tensors", "2 ranks"});
    expect_error([&] { F::all_gather_single(x, 1); }, {own, "all_gather_single", "gather_dim is 1"});
    expect_error([&] { F::reduce_scatter_single(x); }, {own, "reduce_scatter_single", "[3]", "2 ranks"});
    expect_error([&] { F::reduce_scatter_single_coalesced({x}, {0, 0}); }, {own, "scatter_dims has 2"});
    expect_error([&] { F::all_to_all({x, x}, {{3}}); }, {own, "all_to_all", "output_shapes has 1"});
    constexpr std::int64_t kVast = std::int64_t{1} << 62;
    expect_error([&] { F::all_to_all({x, x}, {{3}, {-1}}); }, {own, "all_to_all", "output_shapes[1]", "-1"});
    expect_error([&] { F::all_to_all({x, x}, {{3}, {kVast, 3}}); }, {own, "output_shapes[1]", "more bytes"});
    expect_error([&] { F::all_to_all({x, x}, {{2}, {2}}); }, {own, "all_to_all", "gives itself"});
    expect_error(
        [&] {
          F::all_to_all_single(x, {kVast, kVast}, {1, 2});
        },
        {own, "output_split_sizes", "rows"});
    expect_error([&] { F::all_to_all_single(x, {4, -1}, {1, 2}); }, {own, "output_split_sizes", "-1"});
    expect_error(
        [&] {
          F::all_to_all_single(x, {0, kVast}, {1, 2});
        },
        {own, "output_split_sizes", "more bytes"});
    expect_error<OutOfResources>(
        [&] {
          F::all_to_all_single(x, {0, kVast >> 6}, {1, 2});
        },
        {own, "all_to_all_single", "no memory", "output_split_sizes"});
    expect_error([&] { F::all_gather_single(at::ones({1}).expand({kVast})); },
                 {own, "all_gather_single", "tensor"});
    expect_error([&] { F::all_to_all_single(x); }, {own, "all_to_all_single", "3 rows"});
    expect_error([&] { F::all_to_all_single(x, {1, 2}); }, {own, "together or not at all"});
    expect_error([&] { F::permute_tensor(x, {0, 0}); }, {own, "permute_tensor", "no permutation"});
    EXPECT_TRUE(all_equal(F::all_reduce(at::ones({1})), 2));  // the group lives on
    barrier();
  });
}

}  // namespace
}  // namespace lockstep::tensor

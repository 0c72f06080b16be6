// Every collective on tensors, on worlds of real processes of 1, 2, 3 and 5 ranks.
#include "lockstep/tensor/collectives.h"

#include <thread>

#include "lockstep/tensor/coalescing.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

void on_worlds(const std::function<void(int rank, int size)>& body) {
  for (const int size : {1, 2, 3, 5}) run_world(size, [&](int rank) { body(rank, size); });
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(actual, expected)) << actual << "\nbut expected\n" << expected;
}

const std::vector<at::ScalarType> kMoved = {
    at::kBool,         at::kByte,   at::kChar,          at::kShort,         at::kInt,        at::kLong,
    at::kUInt16,       at::kUInt32, at::kHalf,          at::kBFloat16,      at::kFloat,      at::kDouble,
    at::kComplexFloat, at::kUInt64, at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

bool is_float8(at::ScalarType type) { return at::isFloat8Type(type); }

// Not every type can be compared.
bool same_numbers(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.to(at::kComplexDouble), b.to(at::kComplexDouble));
}

TEST(Collectives, MoveEveryType) {
  on_worlds([](int rank, int size) {
    for (const at::ScalarType type : kMoved) {
      const auto of = [&](int r) { return at::full({2, 3}, r % 2, at::kFloat).to(type); };
      const at::Tensor tensor = of(rank).clone();
      broadcast(tensor, {.src = size - 1});
      EXPECT_TRUE(same_numbers(tensor, of(size - 1))) << at::toString(type);
      Tensors all;
      for (int r = 0; r < size; ++r) all.push_back(at::empty_like(tensor));
      all_gather(all, of(rank));
      for (int r = 0; r < size; ++r) EXPECT_TRUE(same_numbers(all[r], of(r)));
      if (is_float8(type)) {
        expect_error([&] { all_reduce(tensor); }, {"all_reduce", "op", "float8"});
        continue;
      }
      all_reduce(tensor.copy_(of(1)), {.op = ReduceOp::kProduct});
      EXPECT_TRUE(same_numbers(tensor, of(1))) << at::toString(type);
    }
  });
}

TEST(Collectives, Reduce) {
  on_worlds([](int rank, int size) {
    const int n = size;
    const at::Tensor tensor = at::arange(6, at::kFloat).view({2, 3}) + rank;
    const at::Tensor sum = at::arange(6, at::kFloat).view({2, 3}) * n + n * (n - 1) / 2;
    at::Tensor data = tensor.clone();
    all_reduce(data);
    expect_same(data, sum);
    all_reduce(data.copy_(tensor), {.op = ReduceOp::kAvg});
    expect_same(data, sum / n);
    all_reduce(data.copy_(tensor), {.op = premul_sum(0.5)});
    expect_same(data, sum / 2);
    all_reduce(data.copy_(tensor), {.op = ReduceOp::kMin});
    expect_same(data, tensor - rank);
    data = tensor.clone();
    reduce(data, {.dst = n - 1});
    expect_same(data, rank == n - 1 ? sum : tensor);

    const at::Tensor bits = at::full({4}, 1 << rank, at::kInt);
    all_reduce(bits, {.op = ReduceOp::kBor});
    EXPECT_TRUE(all_equal(bits, (1 << n) - 1));

    const Tensors many = {at::ones({3}), at::full({2, 2}, 2.F), at::ones({})};
    all_reduce_coalesced(many);
    EXPECT_TRUE(all_equal(many[0], n) && all_equal(many[1], 2 * n) && all_equal(many[2], n));

    Tensors inputs;
    for (int r = 0; r < n; ++r) inputs.push_back(at::full({2}, r, at::kDouble));
    const at::Tensor output = at::empty({2}, at::kDouble);
    reduce_scatter(output, inputs);
    EXPECT_TRUE(all_equal(output, rank * n));
    reduce_scatter_single(output.zero_(), at::cat(inputs));
    EXPECT_TRUE(all_equal(output, rank * n));
    reduce_scatter_tensor(output.zero_(), at::stack(inputs), {.op = ReduceOp::kAvg});
    EXPECT_TRUE(all_equal(output, rank));
  });
}

TEST(Collectives, GatherAndScatter) {
  on_worlds([](int rank, int size) {
    const at::Tensor own = at::full({2, 3}, rank, at::kLong);
    Tensors all;
    for (int r = 0; r < size; ++r) all.push_back(at::full({2, 3}, r, at::kLong));
    const at::Tensor concatenated = at::empty({2L * size, 3}, at::kLong);
    all_gather_single(concatenated, own);
    expect_same(concatenated, at::cat(all));
    const at::Tensor stacked = at::empty({size, 2, 3}, at::kLong);
    all_gather_into_tensor(stacked, own);
    expect_same(stacked, at::stack(all));
    const at::Tensor scalars = at::empty({size}, at::kLong);
    all_gather_single(scalars, at::tensor(rank, at::kLong));
    expect_same(scalars, at::arange(size, at::kLong));

    // Of different sizes.
    Tensors uneven;
    for (int r = 0; r < size; ++r) uneven.push_back(at::empty({r, 2}));
    all_gather(uneven, at::full({rank, 2}, rank, at::kFloat));
    for (int r = 0; r < size; ++r) EXPECT_TRUE(all_equal(uneven[r], r));

    std::vector<Tensors> lists;
    for (int r = 0; r < size; ++r) lists.push_back({at::empty({2, 3}, at::kLong), at::empty({1}, at::kLong)});
    all_gather_coalesced(lists, {own, at::full({1}, 10 * rank, at::kLong)});
    for (int r = 0; r < size; ++r) {
      expect_same(lists[r][0], all[r]);
      EXPECT_TRUE(all_equal(lists[r][1], 10 * r));
    }

    const int root = size - 1;
    Tensors gathered;
    if (rank == root) {
      for (int r = 0; r < size; ++r) gathered.push_back(at::empty_like(own));
    }
    gather(own, gathered, {.dst = root});
    if (rank == root) expect_same(at::stack(gathered), at::stack(all));
    gather_single(rank == 0 ? stacked.zero_() : at::Tensor(), own);
    if (rank == 0) expect_same(stacked, at::stack(all));

    const at::Tensor part = at::empty_like(own);
    scatter(part, rank == root ? all : Tensors(), {.group_src = root});
    expect_same(part, own);
  });
}

TEST(Collectives, SingleFormsWorkInPlace) {
  on_worlds([](int rank, int size) {
    for (const bool async_op : {false, true}) {
      const at::Tensor whole = at::zeros({2L * size, 3});
      const at::Tensor own = whole.slice(0, 2 * rank, 2 * rank + 2).fill_(rank + 1);
      all_gather_single(whole, own, {.async_op = async_op}).wait();
      for (int r = 0; r < size; ++r) EXPECT_TRUE(all_equal(whole.slice(0, 2 * r, 2 * r + 2), r + 1));
      reduce_scatter_single(own, whole, {.async_op = async_op}).wait();
      EXPECT_TRUE(all_equal(own, size * (rank + 1)));
      gather_single(rank == 0 ? whole : at::Tensor(), own, {.async_op = async_op}).wait();
      for (int r = 0; r < size && rank == 0; ++r)
        EXPECT_TRUE(all_equal(whole.slice(0, 2 * r, 2 * r + 2), size * (r + 1)));
    }
  });
}

TEST(Collectives, AllToAll) {
  on_worlds([](int rank, int size) {
    Tensors inputs;
    Tensors outputs;
    for (int r = 0; r < size; ++r) {
      inputs.push_back(at::full({rank + 1, 2}, 10 * rank + r, at::kInt));
      outputs.push_back(at::empty({r + 1, 2}, at::kInt));
    }
    all_to_all(outputs, inputs);
    for (int r = 0; r < size; ++r) EXPECT_TRUE(all_equal(outputs[r], 10 * r + rank));

    const at::Tensor even = at::empty({size, 3}, at::kInt);
    all_to_all_single(even, (at::arange(size, at::kInt) + 10 * rank).unsqueeze(1).expand({size, 3}));
    expect_same(even.select(1, 2), at::arange(size, at::kInt) * 10 + rank);

    // Rank a sends b + 1 rows to rank b.
    SplitSizes to;
    SplitSizes from;
    for (int r = 0; r < size; ++r) {
      to.push_back(r + 1);
      from.push_back(rank + 1);
    }
    const at::Tensor output = at::empty({1L * size * (rank + 1), 2}, at::kInt);
    all_to_all_single(output, at::full({size * (size + 1) / 2, 2}, rank, at::kInt), from, to);
    expect_same(output.select(1, 1), at::arange(size, at::kInt).repeat_interleave(rank + 1));
  });
}

TEST(Collectives, TakeTensorsOfAnyLayout) {
  run_world(3, [](int rank) {
    // Columns, a transposed matrix, steps, a conjugate.
    const at::Tensor matrix = at::zeros({4, 3});
    Tensors columns;
    for (int r = 0; r < 3; ++r) columns.push_back(matrix.select(1, r));
    all_gather(columns, at::full({4}, rank, at::kFloat));
    expect_same(matrix, at::arange(3, at::kFloat).expand({4, 3}));

    const at::Tensor turned = at::arange(6, at::kFloat).view({2, 3});
    all_reduce(turned.t());
    expect_same(turned, at::arange(6, at::kFloat).view({2, 3}) * 3);
    const at::Tensor steps = at::full({10}, rank, at::kDouble);
    all_reduce(steps.slice(0, 0, 10, 2));
    expect_same(steps, at::where(at::arange(10).remainder(2) == 0, 3., double(rank)));

    const at::Tensor number = at::complex(at::ones({2}), at::full({2}, rank, at::kFloat));
    const at::Tensor conjugates = at::empty({3, 2}, at::kComplexFloat);
    all_gather_single(conjugates, number.conj());
    expect_same(at::imag(conjugates).select(1, 0), -at::arange(3, at::kFloat));
    const at::Tensor in_place = number.clone();
    all_reduce(in_place.conj());
    expect_same(at::imag(in_place), at::full({2}, 3, at::kFloat));

    // Nothing at all, and one number.
    const at::Tensor nothing = at::empty({0, 7});
    all_reduce(nothing);
    broadcast(nothing, {.src = 1});
    all_gather_single(at::empty({0}), at::empty({0}));
    const at::Tensor one = at::tensor(2.5);
    all_reduce(one);
    EXPECT_EQ(one.item<double>(), 7.5);

    const at::Tensor leaf = at::ones({2}).requires_grad_();
    all_reduce(leaf);
    EXPECT_TRUE(all_equal(leaf, 3));
    EXPECT_TRUE(leaf.is_leaf());
  });
}

TEST(Collectives, SumSparseTensorsInRankOrder) {
  on_worlds([](int rank, int) {
    const at::Tensor dense = at::zeros({6, 2});
    dense.select(0, rank).fill_(1);
    dense.select(0, 5).fill_(0.1F * static_cast<float>(rank));
    const at::Tensor sparse = dense.to_sparse(1);
    all_reduce(sparse);
    EXPECT_TRUE(sparse.is_coalesced());
    const at::Tensor expected = dense.clone();
    all_reduce(expected);  // a left fold over ranks as well, so the bits are the same
    expect_same(sparse.to_dense(), expected);
    expect_error([&] { all_reduce(sparse, {.op = ReduceOp::kMax}); }, {"sparse", "summed"});
    expect_error([&] { broadcast(sparse, {.src = 0}); }, {"broadcast", "sparse"});
    const at::Tensor none = at::zeros({6, 2}).to_sparse(1);
    all_reduce(none);
    EXPECT_EQ(none._nnz(), 0);
    barrier();

    const at::Tensor later = dense.to_sparse(1);
    const WorkHandle work = all_reduce(later, {.async_op = true});
    const WorkHandle next = barrier({.async_op = true});
    EXPECT_EQ(next.sequence(), work.sequence() + 3) << "it is three operations, which nothing comes between";
    work.wait();
    EXPECT_TRUE(work.result().at(0).is_same(later));
    expect_same(later.to_dense(), expected);
    next.wait();
  });
}

// As what stands for the gradient of an embedding that a rank has not used.
TEST(Collectives, SumSparseTensorsOfWhichSomeHaveNoElements) {
  on_worlds([](int rank, int size) {
    const auto some = [] { return at::full({4, 3, 2}, 1.5F).to_sparse(1); };
    const auto none = [](std::int64_t sparse_dims) { return at::zeros({4, 3, 2}).to_sparse(sparse_dims); };
    const auto sum_is = [&](const at::Tensor& tensor, std::int64_t sparse_dims, float each) {
      all_reduce(tensor);
      EXPECT_TRUE(tensor.is_coalesced());
      EXPECT_EQ(tensor.sparse_dim(), sparse_dims);
      EXPECT_EQ(tensor.dense_dim(), 3 - sparse_dims);
      expect_same(tensor.to_dense(), at::full({4, 3, 2}, each));
    };
    const bool first = rank == 0;
    const bool last = rank == size - 1;
    if (size > 1) {
      sum_is(first ? none(3) : some(), 1, 1.5F * static_cast<float>(size - 1));
      sum_is(last ? none(2) : some(), 1, 1.5F * static_cast<float>(size - 1));
      sum_is(last ? some() : none(1 + rank % 3), 1, 1.5F);
      sum_is(first ? some() : none(3), 1, 1.5F);
    }
    sum_is(none(1 + rank % 3), 1, 0);  // all of them: as the first rank's

    const at::Tensor later = first ? some() : none(3);
    all_reduce(later, {.async_op = true}).wait();
    EXPECT_EQ(later.sparse_dim(), 1);
    barrier();
    if (size < 3) return;
    // Those that have elements do not fit each other.
    const at::Tensor other = first ? none(2) : at::ones({4, 3, 2}).to_sparse(last ? 3 : 1);
    expect_error<Desync>([&] { all_reduce(other); }, {last ? "rank 1 has" : cat("rank ", size - 1, " has"),
                                                      "a sparse tensor of another shape or type"});
  });
}

TEST(Collectives, AreAsynchronousIfAsked) {
  run_world(3, [](int rank) {
    std::vector<WorkHandle> works;
    Tensors tensors;
    for (int i = 0; i < 10; ++i) {
      tensors.push_back(at::full({100}, rank, at::kFloat));
      works.push_back(all_reduce(tensors.back(), {.async_op = true}));
    }
    const at::Tensor steps = at::full({10}, rank, at::kFloat);
    const WorkHandle staged = all_reduce(steps.slice(0, 0, 10, 2), {.async_op = true});
    works.push_back(barrier({.async_op = true}));
    for (const WorkHandle& work : works) work.wait();
    for (const at::Tensor& tensor : tensors) EXPECT_TRUE(all_equal(tensor, 3));
    for (const WorkHandle& work : works) {
      EXPECT_TRUE(work.is_completed() && work.is_success());
      EXPECT_EQ(work.exception(), nullptr);
      EXPECT_EQ(work.source_rank(), -1);
    }
    EXPECT_EQ(works[3].sequence(), 4U);
    EXPECT_TRUE(works[3].result().at(0).is_same(tensors[3]));
    staged.wait();
    EXPECT_TRUE(all_equal(steps.slice(0, 0, 10, 2), 3));
    EXPECT_TRUE(all_equal(steps.slice(0, 1, 10, 2), rank));
    // The tensor is kept though nobody else does.
    const WorkHandle alone = all_reduce(at::full({1 << 16}, 1.F), {.async_op = true});
    alone.wait();
    EXPECT_TRUE(all_equal(alone.result().at(0), 3));
    EXPECT_TRUE(WorkHandle().is_success());
  });
}

TEST(Collectives, AreWrittenThoughNobodyWaits) {
  run_world(2, [](int rank) {
    const ProcessGroup other = new_group();
    const at::Tensor steps = at::full({8}, rank, at::kFloat);
    const at::Tensor got = at::zeros({4});
    const at::Tensor sparse = at::full({4}, rank + 1, at::kFloat).to_sparse();
    // The handles are gone at once.
    all_reduce(steps.slice(0, 0, 8, 2), {.async_op = true});
    all_reduce(sparse, {.async_op = true});
    {
      const at::InferenceMode inference;
      const at::Tensor made = at::full({4, 2}, 1.F);
      all_reduce(made.select(1, 0), {.async_op = true});
    }
    irecv(got.slice(0, 0, 4, 2), {.src = 1 - rank});
    isend(at::full({2}, rank + 5, at::kFloat), {.dst = 1 - rank});
    barrier({.group = other});  // no thread waits for the first group itself
    const Deadline limit = Clock::steady().in(60s);
    const auto written = [&] {
      return all_equal(steps.slice(0, 0, 8, 2), 1) && all_equal(got.slice(0, 0, 4, 2), 6 - rank);
    };
    while (!written() && !limit.expired()) std::this_thread::yield();
    EXPECT_TRUE(written()) << steps << got;
    EXPECT_TRUE(all_equal(steps.slice(0, 1, 8, 2), rank)) << "the others stay";
    barrier();
    EXPECT_TRUE(all_equal(sparse.to_dense(), 3));
  });
}

TEST(Collectives, AreCoalesced) {
  on_worlds([](int rank, int size) {
    Coalescing together({.op = ReduceOp::kAvg, .async_op = true});
    const at::Tensor a = at::full({3}, rank, at::kFloat);
    const at::Tensor b = at::full({2, 2}, 2 * rank, at::kFloat);
    together.all_reduce(a);
    together.all_reduce(b);
    expect_error([&] { together.all_gather_single(at::empty({size}), at::ones({1})); },
                 {"all_reduce", "all_gather"});
    expect_error([&] { together.all_reduce(at::ones({1}, at::kInt)); }, {"tensor[2]", "Int", "Float"});
    together.launch().wait();
    EXPECT_TRUE(all_equal(a, (size - 1) / 2.) && all_equal(b, size - 1));
    EXPECT_TRUE(together.launch().is_success());

    Coalescing gathers;
    const at::Tensor all = at::empty({size}, at::kInt);
    const at::Tensor twice = at::empty({size, 2}, at::kInt);
    gathers.all_gather_single(all, at::full({1}, rank, at::kInt));
    gathers.all_gather_single(twice, at::full({2}, rank, at::kInt));
    gathers.launch();
    expect_same(all, at::arange(size, at::kInt));
    expect_same(twice.select(1, 1), all);
    gathers.reduce_scatter_single(at::empty({1}, at::kInt), all);
    gathers.launch();
  });
}

// As torch's: a rank's own part of the whole is an input or an output. It counts as it is at the launch.
TEST(Collectives, AScopeTakesCallsInPlace) {
  run_world(3, [](int rank) {
    const at::Tensor whole = at::zeros({3, 4}, at::kInt);
    const at::Tensor columns = at::zeros({2, 6}, at::kInt).t();  // rows of no plain array
    Coalescing wrong;
    wrong.all_gather_single(whole, whole.narrow(0, (rank + 1) % 3, 1));  // another's part
    expect_error([&] { wrong.launch(); }, {"coalescing", "input[0] and output[0] share memory"});

    Coalescing gathers;
    gathers.all_gather_single(whole, whole.narrow(0, rank, 1));
    gathers.all_gather_single(columns, columns.narrow(0, 2L * rank, 2));
    whole.narrow(0, rank, 1).fill_(rank + 1);
    columns.narrow(0, 2L * rank, 2).fill_(rank + 1);
    gathers.launch();
    const at::Tensor counted = at::tensor({1, 2, 3}, at::kInt);
    expect_same(whole, counted.unsqueeze(1).expand({3, 4}));
    expect_same(columns, counted.repeat_interleave(2).unsqueeze(1).expand({6, 2}));

    Coalescing scatters;
    scatters.reduce_scatter_single(whole.narrow(0, rank, 1), whole);
    scatters.launch();
    EXPECT_TRUE(all_equal(whole.narrow(0, rank, 1), 3 * (rank + 1)));
    EXPECT_TRUE(all_equal(whole.narrow(0, (rank + 1) % 3, 1), (rank + 1) % 3 + 1));
    barrier();
  });
}

TEST(Collectives, AMonitoredBarrierNamesAllThatAreMissing) {
  run_world(4, [](int rank) {
    const ProcessGroup end = new_group();
    for (const bool wait_all_ranks : {false, true}) {
      const ProcessGroup group = new_group();
      monitored_barrier({.group = group, .wait_all_ranks = wait_all_ranks});
      if (rank == 0 || rank == 2) {
        try {
          monitored_barrier({.group = group, .timeout = 300ms, .wait_all_ranks = wait_all_ranks});
          ADD_FAILURE() << "nothing was thrown";
        } catch (const MissingRanks& error) {
          // The other one may be late itself on a busy machine.
          EXPECT_THAT(error.missing(), ::testing::IsSupersetOf({Rank{1}, Rank{3}}));
          EXPECT_THAT(error.what(), HasSubstr(": monitored_barrier"));
          EXPECT_THAT(error.what(), HasSubstr("3 did not come"));
        }
      }
      barrier({.group = end});
      // Who comes too late hears the same.
      EXPECT_THROW(monitored_barrier({.group = group, .wait_all_ranks = wait_all_ranks}), MissingRanks);
      barrier({.group = end});  // until then nobody leaves
    }
  });
}

}  // namespace
}  // namespace lockstep::tensor

// Collectives on tensors that are called wrongly, or not alike on all ranks.
#include "lockstep/tensor/collectives.h"

#include <limits>

#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

using lockstep::testing::ProcessWorld;

TEST(Collectives, ThatDoNotFitEachOtherAreADesync) {
  EXPECT_OK(ProcessWorld{2}.run([](const SpawnedRank& rank) {
    const auto world = init_process_group({.environment = rank.environment});
    const at::Tensor tensor = at::ones({rank.rank.value + 1});
    expect_error<Desync>([&] { all_reduce(tensor); }, {"all_reduce", "rank"});
    expect_error<Desync>([] { barrier(); }, {"all_reduce"});  // the group is dead, and says why
  }));
}

// Each is refused with a sentence that has these words, and the group stays usable.
struct Misuse {
  std::vector<std::string> words;
  std::function<void()> call;
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "it was not refused";
}

TEST(Collectives, RefuseWhatIsWrongBeforeAnythingIsSent) {
  run_world(2, [](int rank) {
    const at::Tensor t = at::ones({2, 2});
    const at::Tensor ints = at::ones({2, 2}, at::kInt);
    const at::Tensor meta = at::ones({2, 2}, at::TensorOptions(at::kMeta));
    const at::Tensor wide = at::ones({1}).expand({4});
    const at::Tensor whole = at::ones({4, 2});
    const Tensors two = {at::ones({2, 2}), at::ones({2, 2})};
    const Tensors three = {t.clone(), t.clone(), t.clone()};
    const ProcessGroup own = new_group({rank});
    const bool first = rank == 0;
    const std::vector<Misuse> misuses = {
        {{"all_reduce", "tensor is an undefined tensor"}, [&] { all_reduce(at::Tensor()); }},
        {{"all_reduce", "meta", "cpu:native"}, [&] { all_reduce(meta); }},
        {{"all_reduce", "tensor", "one place"}, [&] { all_reduce(wide); }},
        {{"all_reduce", "ComplexHalf"}, [&] { all_reduce(at::empty({2}, at::kComplexHalf)); }},
        {{"all_reduce", "op", "float32"}, [&] { all_reduce(t, {.op = ReduceOp::kBand}); }},
        {{"all_reduce", "op", "complex64"},
         [&] { all_reduce(at::ones({2}, at::kComplexFloat), {.op = ReduceOp::kMax}); }},
        {{"all_reduce_coalesced", "empty"}, [&] { all_reduce_coalesced({}); }},
        {{"all_reduce_coalesced", "tensors[1]", "Int", "tensors[0]"},
         [&] {
           all_reduce_coalesced({t, ints});
         }},
        {{"all_reduce_coalesced", "tensors[0]", "tensors[1]", "share"},
         [&] {
           all_reduce_coalesced({t, t.select(0, 1)});
         }},
        {{"broadcast", "neither src nor group_src"}, [&] { broadcast(t, {}); }},
        {{"broadcast", "src and group_src"}, [&] { broadcast(t, {.src = 0, .group_src = 0}); }},
        {{"broadcast", "src is 2", "0, 1"}, [&] { broadcast(t, {.src = 2}); }},
        {{"broadcast", "src is -1"}, [&] { broadcast(t, {.src = -1}); }},
        {{"broadcast", "group_src is 1", "1 ranks"}, [&] { broadcast(t, {.group_src = 1, .group = own}); }},
        {{"broadcast", "src is"}, [&] { broadcast(t, {.src = 1 - rank, .group = own}); }},
        {{"reduce", "neither dst"}, [&] { reduce(t, {}); }},
        {{"reduce", "dst is 7"}, [&] { reduce(t, {.dst = 7}); }},
        {{"all_gather", "tensor_list has 3"}, [&] { all_gather(three, t); }},
        {{"all_gather", "tensor_list[0]", "Float"}, [&] { all_gather(two, ints); }},
        {{"all_gather", "tensor_list[1] is on meta", "tensor is on cpu"},
         [&] {
           all_gather({at::ones({2, 2}), meta}, t);
         }},
        {{"all_reduce", "tensor is on meta", "no backend"}, [&] { all_reduce(meta, {.async_op = true}); }},
        {{"all_reduce", "tensor has the layout SparseCsr"}, [&] { all_reduce(t.to_sparse_csr()); }},
        {{"broadcast", "tensor has the layout Sparse;"}, [&] { broadcast(t.to_sparse(), {.src = 0}); }},
        {{"all_gather", "share memory"},
         [&] {
           all_gather({t, t}, at::ones({2, 2}));
         }},
        {{"all_gather", "share memory", "tensor"},
         [&] {
           all_gather({t, two[0]}, t);
         }},
        {{"all_gather", "shape [3]", "shape [2, 2]"},
         [&] {
           all_gather({at::ones({3}), at::ones({3})}, t);
         }},
        {{"all_gather_single", "output", "[2, 2]"},
         [&] {
           all_gather_single(at::ones({2, 2}), t);
         }},
        {{"all_gather_single", "output", "[2, 4]"},
         [&] {
           all_gather_single(at::ones({2, 4}), t);
         }},
        {{"all_gather_single", "share"}, [&] { all_gather_single(whole, whole.slice(0, 1, 3)); }},
        {{"all_gather_coalesced", "output_tensor_lists has 1"}, [&] { all_gather_coalesced({two}, two); }},
        {{"all_gather_coalesced", "output_tensor_lists[1] has 3"},
         [&] {
           all_gather_coalesced({two, three}, two);
         }},
        {{"all_gather_coalesced", "output_tensor_lists[1][1] is of type Int"},
         [&] {
           all_gather_coalesced({two, {t, ints}}, {t.clone(), t.clone()});
         }},
        {{"all_gather_coalesced", "][1] has the shape [3]", "input_tensor_list[1]"},
         [&] {
           all_gather_coalesced({{two[0], at::ones({3})}, {two[1], at::ones({3})}}, {t.clone(), t.clone()});
         }},
        {{"gather", "gather_list"}, [&] { gather(t, first ? Tensors() : two); }},
        {{"gather_single", "output"}, [&] { gather_single(first ? at::Tensor() : whole, t); }},
        {{"gather", "dst and group_dst"}, [&] { gather(t, {}, {.dst = 0, .group_dst = 1}); }},
        {{"scatter", "scatter_list"}, [&] { scatter(t, first ? three : two); }},
        {{"scatter", "src is 2"}, [&] { scatter(t, {}, {.src = 2}); }},
        {{"scatter", "src and group_src"}, [&] { scatter(t, {}, {.src = 0, .group_src = 0}); }},
        {{"reduce", "dst and group_dst"}, [&] { reduce(t, {.dst = 0, .group_dst = 0}); }},
        {{"reduce", "group_dst is 2"}, [&] { reduce(t, {.group_dst = 2}); }},
        {{"gather_single", "dst is 5"}, [&] { gather_single(at::Tensor(), t, {.dst = 5}); }},
        {{"reduce_scatter", "output", "share memory"}, [&] { reduce_scatter(two[0], two); }},
        {{"all_to_all", "share memory"},
         [&] {
           all_to_all(two, {two[0], two[1]});
         }},
        {{"reduce_scatter", "input_list has 3"}, [&] { reduce_scatter(t, three); }},
        {{"reduce_scatter", "input_list"}, [&] { reduce_scatter(at::ones({3}), two); }},
        {{"reduce_scatter_single", "input"},
         [&] {
           reduce_scatter_single(t, at::ones({3, 2}));
         }},
        {{"all_to_all", "output_tensor_list has 3"}, [&] { all_to_all(three, two); }},
        {{"all_to_all", "input_tensor_list has 3"}, [&] { all_to_all(two, three); }},
        {{"all_to_all_single", "3 rows"}, [&] { all_to_all_single(at::ones({4}), at::ones({3})); }},
        {{"all_to_all_single", "input_split_sizes adds up to 3"},
         [&] {
           all_to_all_single(at::ones({4}), at::ones({4}), {}, {1, 2});
         }},
        {{"all_to_all_single", "input_split_sizes adds up to more than the 4 rows"},
         [&] {
           all_to_all_single(at::ones({4}), at::ones({4}), {}, {std::numeric_limits<std::int64_t>::max(), 5});
         }},
        {{"all_reduce", "no reduction number 99"}, [&] { all_reduce(t, {.op = static_cast<ReduceOp>(99)}); }},
        {{"all_to_all_single", "input_split_sizes has 1"},
         [&] { all_to_all_single(at::ones({4}), at::ones({4}), {}, {4}); }},
        {{"all_to_all_single", "negative"},
         [&] {
           all_to_all_single(at::ones({4}), at::ones({4}), {}, {5, -1});
         }},
        {{"all_reduce", "timeout is -1", "negative"},
         [&] { all_reduce(t, {.timeout = std::chrono::seconds(-1)}); }},
        {{"monitored_barrier", "timeout is -1", "negative"},
         [&] { monitored_barrier({.timeout = std::chrono::seconds(-1)}); }},
        {{"isend", "timeout is -1", "negative"},
         [&] { isend(t, {.dst = 1 - rank, .timeout = std::chrono::seconds(-1)}); }},
        {{"all_to_all_single", "no dimension"}, [&] { all_to_all_single(at::ones({}), at::ones({})); }},
        {{"all_to_all_single", "rows for this rank itself", "output_split_sizes"},
         [&] {
           all_to_all_single(at::ones({4}), at::ones({4}), {3, 1}, {1, 3});
         }},
        {{"all_to_all_single", "rows of output"},
         [&] {
           all_to_all_single(at::ones({4, 2}), at::ones({4}));
         }},
    };
    for (const Misuse& misuse : misuses) {
      SCOPED_TRACE(misuse.words[0] + ": " + misuse.words[1]);
      std::vector<std::string> words = misuse.words;
      words.push_back("rank " + std::to_string(rank) + ": ");
      expect_error(misuse.call, words);
      EXPECT_EQ(refusal(misuse.call).back(), '.');
    }
    const at::Tensor sum = at::ones({2});
    all_reduce(sum);
    EXPECT_TRUE(all_equal(sum, 2));
  });
}

TEST(Collectives, AWaitThatGivesUpNamesTheCall) {
  run_world(2, [](int rank) {
    const ProcessGroup pair = new_group({.group_name = "pair"});
    const at::Tensor word = at::zeros({1});
    const at::Tensor sum = at::ones({2});
    if (rank == 1) recv(word, {.src = 0});  // until then rank 0 waits in vain
    const WorkHandle work = all_reduce_coalesced({sum}, {.group = pair, .async_op = true});
    if (rank == 0) {
      try {
        work.wait(std::chrono::milliseconds(20));
        ADD_FAILURE() << "nothing was thrown";
      } catch (const TimeoutError& error) {
        EXPECT_THAT(error.what(),
                    ::testing::HasSubstr("rank 0: all_reduce_coalesced #1 of the group \"pair\""));
        EXPECT_EQ(error.op(), "all_reduce_coalesced");
        EXPECT_EQ(error.group(), "pair");
        EXPECT_EQ(error.sequence(), 1U);
      }
      send(word, {.dst = 1});
    }
    work.wait();
    EXPECT_TRUE(all_equal(sum, 2));
    barrier();
  });
}

// More than any machine has, and a kind of tensor that takes none of it.
TEST(Collectives, WantOfMemoryIsATypedErrorAndTheGroupLivesOn) {
  run_world(2, [](int rank) {
    const at::Tensor vast = at::ones({1}).expand({std::int64_t{1} << 58});
    expect_error<OutOfResources>([&] { reduce(vast, {.dst = 1 - rank}); },
                                 {"rank " + std::to_string(rank) + ": reduce: there is no memory"});
    const at::Tensor sum = at::ones({2});
    all_reduce(sum);
    EXPECT_TRUE(all_equal(sum, 2));
  });
}

}  // namespace
}  // namespace lockstep::tensor

// Messages of tensors on worlds of real processes.
#include "lockstep/tensor/messages.h"

#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

using namespace std::chrono_literals;
using ::testing::UnorderedElementsAre;

at::Tensor filled(int value) { return at::full({2, 3}, value, at::kFloat); }

TEST(Messages, GoRoundARing) {
  for (const int size : {2, 3, 5}) {
    run_world(size, [size](int rank) {
      const int next = (rank + 1) % size;
      const int previous = (rank + size - 1) % size;
      // Receives first on all of them.
      const at::Tensor in = filled(-1);
      const WorkHandle received = irecv(in, {.src = previous});
      const WorkHandle sent = isend(filled(rank), {.dst = next});
      sent.wait();
      received.wait();
      EXPECT_TRUE(all_equal(in, previous));
      EXPECT_EQ(received.source_rank(), previous);
      EXPECT_TRUE(received.is_success());
      if (rank == 0) {
        send(filled(7), {.dst = next});
        EXPECT_EQ(recv(in, {.src = previous}), previous);
        EXPECT_TRUE(all_equal(in, 7));
      } else {
        EXPECT_EQ(recv(in, {.group_src = previous}), previous);
        send(in, {.group_dst = next});
      }
      barrier();
    });
  }
}

TEST(Messages, AreMatchedByTagAndTakenFromAnyone) {
  run_world(3, [](int rank) {
    if (rank != 0) {
      send(filled(10 * rank), {.dst = 0, .tag = 1});
      send(filled(rank), {.dst = 0, .tag = 2});
      barrier();
      return;
    }
    const at::Tensor in = filled(-1);
    EXPECT_EQ(recv(in, {.src = 2, .tag = 2}), 2);
    EXPECT_TRUE(all_equal(in, 2));
    std::vector<int> senders;
    for (int i = 0; i < 2; ++i) {
      senders.push_back(recv(in, {.tag = 1}));
      EXPECT_TRUE(all_equal(in, 10 * senders.back()));
    }
    EXPECT_THAT(senders, UnorderedElementsAre(1, 2));
    EXPECT_EQ(recv(in, {.src = 1, .tag = 2}), 1);
    barrier();
  });
}

TEST(Messages, OfAGroupNameGlobalRanks) {
  run_world(3, [](int rank) {
    const ProcessGroup pair = new_group({1, 2});
    const at::Tensor tensor = filled(rank);
    if (rank == 1) {
      send(tensor, {.group_dst = 1, .group = pair});
    } else {  // a rank that is no member is warned, and nothing is done
      EXPECT_EQ(recv(tensor, {.group = pair}), rank == 2 ? 1 : -1);
    }
    EXPECT_TRUE(all_equal(tensor, rank == 0 ? 0 : 1));
    barrier();
  });
}

TEST(Messages, ToOneselfWorkIfNobodyWaits) {
  for (const int size : {1, 2}) {
    run_world(size, [](int rank) {
      const at::Tensor in = at::zeros({4, 4});
      const WorkHandle received = irecv(in.t().slice(0, 0, 4, 2), {.src = rank});  // has gaps
      isend(at::arange(8, at::kFloat).view({2, 4}), {.dst = rank}).wait();
      received.wait();
      EXPECT_TRUE(at::equal(in.t().slice(0, 0, 4, 2), at::arange(8, at::kFloat).view({2, 4})));
      EXPECT_TRUE(all_equal(in.t().slice(0, 1, 4, 2), 0));
      expect_error([&] { send(in, {.dst = rank}); }, {"send", "isend"});
      expect_error([&] { recv(in, {.src = rank}); }, {"recv", "irecv"});
    });
  }
}

TEST(Messages, OfABatchAreMixed) {
  run_world(3, [](int rank) {
    const int next = (rank + 1) % 3;
    const int previous = (rank + 2) % 3;
    std::vector<P2POp> ops;
    std::vector<at::Tensor> in;
    for (int i = 0; i < 3; ++i) {
      in.push_back(filled(-1));
      ops.push_back(P2POp::irecv(in.back(), {.src = previous}));
      ops.push_back(P2POp::isend(filled(10 * rank + i), {.dst = next}));
    }
    for (const WorkHandle& work : batch_isend_irecv(ops)) work.wait();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(all_equal(in[i], 10 * previous + i));
    barrier();
  });
}

TEST(Messages, RefuseWhatIsWrong) {
  run_world(2, [](int rank) {
    const at::Tensor t = filled(1);
    const std::string own = "rank " + std::to_string(rank) + ": ";
    expect_error([&] { send(t, {}); }, {own, "send", "neither dst nor group_dst"});
    expect_error([&] { isend(t, {.dst = 2}); }, {own, "isend", "dst is 2"});
    expect_error([&] { irecv(t, {.src = 0, .group_src = 0}); }, {own, "irecv", "src and group_src"});
    expect_error([&] { isend(at::Tensor(), {.dst = 0}); }, {"isend", "undefined"});
    expect_error([&] { irecv(at::ones({1}).expand({3}), {.src = 0}); }, {"irecv", "one place"});
    expect_error([&] { batch_isend_irecv({}); }, {"batch_isend_irecv", "empty"});
    expect_error(
        [&] {
          batch_isend_irecv({P2POp::isend(t, {.dst = 1 - rank}), P2POp::irecv(t, {.src = 1 - rank})});
        },
        {"batch_isend_irecv", "p2p_op_list[0] and p2p_op_list[1] share memory"});
    expect_error(
        [&] {
          batch_isend_irecv({P2POp::isend(t, {.dst = 1 - rank}), P2POp::irecv(t, {.src = 9})});
        },
        {own, "batch_isend_irecv", "p2p_op_list[1].src is 9"});
    const ProcessGroup pair = new_group({.group_name = "pair"});
    expect_error(
        [&] {
          batch_isend_irecv(
              {P2POp::isend(t, {.dst = 1 - rank}), P2POp::irecv(t, {.src = 1 - rank, .group = pair})});
        },
        {"p2p_op_list[1]", "another group"});
    // Another size is the message's error, not the group's end.
    if (rank == 0) {
      send(filled(5), {.dst = 1});
    } else {
      expect_error([&] { recv(at::empty({1}), {.src = 0}); }, {"recv"});
    }
    barrier();
    expect_error<TimeoutError>([&] { recv(t, {.src = 1 - rank, .group = pair, .timeout = 50ms}); },
                               {own + "group \"pair\": recv of", "(tag 0)"});
    // The wait gives up, not the message.
    const WorkHandle work = irecv(t, {.src = 1 - rank, .group = pair, .tag = 3});
    expect_error<TimeoutError>([&] { work.wait(20ms); },
                               {own + "irecv #", "of the group \"pair\"", "goes on"});
    barrier();
    send(filled(7), {.dst = 1 - rank, .group = pair, .tag = 3});
    work.wait();
    EXPECT_TRUE(all_equal(t, 7));
    barrier();  // who leaves first would be missed by the other
  });
}

}  // namespace
}  // namespace lockstep::tensor

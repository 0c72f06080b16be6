#include "lockstep/tensor/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::tensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Error>
bool is(const Status& status) {
  try {
    throw_error(status, Rank{2});
  } catch (const Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

Status failed(Code code, Failure failure) { return {code, "it failed", {.failure = failure}}; }

TEST(Errors, EveryFailureHasItsPlaceInTheTree) {
  EXPECT_TRUE(is<PeerDied>(failed(Code::kDisconnected, Failure::kPeerDied)));
  EXPECT_TRUE(is<PeerStalled>(failed(Code::kDisconnected, Failure::kPeerStalled)));
  EXPECT_TRUE(is<PeerUnreachable>(failed(Code::kDisconnected, Failure::kPeerUnreachable)));
  EXPECT_TRUE(is<Desync>(failed(Code::kInvalid, Failure::kDesync)));
  EXPECT_TRUE(is<MissingRanks>(failed(Code::kTimeout, Failure::kMissingRanks)));
  EXPECT_TRUE(is<RemoteError>(failed(Code::kAborted, Failure::kRemoteError)));
  EXPECT_TRUE(is<LeftOut>(failed(Code::kDisconnected, Failure::kLeftOut)));
  EXPECT_TRUE(is<GroupClosed>(failed(Code::kAborted, Failure::kClosed)));
  EXPECT_TRUE(is<InvalidArgument>(failed(Code::kInvalid, Failure::kClosed)));
  EXPECT_TRUE(is<InvalidArgument>(failed(Code::kInvalid, Failure::kForked)));
  EXPECT_TRUE(is<CorruptFrame>(failed(Code::kDisconnected, Failure::kCorruptFrame)));
  EXPECT_TRUE(is<StoreLost>(failed(Code::kDisconnected, Failure::kStoreLost)));
  EXPECT_TRUE(is<QueueEmptyError>(failed(Code::kTimeout, Failure::kQueueEmpty)));
  EXPECT_TRUE(is<SocketError>(failed(Code::kInvalid, Failure::kPortTaken)));
  EXPECT_TRUE(is<OutOfResources>(failed(Code::kInternal, Failure::kNoMemory)));
  EXPECT_TRUE(is<InvalidArgument>(failed(Code::kInvalid, Failure::kMissingVariable)));
  EXPECT_TRUE(is<TimeoutError>(failed(Code::kTimeout, Failure::kNone)));
  EXPECT_TRUE(is<DistNetworkError>(failed(Code::kDisconnected, Failure::kNone)));
  EXPECT_TRUE(is<DistBackendError>(failed(Code::kInternal, Failure::kNone)));
  EXPECT_TRUE(is<Unsupported>(failed(Code::kUnsupported, Failure::kNone)));
}

TEST(Errors, TheTreeIsTorchs) {
  EXPECT_TRUE(is<DistBackendError>(failed(Code::kDisconnected, Failure::kPeerDied)));
  EXPECT_TRUE(is<DistNetworkError>(failed(Code::kTimeout, Failure::kMissingRanks)));
  EXPECT_TRUE(is<DistStoreError>(failed(Code::kTimeout, Failure::kQueueEmpty)));
  EXPECT_TRUE(is<DistError>(failed(Code::kTimeout, Failure::kQueueEmpty)));
  EXPECT_TRUE(is<std::runtime_error>(failed(Code::kDisconnected, Failure::kPeerDied)));
  EXPECT_TRUE(is<std::exception>(failed(Code::kInvalid, Failure::kNone)));
  EXPECT_TRUE(is<std::invalid_argument>(failed(Code::kInvalid, Failure::kNone)));
  EXPECT_FALSE(is<DistError>(failed(Code::kInvalid, Failure::kNone)));
}

TEST(Errors, CarryWhoAndWhere) {
  const Status status = Status::disconnected("rank 3 died", {.failure = Failure::kPeerDied,
                                                             .peer = Rank{3},
                                                             .op = "all_reduce",
                                                             .sequence = 418,
                                                             .group = "world",
                                                             .host = "node7",
                                                             .pid = 4711,
                                                             .missing = {Rank{3}}});
  try {
    throw_error(status, Rank{2});
    FAIL();
  } catch (const PeerDied& error) {
    EXPECT_STREQ(error.what(), "[rank2]: rank 3 died");
    EXPECT_EQ(error.message(), "rank 3 died");
    EXPECT_EQ(error.rank(), Rank{2});
    EXPECT_EQ(error.peer(), Rank{3});
    EXPECT_EQ(error.op(), "all_reduce");
    EXPECT_EQ(error.sequence(), 418U);
    EXPECT_EQ(error.group(), "world");
    EXPECT_EQ(error.host(), "node7");
    EXPECT_EQ(error.pid(), 4711);
    EXPECT_THAT(error.missing(), ElementsAre(Rank{3}));
    EXPECT_EQ(error.cause().failure, Failure::kPeerDied);
  }
}

TEST(Errors, WhatALayerBelowGivesIsReturnedOrThrown) {
  EXPECT_EQ(or_throw(Result<int>(7)), 7);
  EXPECT_NO_THROW(or_throw(Status()));
  HashStore store;
  EXPECT_THROW(or_throw(store.queue_pop("nothing in it", Store::OnEmpty::kFail)), QueueEmptyError);
  EXPECT_THROW(or_throw(store.set("", {})), InvalidArgument);
}

TEST(Errors, AnUncaughtOnePrintsItsRank) {
  EXPECT_DEATH([]() noexcept { throw_error(failed(Code::kDisconnected, Failure::kPeerDied), Rank{5}); }(),
               HasSubstr("[rank5]: it failed"));
}

}  // namespace
}  // namespace lockstep::tensor

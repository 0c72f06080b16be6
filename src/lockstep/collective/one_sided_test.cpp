// Operations in which a rank's own part is complete before it has heard of the others: who disagrees about
// them is told at the next call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "lockstep/collective/execute.h"
#include "lockstep/collective/helpers.h"
#include "lockstep/collective/spanning.h"
#include "lockstep/testing/communicator_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::collective {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::CommunicatorWorld;
using ::testing::HasSubstr;
using transport::Communicator;

// One rank, with the buffers that its operations use.
class OneSidedMember {
 public:
  explicit OneSidedMember(Communicator& communicator)
      : communicator_(communicator), data_(static_cast<std::size_t>(communicator.size()) * kCount) {}

  int rank() const { return communicator_.position(); }
  int size() const { return communicator_.size(); }

  Status run(OpKind kind, int root) {
    const std::size_t n = kind == OpKind::kBroadcast ? 1 : static_cast<std::size_t>(size());
    std::vector<ByteSpan> parts;
    for (std::size_t i = 0; i < n; ++i)
      parts.push_back(std::as_writable_bytes(std::span(data_).subspan(i * kCount, kCount)));
    const std::vector<ByteView> views(parts.begin(), parts.end());
    Call call{.kind = kind, .dtype = DType::kInt32, .root = Rank{root}};
    const bool is_root = rank() == root;
    if (kind == OpKind::kBroadcast) call.outputs = parts;
    if (kind == OpKind::kScatter) call.outputs = std::span(parts).first(1);
    if (kind == OpKind::kScatter && is_root) call.inputs = views;
    if (kind == OpKind::kGather || kind == OpKind::kReduce) call.inputs = std::span(views).first(1);
    if (kind == OpKind::kGather && is_root) call.outputs = parts;
    if (kind == OpKind::kReduce && is_root) call.outputs = std::span(parts).first(1);
    LOCKSTEP_TRY(check(call, Rank{rank()}, WorldSize{size()}));
    return execute(communicator_, call, fingerprint_of(call, 1, ++sequence_), Clock::steady().in(60s),
                   Means::none());
  }

 private:
  static constexpr std::size_t kCount = 50;
  Communicator& communicator_;
  std::vector<std::int32_t> data_;
  std::uint64_t sequence_ = 0;
};

constexpr OpKind kWithRoot[] = {OpKind::kBroadcast, OpKind::kScatter, OpKind::kGather, OpKind::kReduce};

// Whom each rank takes for the root, so that the parts of some or of all are complete at once.
struct Confusion {
  std::vector<int> hosts;
  std::vector<int> sources;  // the root of a broadcast or a scatter
  std::vector<int> sinks;    // the root of a gather or a reduce
};
const Confusion kConfusions[] = {
    {.hosts = {0, 0}, .sources = {0, 1}, .sinks = {1, 0}},
    {.hosts = {0, 1}, .sources = {0, 1}, .sinks = {1, 0}},
    {.hosts = {0, 0, 0}, .sources = {0, 1, 2}, .sinks = {1, 2, 0}},
    {.hosts = {0, 1, 2}, .sources = {0, 1, 2}, .sinks = {1, 2, 0}},
    {.hosts = {0, 0, 1, 1}, .sources = {0, 0, 2, 2}, .sinks = {2, 2, 0, 0}},
    {.hosts = {0, 0, 1, 1}, .sources = {0, 1, 0, 0}, .sinks = {3, 3, 0, 0}},
    {.hosts = {0, 0, 1}, .sources = {0, 0, 2}, .sinks = {2, 2, 0}},
    // Some wait for one that does not know of it.
    {.hosts = {0, 1}, .sources = {1, 0}, .sinks = {0, 1}},
    {.hosts = {0, 0, 1, 1}, .sources = {2, 2, 0, 0}, .sinks = {0, 0, 0, 1}},
    {.hosts = {0, 0, 1}, .sources = {2, 2, 0}, .sinks = {0, 0, 1}},
};

TEST(OneSided, RanksThatDisagreeAboutTheRootNoticeItHoweverTheyGoOn) {
  for (const OpKind kind : kWithRoot) {
    for (const Confusion& confusion : kConfusions) {
      SCOPED_TRACE(std::string(name_of(kind)) + ::testing::PrintToString(confusion.hosts));
      CommunicatorWorld(confusion.hosts).run([&](Communicator& communicator) {
        OneSidedMember member(communicator);
        const bool gives = kind == OpKind::kBroadcast || kind == OpKind::kScatter;
        const auto at = static_cast<std::size_t>(member.rank());
        const int root = (gives ? confusion.sources : confusion.sinks)[at];
        // The same confusion again and again.
        Status status;
        const Deadline limit = Clock::steady().in(60s);
        while (status.ok() && !limit.expired()) status = member.run(kind, root);
        EXPECT_EQ(status.failure(), Failure::kDesync) << status.text();
        EXPECT_THAT(std::string(status.message()), HasSubstr("root")) << status.text();
        EXPECT_EQ(member.run(kind, root).failure(), Failure::kDesync);
      });
    }
  }
}

TEST(OneSided, OnOneHostTheNextCallSaysIt) {
  CommunicatorWorld({0, 0}).run([](Communicator& communicator) {
    OneSidedMember member(communicator);
    EXPECT_OK(member.run(OpKind::kBroadcast, member.rank()));
    const Status status = member.run(OpKind::kBroadcast, 0);
    EXPECT_EQ(status.failure(), Failure::kDesync) << status.text();
    EXPECT_EQ(status.cause().sequence, 1U) << status.text();
    EXPECT_THAT(std::string(status.message()), HasSubstr("the first difference is the root"));
  });
}

TEST(OneSided, RanksThatAgreeGoOn) {
  for (const Confusion& confusion : kConfusions) {
    SCOPED_TRACE(::testing::PrintToString(confusion.hosts));
    CommunicatorWorld(confusion.hosts).run([](Communicator& communicator) {
      OneSidedMember member(communicator);
      for (int i = 0; i < 40; ++i) {
        for (const OpKind kind : kWithRoot) ASSERT_OK(member.run(kind, i / 4 % member.size()));
      }
    });
  }
}

TEST(OneSided, AMessageOfALaterOperationIsNoStray) {
  const auto stamp = [](std::uint64_t sequence, int root) {
    const Fingerprint fingerprint{
        .group = 1, .sequence = sequence, .count = 3, .root = root, .kind = OpKind::kBroadcast};
    transport::link::Stamp bytes;
    std::memcpy(bytes.data(), &fingerprint, sizeof(fingerprint));
    return bytes;
  };
  using transport::link::Stray;
  const auto judge = [&](const transport::link::Stamp& received, Stray::Kind kind = Stray::Kind::kMessage) {
    return judge_stray(Rank{0}, Rank{1},
                       {.kind = kind, .last = stamp(4, 0), .now = stamp(5, 0), .received = received});
  };
  EXPECT_OK(judge(stamp(5, 0)));
  EXPECT_OK(judge(stamp(6, 1)));
  EXPECT_OK(judge(stamp(4, 0)));
  EXPECT_THAT(std::string(judge(stamp(4, 1)).message()), HasSubstr("rank 0 is in broadcast #4"));
  EXPECT_THAT(std::string(judge(stamp(5, 1)).message()), HasSubstr("rank 0 is in broadcast #5"));
  EXPECT_EQ(judge(stamp(2, 0)).failure(), Failure::kDesync);
  EXPECT_OK(judge(stamp(2, 0), Stray::Kind::kWaiting));
  EXPECT_EQ(judge(stamp(4, 1), Stray::Kind::kWaiting).failure(), Failure::kDesync);
}

}  // namespace
}  // namespace lockstep::collective

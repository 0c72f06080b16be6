// Collectives between hosts whose links are cut off, damaged, slow or made in another order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <random>

#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/execute.h"
#include "lockstep/collective/helpers.h"
#include "lockstep/testing/communicator_world.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/link/faulty_calls.h"

namespace lockstep::collective {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::CommunicatorWorld;
using ::testing::HasSubstr;
using transport::Communicator;
using transport::Protection;
using transport::link::FaultyCalls;
using transport::link::LinkFaults;
using transport::link::SocketCalls;
using How = LinkFaults::How;

constexpr Protection kProtections[] = {Protection::kIntegrity, Protection::kSealed};

// The faults of every rank, by a function of its number.
class Faults {
 public:
  template <typename Make>
  Faults(std::size_t ranks, Make make) {
    for (std::size_t i = 0; i < ranks; ++i) calls_.emplace_back(make(static_cast<int>(i)));
  }
  FaultyCalls& operator[](int rank) { return calls_[static_cast<std::size_t>(rank)]; }
  std::function<SocketCalls&(int)> by_rank() {
    return [this](int rank) -> SocketCalls& { return (*this)[rank]; };
  }

 private:
  std::deque<FaultyCalls> calls_;
};

// Every rank gives its number plus one.
Status all_reduce(Communicator& communicator, std::vector<float>& data, std::uint64_t sequence) {
  std::fill(data.begin(), data.end(), static_cast<float>(communicator.position() + 1));
  const ByteSpan output = std::as_writable_bytes(std::span(data));
  const Call call{.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = {&output, 1}};
  return execute(communicator, call, fingerprint_of(call, 1, sequence), Clock::steady().in(60s),
                 Means::none());
}

float sum_of(int ranks) { return static_cast<float>(ranks * (ranks + 1)) / 2; }

// Names the first element that differs.
::testing::AssertionResult all_are(const std::vector<float>& data, float value) {
  const auto differs = [value](float number) { return number != value; };
  const auto first = std::find_if(data.begin(), data.end(), differs);
  if (first == data.end()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "element " << first - data.begin() << " of " << data.size() << " is " << *first << " instead of "
         << value << ", and " << std::count_if(first + 1, data.end(), differs) << " more differ";
}

TEST(SpanningFaults, ACutLinkEndsTheOperationOnEveryRank) {
  const std::vector<std::vector<int>> layouts = {{0, 1}, {0, 0, 1, 1}};
  int round = 0;
  for (const How how : {How::kEnd, How::kReset}) {
    for (const Protection protection : kProtections) {
      for (const std::uint64_t after : {0, 65, 4096}) {
        const std::vector<int>& hosts = layouts[static_cast<std::size_t>(round++ % 2)];
        Faults faults(hosts.size(), [&](int rank) {
          return rank == 1 ? LinkFaults{.cut = LinkFaults::Cut{.after = after, .how = how}} : LinkFaults{};
        });
        CommunicatorWorld(hosts, {.protection = protection, .calls = faults.by_rank()})
            .run([&](Communicator& communicator) {
              std::vector<float> data(5000);
              const Status status = all_reduce(communicator, data, 5);
              EXPECT_EQ(status.code(), Code::kDisconnected) << after << ": " << status.text();
              EXPECT_EQ(status.failure(), Failure::kPeerDied) << after << ": " << status.text();
              EXPECT_TRUE(status.cause().peer.has_value()) << status.text();
              EXPECT_EQ(status.cause().sequence, 5U) << status.text();
              EXPECT_FALSE(all_reduce(communicator, data, 6).ok());
            });
      }
    }
  }
}

TEST(SpanningFaults, ABitThatArrivesWrongIsNeverApplied) {
  std::mt19937_64 random(7);
  for (const Protection protection : kProtections) {
    for (int i = 0; i < 25; ++i) {
      constexpr std::size_t kCount = 3000;
      // In what rank 0 sends: its own 12,000 bytes and their frame.
      const std::uint64_t bit = random() % ((64 + kCount * sizeof(float)) * 8);
      Faults faults(2, [&](int rank) { return rank == 0 ? LinkFaults{.flip = bit} : LinkFaults{}; });
      CommunicatorWorld({0, 1}, {.protection = protection, .calls = faults.by_rank()})
          .run([&](Communicator& communicator) {
            std::vector<float> data(kCount);
            const Status status = all_reduce(communicator, data, 9);
            // Rank 0 may have everything that it needs, and hears of it at its next call.
            if (communicator.position() == 0 && status.ok()) {
              EXPECT_TRUE(all_are(data, sum_of(2)));
              return;
            }
            EXPECT_EQ(status.failure(), Failure::kCorruptFrame) << "bit " << bit << ": " << status.text();
            EXPECT_EQ(status.cause().sequence, 9U) << status.text();
            EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0")) << status.text();
            EXPECT_THAT(std::string(status.message()), HasSubstr("#9")) << status.text();
            if (communicator.position() == 1) {
              EXPECT_TRUE(all_are(data, 2.F)) << "bit " << bit;
            }
          });
    }
  }
}

void expect_right_result(const std::vector<int>& hosts, std::size_t count,
                         const std::function<LinkFaults(int)>& make) {
  for (const Protection protection : kProtections) {
    Faults faults(hosts.size(), make);
    CommunicatorWorld(hosts, {.streams = 2, .protection = protection, .calls = faults.by_rank()})
        .run([&](Communicator& communicator) {
          std::vector<float> data(count);
          for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
            ASSERT_OK(all_reduce(communicator, data, sequence));
            ASSERT_TRUE(all_are(data, sum_of(communicator.size())))
                << "rank " << communicator.position() << " on hosts " << ::testing::PrintToString(hosts)
                << (protection == Protection::kSealed ? ", sealed" : "") << ", #" << sequence;
          }
        });
  }
}

TEST(SpanningFaults, ByteByByteTheResultIsRight) {
  for (const std::vector<int>& hosts : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}})
    expect_right_result(hosts, 500, [](int) { return LinkFaults{.most = 1}; });
}

TEST(SpanningFaults, LateBytesAndConnectionsInAnyOrderAreRight) {
  for (const std::vector<int>& hosts : {std::vector{0, 1, 2}, {0, 0, 1, 1}, {0, 1, 0, 1}}) {
    for (const std::uint64_t seed : {1, 2}) {
      expect_right_result(hosts, 6000, [seed](int rank) {
        return LinkFaults{.most = 5000,
                          .jitter = 3ms,
                          .connect_jitter = 20ms,
                          .seed = seed * 100 + static_cast<std::uint64_t>(rank)};
      });
    }
  }
}

// Sends nothing until somebody has received something.
class SendsAfter final : public SocketCalls {
 public:
  explicit SendsAfter(const std::atomic<bool>& received) : received_(received) {}
  ssize_t send(int socket, const msghdr& message) override {
    if (received_) return kernel().send(socket, message);
    errno = EAGAIN;
    return -1;
  }
  ssize_t recv(int socket, msghdr& message) override { return kernel().recv(socket, message); }
  void connecting(Rank) override {}

 private:
  const std::atomic<bool>& received_;
};

// Tells when it has received so many bytes.
class TellsWhenReceived final : public SocketCalls {
 public:
  TellsWhenReceived(std::size_t bytes, std::atomic<bool>& received) : left_(bytes), received_(received) {}
  ssize_t send(int socket, const msghdr& message) override { return kernel().send(socket, message); }
  ssize_t recv(int socket, msghdr& message) override {
    const ssize_t got = kernel().recv(socket, message);
    if (got > 0) left_ -= std::min(left_, static_cast<std::size_t>(got));
    if (left_ == 0) received_ = true;
    return got;
  }
  void connecting(Rank) override {}

 private:
  std::size_t left_;
  std::atomic<bool>& received_;
};

// Rank 1 has a place for the result, which is where its own elements lie, and hears that rank 2 waits before
// rank 0 lets it begin.
TEST(SpanningFaults, ThatARankWaitsIsNoPartOfTheSum) {
  std::atomic<bool> received = false;
  SendsAfter late(received);
  TellsWhenReceived middle(transport::link::kHeaderSize + base::kSealTagSize, received);
  const auto calls = [&](int rank) -> SocketCalls& {
    if (rank == 0) return late;
    return rank == 1 ? static_cast<SocketCalls&>(middle) : SocketCalls::kernel();
  };
  CommunicatorWorld({0, 1, 2}, {.protection = Protection::kSealed, .calls = calls})
      .run([](Communicator& communicator) {
        std::vector<float> data(6000);
        ASSERT_OK(all_reduce(communicator, data, 1));
        EXPECT_TRUE(all_are(data, sum_of(3))) << "rank " << communicator.position();
      });
}

}  // namespace
}  // namespace lockstep::collective

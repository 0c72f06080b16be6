// Random batches of messages between all ranks: whatever the order of the calls, every message arrives whole,
// at its receive, and in order.
#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/messages/messages_test_support.h"

namespace lockstep::testing {
namespace {

using transport::faulty::Pieces;
using transport::messages::kEagerLimit;

struct Message {
  int from = 0;
  int to = 0;
  Label label = {};
  bool any_source = false;  // how it is received; all of one label the same
  Buffer bytes = {};
};

// The messages of a batch, in the order in which those of one sender, receiver and label are sent.
std::vector<Message> random_messages(std::mt19937_64& random, int ranks, int count, std::size_t largest) {
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  std::vector<Message> messages;
  for (int number = 0; number < count; ++number) {
    Message message{.from = static_cast<int>(below(static_cast<std::uint64_t>(ranks))),
                    .to = static_cast<int>(below(static_cast<std::uint64_t>(ranks)))};
    message.label = {.group = 1 + below(2), .tag = below(4)};
    message.any_source = message.label.tag == 3;
    const std::size_t sizes[] = {
        0, 1, 777, 4096, kEagerLimit - 1, kEagerLimit, kEagerLimit + 1, 300'001, 600'000, (1U << 20) + 1};
    // Those that any receive may take have one size.
    const std::size_t size = message.any_source ? 333 : sizes[below(std::size(sizes))];
    message.bytes = pattern(std::min(size, largest), static_cast<unsigned>(number + 1));
    messages.push_back(std::move(message));
  }
  return messages;
}

struct Receive {
  const Message* message = nullptr;  // what should come; of one from any rank, nothing is said
  Buffer bytes = {};
  OutcomeFuture outcome = {};
};

// One rank's calls, in an order that keeps that of each key.
enum class Call : bool { kSend, kRecv };
struct Script {
  std::vector<const Message*> sends;
  std::vector<Receive> receives;
  std::vector<Call> calls;
};

Script script_of(std::mt19937_64& random, const std::vector<Message>& messages, int rank) {
  Script script;
  for (const Message& message : messages) {
    if (message.from == rank) script.sends.push_back(&message);
    if (message.to == rank)
      script.receives.push_back({.message = &message, .bytes = Buffer(message.bytes.size())});
  }
  // Another order of the keys, the same order inside each.
  std::map<std::tuple<int, std::uint64_t, std::uint64_t>, std::uint64_t> places;
  const auto place = [&](const Message& message, int other) {
    const std::tuple key(message.any_source ? -1 : other, message.label.group, message.label.tag);
    return places.try_emplace(key, random()).first->second;
  };
  std::ranges::stable_sort(script.sends, {},
                           [&](const Message* message) { return place(*message, message->to); });
  places.clear();
  std::ranges::stable_sort(script.receives, {}, [&](const Receive& receive) {
    return place(*receive.message, receive.message->from);
  });
  script.calls.assign(script.sends.size(), Call::kSend);
  script.calls.resize(script.sends.size() + script.receives.size(), Call::kRecv);
  std::ranges::shuffle(script.calls, random);
  return script;
}

// The messages that `rank` got from any rank, by source and label, are those that were sent, in order.
void check_any_source(const std::vector<Message>& messages, Script& script, int rank) {
  std::map<std::tuple<int, std::uint64_t>, std::vector<Buffer>> sent;
  std::map<std::tuple<int, std::uint64_t>, std::vector<Buffer>> received;
  for (const Message& message : messages) {
    if (message.any_source && message.to == rank)
      sent[{message.from, message.label.group}].push_back(message.bytes);
  }
  for (Receive& receive : script.receives) {
    if (!receive.message->any_source) continue;
    const Outcome outcome = await(std::move(receive.outcome));
    ASSERT_OK(outcome.status);
    ASSERT_TRUE(outcome.source);
    received[{outcome.source->value, receive.message->label.group}].push_back(receive.bytes);
  }
  EXPECT_EQ(received, sent);
}

void run_rank(Ranks& ranks, int rank, const std::vector<Message>& messages, Script& script) {
  std::vector<StatusFuture> sends;
  auto send_at = script.sends.begin();
  auto receive_at = script.receives.begin();
  for (const Call call : script.calls) {
    if (call == Call::kSend) {
      const Message& message = **send_at++;
      sends.push_back(
          send(ranks[rank], message.to, ranks.place(rank, message.bytes), ranks.soon(), message.label));
      continue;
    }
    Receive& receive = *receive_at++;
    const auto from = receive.message->any_source ? std::nullopt : std::optional(receive.message->from);
    receive.outcome = recv(ranks[rank], from, receive.bytes, ranks.soon(), receive.message->label);
  }
  for (Receive& receive : script.receives) {
    if (receive.message->any_source) continue;
    const Outcome outcome = await(std::move(receive.outcome));
    ASSERT_OK(outcome.status);
    EXPECT_EQ(outcome.source, Rank(receive.message->from));
    EXPECT_TRUE(text_of(receive.bytes) == text_of(receive.message->bytes));
  }
  check_any_source(messages, script, rank);
  for (auto& sending : sends) ASSERT_OK(await(std::move(sending)));
}

struct Load {
  Medium medium;
  int seeds = 1;
  int messages = 1;
  std::size_t largest = 600'000;  // more is cut to this
};

constexpr int kMessages = kSanitized ? 8 : 25;

class MessengerProperty : public ::testing::TestWithParam<Load> {};

TEST_P(MessengerProperty, EveryMessageArrivesWholeAtItsReceiveAndInOrder) {
  for (int seed = 1; seed <= GetParam().seeds; ++seed) {
    for (const int size : {1, 2, 3, 5, 8}) {
      SCOPED_TRACE(cat("seed ", seed, ", world of ", size));
      std::mt19937_64 random(static_cast<std::uint64_t>(seed * 100 + size));
      const std::vector<Message> messages =
          random_messages(random, size, GetParam().messages * size, GetParam().largest);
      // A small one makes most messages ask.
      const Bytes budget(random() % 2 == 0 ? 200 + random() % 4000 : 300'000);
      Ranks ranks(size, {.medium = GetParam().medium, .eager_budget = budget});
      std::vector<Script> scripts;
      scripts.reserve(static_cast<std::size_t>(size));
      for (int rank = 0; rank < size; ++rank) scripts.push_back(script_of(random, messages, rank));
      std::vector<std::thread> threads;
      threads.reserve(static_cast<std::size_t>(size));
      for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back(
            [&, rank] { run_rank(ranks, rank, messages, scripts[static_cast<std::size_t>(rank)]); });
      }
      for (std::thread& thread : threads) thread.join();
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Over, MessengerProperty,
    ::testing::Values(Load{.medium = Medium::inproc(), .seeds = kSanitized ? 1 : 2, .messages = kMessages},
                      Load{.medium = Medium::tcp(), .seeds = kSanitized ? 1 : 2, .messages = kMessages},
                      Load{.medium = Medium::pipes(),
                           .seeds = kSanitized ? 1 : 2,
                           .messages = kMessages,
                           .largest = 2U << 20},
                      Load{.medium = Medium::resident(),
                           .seeds = kSanitized ? 1 : 2,
                           .messages = kMessages,
                           .largest = 2U << 20},
                      Load{.medium = Medium::faulty("ByteByByte", {.pieces = Pieces::kOneByte}),
                           .seeds = kSanitized ? 1 : 2,
                           .messages = kSanitized ? 4 : 8,
                           .largest = 800},
                      Load{.medium = Medium::faulty("Delays", {.max_delay = std::chrono::milliseconds(2)}),
                           .seeds = kSanitized ? 1 : 2,
                           .messages = kSanitized ? 8 : 20}),
    [](const auto& load) { return load.param.medium.name; });

}  // namespace
}  // namespace lockstep::testing

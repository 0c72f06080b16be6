// torch's TCPStore and each of our stores give the same answer to every call, outside the table of
// differences in docs/stores.md; each row of that table that is about answers is a test here, of both sides.
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/testing/temporary_folder.h"
#include "store_calls.h"

namespace lockstep::parity {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
constexpr bool kRunsOut = true;

c10::intrusive_ptr<c10d::Store> torch_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// One of each of ours, empty, with what they need.
class OurStores {
 public:
  OurStores() {
    stores_.push_back(std::make_unique<HashStore>());
    stores_.push_back(std::make_unique<PrefixStore>("prefix", std::make_unique<HashStore>()));
    stores_.push_back(std::move(FileStore::open(folder_.path("store"))).value());
    store::TcpServerOptions server;
    server.tenants.push_back({.job_id = "parity", .secret = secret_});
    hosted_ = std::move(store::host_store(std::move(server), Clock::steady().in(30s))).value();
  }

  // What each of them answers.
  std::vector<std::string> ask(const Call& call) {
    std::vector<std::string> out;
    out.reserve(stores_.size() + 1);
    for (const auto& store : stores_) out.push_back(parity::ask(*store, call));
    out.push_back(parity::ask(*hosted_.store, call));
    return out;
  }

 private:
  const testing::TemporaryFolder folder_;
  const Secret secret_ = Secret::generate();
  std::vector<std::unique_ptr<Store>> stores_;
  store::HostedStore hosted_;
};

void expect_same_answers(const std::vector<Call>& script) {
  const auto torch = torch_store();
  OurStores ours;
  for (std::size_t i = 0; i < script.size(); ++i) {
    const std::string expected = ask(*torch, script[i]);
    ASSERT_THAT(ours.ask(script[i]), Each(expected)) << "call " << i << ": " << script[i].text();
  }
}

std::string binary() {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  return all;
}

TEST(StoreParity, SetGetDelete) {
  expect_same_answers({
      {Op::kNumKeys},
      {Op::kListKeys},
      {Op::kSet, {"a"}, {"1"}},
      {Op::kGet, {"a"}},
      {Op::kSet, {"a"}, {""}},
      {Op::kGet, {"a"}},
      {Op::kSet, {"binary"}, {binary()}},
      {Op::kGet, {"binary"}},
      {Op::kSet, {binary()}, {"1"}},
      {Op::kGet, {binary()}},
      {Op::kGet, {"missing"}, {}, 0, kRunsOut},
      {Op::kDelete, {"a"}},
      {Op::kDelete, {"a"}},
      {Op::kDelete, {"missing"}},
      {Op::kNumKeys},
      {Op::kListKeys},
  });
}

TEST(StoreParity, CompareSet) {
  expect_same_answers({
      {Op::kCompareSet, {"a"}, {"", "one"}},
      {Op::kCompareSet, {"a"}, {"one", "two"}},
      {Op::kCompareSet, {"a"}, {"other", "three"}},
      {Op::kCompareSet, {"a"}, {"", "three"}},
      {Op::kCompareSet, {"a"}, {"two", ""}},
      {Op::kCompareSet, {"a"}, {"", "four"}},
      {Op::kGet, {"a"}},
      {Op::kCompareSet, {"missing"}, {"expected", "new"}},
      {Op::kCheck, {"missing"}},
      {Op::kCompareSet, {"empty"}, {"", ""}},
      {Op::kCheck, {"empty"}},
  });
}

TEST(StoreParity, Add) {
  expect_same_answers({
      {Op::kAdd, {"n"}, {}, 5},
      {Op::kGet, {"n"}},
      {Op::kAdd, {"n"}, {}, -7},
      {Op::kGet, {"n"}},
      {Op::kAdd, {"zero"}, {}, 0},
      {Op::kGet, {"zero"}},
      {Op::kSet, {"n"}, {"007"}},
      {Op::kAdd, {"n"}, {}, 1},
      {Op::kAppend, {"n"}, {"0"}},
      {Op::kAdd, {"n"}, {}, INT64_MAX - 80},
      {Op::kAdd, {"m"}, {}, INT64_MIN},
      {Op::kGet, {"m"}},
  });
}

TEST(StoreParity, CheckAndWait) {
  expect_same_answers({
      {Op::kSet, {"a"}, {"1"}},
      {Op::kCheck, {}},
      {Op::kWait, {}},
      {Op::kCheck, {"a", "a"}},
      {Op::kWait, {"a", "a"}},
      {Op::kCheck, {"a", "b"}},
      {Op::kWait, {"a", "b"}, {}, 0, kRunsOut},
      {Op::kSet, {"b"}, {"1"}},
      {Op::kWait, {"a", "b"}},
  });
}

TEST(StoreParity, AppendAndMulti) {
  expect_same_answers({
      {Op::kAppend, {"a"}, {"one"}},
      {Op::kAppend, {"a"}, {""}},
      {Op::kAppend, {"a"}, {"two"}},
      {Op::kGet, {"a"}},
      {Op::kAppend, {"empty"}, {""}},
      {Op::kCheck, {"empty"}},
      {Op::kMultiSet, {"x", "y"}, {"1", "2"}},
      {Op::kMultiGet, {"y", "x", "y"}},
      {Op::kMultiSet, {"z", "z"}, {"1", "2"}},
      {Op::kGet, {"z"}},
      {Op::kMultiGet, {"x", "missing"}, {}, 0, kRunsOut},
      {Op::kMultiGet, {}},
      {Op::kMultiSet, {}, {}},
      {Op::kMultiSet, {"p", "q"}, {"1"}},
      {Op::kCheck, {"p"}},
      {Op::kNumKeys},
  });
}

TEST(StoreParity, Queues) {
  expect_same_answers({
      {Op::kQueueLen, {"q"}},
      {Op::kPopOrFail, {"q"}},
      {Op::kPop, {"q"}, {}, 0, kRunsOut},
      {Op::kPush, {"q"}, {"1"}},
      {Op::kPush, {"q"}, {""}},
      {Op::kQueueLen, {"q"}},
      {Op::kNumKeys},
      {Op::kListKeys},
      {Op::kSet, {"q"}, {"a key of the same name"}},
      {Op::kGet, {"q"}},
      {Op::kQueueLen, {"q"}},
      {Op::kDelete, {"q"}},
      {Op::kQueueLen, {"q"}},
      {Op::kPop, {"q"}},
      {Op::kPopOrFail, {"q"}},
      {Op::kPopOrFail, {"q"}},
      {Op::kQueueLen, {"q"}},
  });
}

TEST(StoreParity, LargestValue) {
  expect_same_answers({
      {Op::kSet, {"big"}, {std::string(store::kMaxValueSize, 'x')}},
      {Op::kGet, {"big"}},
      {Op::kSet, {std::string(500, 'k')}, {"long key"}},
      {Op::kGet, {std::string(500, 'k')}},
  });
}

TEST(StoreParity, BarrierOfOneCanBeUsedAgain) {
  expect_same_answers({{Op::kBarrier, {"b"}}, {Op::kBarrier, {"b"}}, {Op::kBarrier, {"b"}}});
}

class RandomStoreParity : public ::testing::TestWithParam<unsigned> {};
TEST_P(RandomStoreParity, EveryAnswerIsTheSame) {
  std::mt19937 random(GetParam());
  store::KeyValues model;
  std::vector<Call> script(600);
  for (Call& call : script) call = random_call(random, model);
  expect_same_answers(script);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomStoreParity, ::testing::Range(1U, 9U));

// The table of differences: what both answer to the last of these calls.
struct Difference {
  const char* name;
  std::vector<Call> script;
  std::string torch;
  std::string ours;
  std::string torch_next;  // to a check of an existing key afterwards
};
void PrintTo(const Difference& difference, std::ostream* out) { *out << difference.name; }

class StoreDifference : public ::testing::TestWithParam<Difference> {};
TEST_P(StoreDifference, IsAsTheTableSays) {
  const auto torch = torch_store();
  OurStores ours;
  const Call mark{Op::kSet, {"mark"}, {""}};
  ask(*torch, mark);
  ours.ask(mark);
  const std::vector<Call>& script = GetParam().script;
  for (std::size_t i = 0; i + 1 < script.size(); ++i) {
    ask(*torch, script[i]);
    ours.ask(script[i]);
  }
  EXPECT_EQ(ask(*torch, script.back()), GetParam().torch);
  EXPECT_THAT(ours.ask(script.back()), Each(GetParam().ours));
  const Call check{Op::kCheck, {"mark"}};
  EXPECT_EQ(ask(*torch, check), GetParam().torch_next);
  EXPECT_THAT(ours.ask(check), Each("true"));  // ours stay usable
}

std::vector<Difference> differences() {
  const auto add_to = [](const std::string& text, std::int64_t amount) {
    return std::vector<Call>{{Op::kSet, {"n"}, {text}}, {Op::kAdd, {"n"}, {}, amount}};
  };
  return {
      {"AddToText", add_to("text", 1), "disconnected", "invalid", "disconnected"},
      {"AddToNothing", add_to("", 1), "disconnected", "invalid", "disconnected"},
      {"AddToANumberBeforeText", add_to("12abc", 1), "13", "invalid", "true"},
      {"AddToHexadecimal", add_to("0x10", 1), "1", "invalid", "true"},
      {"AddToANumberInSpaces", add_to(" 12 ", 1), "13", "invalid", "true"},
      {"AddToASignedNumber", add_to("+12", 1), "13", "invalid", "true"},
      {"AddBeyondTheLargest", add_to("9223372036854775807", 1), "-9223372036854775808", "invalid", "true"},
      {"AddToTooLargeANumber", add_to("9223372036854775808", 1), "disconnected", "invalid", "disconnected"},
      {"EmptyKey", {{Op::kSet, {""}, {"1"}}}, "ok", "invalid", "true"},
      {"LongKey", {{Op::kSet, {std::string(1025, 'k')}, {"1"}}}, "ok", "invalid", "true"},
      {"CheckOfAQueue", {{Op::kPush, {"q"}, {"1"}}, {Op::kCheck, {"q"}}}, "true", "false", "true"},
      {"WaitForAQueue",
       {{Op::kPush, {"q"}, {"1"}}, {Op::kWait, {"q"}, {}, 0, kRunsOut}},
       "ok",
       "timeout",
       "true"},
      {"KeysOfABarrier",
       {{Op::kBarrier, {"b"}}, {Op::kListKeys}},
       R"({"b", "mark"})",
       R"({"b", "b/0", "mark"})",
       "true"},
  };
}
INSTANTIATE_TEST_SUITE_P(Table, StoreDifference, ::testing::ValuesIn(differences()),
                         [](const auto& row) { return std::string(row.param.name); });

// A value that is too large: torch's set says ok, and the connection is gone.
TEST(StoreDifferences, AValueThatIsTooLargeEndsTorchsConnectionAndNotOurs) {
  const Call call{Op::kSet, {"big"}, {std::string(store::kMaxValueSize + 1, 'x')}};
  const Call check{Op::kCheck, {"big"}};
  const auto torch = torch_store();
  ask(*torch, call);
  EXPECT_EQ(ask(*torch, check), "disconnected");
  OurStores ours;
  EXPECT_THAT(ours.ask(call), Each("invalid"));
  EXPECT_THAT(ours.ask(check), Each("false"));
}

}  // namespace
}  // namespace lockstep::parity

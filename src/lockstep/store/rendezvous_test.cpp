#include "lockstep/store/rendezvous.h"

#include <unistd.h>

#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/round_keys.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using std::chrono::seconds;
using testing::FailureIs;
using ::testing::HasSubstr;
using testing::IsOkAnd;
using ::testing::SizeIs;
using testing::StatusIs;
using Variables = std::map<std::string, std::string, std::less<>>;

Environment environment(const Variables& variables = {}) { return *Environment::parse(variables); }

// As many threads as options, each with its own rendezvous.
std::vector<Result<Rendezvous>> meet(const std::vector<RendezvousOptions>& ranks, const Environment& env) {
  std::vector<Result<Rendezvous>> out;
  for (std::size_t i = 0; i < ranks.size(); ++i) out.emplace_back(Status::internal("not met"));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] { out[i] = rendezvous(ranks[i], env); });
  for (std::thread& thread : threads) thread.join();
  return out;
}

TEST(Rendezvous, NothingSaidIsAWorldOfOne) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous alone, rendezvous({}, environment()));
  EXPECT_EQ(alone.rank, Rank{0});
  EXPECT_EQ(alone.world_size, WorldSize{1});
  EXPECT_EQ(alone.local_rank, Rank{0});
  EXPECT_EQ(alone.local_size, WorldSize{1});
  EXPECT_EQ(alone.job_id, "default");
  EXPECT_FALSE(alone.secret.is_insecure());
  EXPECT_EQ(alone.store->description(), "HashStore");
  ASSERT_THAT(alone.members, SizeIs(1));
  EXPECT_EQ(alone.members[0].pid, ::getpid());
  EXPECT_EQ(alone.members[0].host, alone.host);
  ASSERT_THAT(alone.addresses, SizeIs(1));
  EXPECT_TRUE(alone.addresses[0].is_loopback());
}

TEST(Rendezvous, AWorldOfOneNeedsNoMasterWhereverItIsSaid) {
  EXPECT_OK(rendezvous({.world_size = WorldSize{1}}, environment()));
  EXPECT_OK(rendezvous({.rank = Rank{0}, .world_size = WorldSize{1}},
                       environment({{"RANK", "3"}, {"WORLD_SIZE", "4"}})));
  EXPECT_OK(rendezvous({.url = "tcp://192.0.2.1:1?rank=0&world_size=1"}, environment()));
  EXPECT_OK(rendezvous(
      {},
      environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "192.0.2.1"}, {"MASTER_PORT", "1"}})));
}

TEST(Rendezvous, ThroughAGivenStore) {
  const auto store = std::make_shared<HashStore>();
  std::vector<RendezvousOptions> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.push_back({.store = store, .rank = Rank{rank}, .world_size = WorldSize{4}, .job_id = "j"});
  const auto met = meet(ranks, environment({{"LOCKSTEP_EPOCH", "7"}}));
  for (int rank = 0; rank < 4; ++rank) {
    const auto& one = met[static_cast<std::size_t>(rank)];
    ASSERT_OK(one.status());
    EXPECT_EQ(one->rank, Rank{rank});
    EXPECT_EQ(one->local_rank, Rank{rank}) << "by host";
    EXPECT_EQ(one->local_size, WorldSize{4});
    EXPECT_EQ(one->job_id, "j");
    EXPECT_EQ(one->epoch, 7U);
    EXPECT_EQ(one->members, met[0]->members);
    EXPECT_EQ(base::hex(one->secret.bytes()), base::hex(met[0]->secret.bytes()));
    EXPECT_EQ(one->addresses, met[0]->addresses);
    EXPECT_TRUE(one->addresses[0].is_loopback()) << "all are on one host";
  }
  EXPECT_FALSE(met[0]->secret.is_insecure());
  ASSERT_OK(met[0]->store->set("key", bytes_of("value")));
  EXPECT_THAT(met[3]->store->get("key"), IsOkAnd(SizeIs(5)));
}

TEST(Rendezvous, TheNextWorldOnAStoreDoesNotSeeTheKeysOfTheLast) {
  const auto store = std::make_shared<HashStore>();
  const RendezvousOptions options{.store = store, .rank = Rank{0}, .world_size = WorldSize{1}};
  {
    ASSERT_OK_AND_ASSIGN(const Rendezvous first, rendezvous(options, environment()));
    ASSERT_OK(first.store->set("key", bytes_of("old")));
  }
  ASSERT_OK_AND_ASSIGN(const Rendezvous second, rendezvous(options, environment()));
  const std::string key[] = {"key"};
  EXPECT_THAT(second.store->check(key), IsOkAnd(false));
}

TEST(Rendezvous, ASchemeOfTheProgramsOwn) {
  const auto store = std::make_shared<HashStore>();
  const Scheme lobby = [&](const SchemeRequest& request) -> Result<SchemeAnswer> {
    EXPECT_EQ(request.url.place, "green-room");
    EXPECT_EQ(request.url.query.at("token"), "x");
    EXPECT_EQ(request.rank, std::nullopt);
    return SchemeAnswer{.store = store, .rank = Rank{0}, .world_size = WorldSize{1}};
  };
  ASSERT_OK_AND_ASSIGN(
      const Rendezvous met,
      rendezvous({.url = "lobby://green-room?token=x", .schemes = {{"lobby", lobby}}}, environment()));
  EXPECT_EQ(met.world_size, WorldSize{1});
  EXPECT_THAT(met.store->description(), HasSubstr("HashStore"));
}

TEST(Rendezvous, ASchemeThatFailsOrGivesNothingIsAnError) {
  const Scheme failing = [](const SchemeRequest&) -> Result<SchemeAnswer> {
    return Status::timeout("closed today");
  };
  EXPECT_THAT(rendezvous({.url = "lobby://", .schemes = {{"lobby", failing}}}, environment()).status(),
              StatusIs(Code::kTimeout, HasSubstr("closed today")));
  const Scheme empty = [](const SchemeRequest&) -> Result<SchemeAnswer> { return SchemeAnswer{}; };
  EXPECT_THAT(rendezvous({.url = "lobby://", .schemes = {{"lobby", empty}}}, environment()).status(),
              StatusIs(Code::kInvalid, HasSubstr("gave no store")));
  const Scheme silent = [](const SchemeRequest&) -> Result<SchemeAnswer> {
    return SchemeAnswer{.store = std::make_shared<HashStore>()};
  };
  EXPECT_THAT(rendezvous({.url = "lobby://", .schemes = {{"lobby", silent}}}, environment()).status(),
              FailureIs(Failure::kMissingVariable));
}

TEST(Rendezvous, OptionsThatContradictThemselves) {
  struct Case {
    RendezvousOptions options;
    Variables variables;
    const char* what;
  };
  const Case kCases[] = {
      {{.url = "env://", .store = std::make_shared<HashStore>()}, {}, "both the URL"},
      {{.url = "tcp://h:1?rank=1&world_size=2", .rank = Rank{0}},
       {},
       "rank is given twice: 0 as an argument and 1"},
      {{.url = "tcp://h:1?world_size=2", .world_size = WorldSize{2}}, {}, "world_size is given twice"},
      {{.url = "udp://h:1"}, {}, "known are env, tcp, file"},
      {{.url = "udp://h:1", .schemes = {{"lobby", nullptr}}}, {}, "known are env, tcp, file, lobby"},
      {{.url = "tcp://h:1?colour=red"}, {}, "the unknown key \"colour\""},
      {{.url = "env://somewhere"}, {}, "names a place"},
      {{.url = "file://tmp/x?rank=0&world_size=2"}, {}, "an absolute path"},
      {{.url = "file://tmp/x?rank=0&world_size=1"}, {}, "an absolute path"},
      {{.url = "tcp://"}, {}, "it is empty"},
      {{.url = "tcp://::1:2950?rank=0&world_size=1"}, {}, "tcp://::1:2950?rank=0&world_size=1\": "},
      {{.url = "env://?rank=0"},
       {},
       "A rank is given, but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set."},
      {{.url = "env://?rank=0&world_size=2"},
       {},
       "A rank and a world size are given, but MASTER_ADDR, MASTER_PORT"},
      {{.rank = Rank{-1}, .world_size = WorldSize{2}}, {}, "below 0"},
      {{.world_size = WorldSize{0}}, {}, "cannot be made"},
      {{.timeout = Duration::zero()}, {}, "above zero"},
      {{.rank = Rank{0}, .world_size = WorldSize{2}}, {}, "MASTER_ADDR, MASTER_PORT are not"},
      {{.rank = Rank{0}}, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}}, "WORLD_SIZE is not"},
      {{.store = std::make_shared<HashStore>(), .rank = Rank{0}},
       {},
       "The world size of this process is not known"},
      {{}, {{"SLURM_PROCID", "3"}}, "SLURM_PROCID is set, but SLURM_NTASKS"},
      {{.secret = {.file = "/nonexistent"}}, {}, "/nonexistent"},
      {{.interfaces = {"no-such-interface"}}, {}, "no-such-interface"},
  };
  for (const Case& c : kCases) {
    EXPECT_THAT(rendezvous(c.options, environment(c.variables)).status(),
                StatusIs(Code::kInvalid, HasSubstr(c.what)));
  }
}

TEST(Rendezvous, MissingRanksAtAGivenStoreAfterTheTimeout) {
  testing::FakeClock clock;
  const auto store = std::make_shared<HashStore>(StoreOptions{.timeout = seconds(1), .clock = &clock});
  Result<Rendezvous> met = Status::internal("not met");
  std::thread waiting([&] {
    met = rendezvous({.store = store, .rank = Rank{0}, .world_size = WorldSize{2}, .timeout = seconds(30)},
                     environment(), clock);
  });
  EXPECT_OK(store->get(RoundKeys("default", 0, 0).arrived(), Clock::steady().in(seconds(60))));
  clock.advance(seconds(30));
  waiting.join();
  EXPECT_THAT(met.status(), StatusIs(Code::kTimeout, "rank 1 of 2 missing after 30.0 s; 0 is here"));
}

}  // namespace
}  // namespace lockstep::store

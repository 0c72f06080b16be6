#include "lockstep/launch/options.h"

#include <csignal>

#include "lockstep/launch/signals.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOkAnd;
using ::testing::Pair;
using testing::StatusIs;

RunWords words(std::vector<std::string> command = {"./train"}) {
  RunWords out;
  out.command = std::move(command);
  return out;
}

TEST(ParseProcessCount, TakesNumbersAndNames) {
  EXPECT_THAT(parse_process_count("4"), IsOkAnd(ProcessCount{.number = 4}));
  EXPECT_THAT(parse_process_count("auto"), IsOkAnd(ProcessCount{.kind = ProcessCount::Kind::kAuto}));
  EXPECT_THAT(parse_process_count("cpu"), IsOkAnd(ProcessCount{.kind = ProcessCount::Kind::kCpu}));
  EXPECT_THAT(parse_process_count("gpu"), IsOkAnd(ProcessCount{.kind = ProcessCount::Kind::kGpu}));
  for (const char* text : {"", "0", "-1", "4 ", "4x", "4097", "99999999999", "CPU", "1.5"}) {
    EXPECT_THAT(parse_process_count(text), StatusIs(Code::kInvalid, HasSubstr("--nproc"))) << text;
  }
}

TEST(ParseStreamChoice, ReadsOneNumberForAllOrOneForEach) {
  ASSERT_OK_AND_ASSIGN(const StreamChoice both, parse_stream_choice("--tee", "3"));
  EXPECT_EQ(both.of(7), (Streams{.out = true, .error = true}));
  ASSERT_OK_AND_ASSIGN(const StreamChoice some, parse_stream_choice("--tee", "0:1,2:2"));
  EXPECT_EQ(some.of(0), (Streams{.out = true}));
  EXPECT_EQ(some.of(1), Streams{});
  EXPECT_EQ(some.of(2), (Streams{.error = true}));
  EXPECT_TRUE(some.any());
  ASSERT_OK_AND_ASSIGN(const StreamChoice none, parse_stream_choice("--tee", "0"));
  EXPECT_FALSE(none.any());
}

TEST(ParseStreamChoice, RefusesWhatIsNoChoice) {
  for (const char* text : {"", "4", "-1", "1,2", "0:", ":1", "0:4", "0:1,", "0:1,1", "a:1", "-1:1"}) {
    EXPECT_THAT(parse_stream_choice("--redirects", text), StatusIs(Code::kInvalid, HasSubstr("--redirects")))
        << text;
  }
  EXPECT_THAT(parse_stream_choice("--tee", "1:1,1:2"),
              StatusIs(Code::kInvalid, HasSubstr("local rank 1 twice")));
}

TEST(ParseRunOptions, HasTheDefaultsOfTheManual) {
  ASSERT_OK_AND_ASSIGN(const RunOptions options, parse_run_options(words({"./train", "--lr", "0.1"})));
  EXPECT_THAT(options.command, ElementsAre("./train", "--lr", "0.1"));
  EXPECT_EQ(options.kind, ProgramKind::kByName);
  EXPECT_EQ(options.nproc, ProcessCount{});
  EXPECT_EQ(options.nnodes, 1);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.shutdown_timeout, 30s);
  EXPECT_EQ(options.signals, default_signals());
  EXPECT_FALSE(options.tee.any());
}

TEST(ParseRunOptions, ReadsEveryWord) {
  RunWords given = words();
  given.nproc = "8";
  given.nnodes = "2";
  given.node_rank = "1";
  given.rdzv_endpoint = "node0:29500";
  given.rdzv_id = "exp-7";
  given.max_restarts = "3";
  given.restart_delay = "250ms";
  given.monitor_interval = "0.5";
  given.shutdown_timeout = "5";
  given.signals = "TERM,SIGUSR1";
  given.env = {"A=1", "B=x=y", "C="};
  given.cpu_binding = "numa";
  given.local_ranks_filter = "0, 3";
  given.role = "actor";
  ASSERT_OK_AND_ASSIGN(const RunOptions options, parse_run_options(given));
  EXPECT_EQ(options.nproc.number, 8);
  EXPECT_EQ(options.nnodes, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rdzv_endpoint, (base::Endpoint{"node0", 29500}));
  EXPECT_EQ(options.restart_delay, 250ms);
  EXPECT_EQ(options.monitor_interval, 500ms);
  EXPECT_EQ(options.shutdown_timeout, 5s);
  EXPECT_THAT(options.signals, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_THAT(options.env, ElementsAre(Pair("A", "1"), Pair("B", "x=y"), Pair("C", "")));
  EXPECT_EQ(options.cpu_binding, base::Binding::kNuma);
  EXPECT_THAT(options.local_ranks_filter, ElementsAre(0, 3));
  EXPECT_EQ(options.role, "actor");
}

TEST(ParseRunOptions, UnderstandsTorchrunsWordsForTheEndpoint) {
  RunWords given = words();
  given.nnodes = "2:2";
  given.master_addr = "fe80::1";
  given.master_port = "1234";
  given.rdzv_backend = "c10d";
  given.rdzv_conf = "join_timeout=60,rank=1";
  ASSERT_OK_AND_ASSIGN(const RunOptions options, parse_run_options(given));
  EXPECT_EQ(options.nnodes, 2);
  EXPECT_EQ(options.rdzv_endpoint, (base::Endpoint{"fe80::1", 1234}));
  EXPECT_EQ(options.join_timeout, 60s);
  EXPECT_EQ(options.node_rank, 1);

  RunWords one_host = words();
  one_host.master_port = "29501";
  EXPECT_OK(parse_run_options(one_host));
}

TEST(ParseRunOptions, ALogFolderAloneMeansLogs) {
  RunWords given = words();
  given.log_dir = "logs";
  ASSERT_OK_AND_ASSIGN(const RunOptions options, parse_run_options(given));
  EXPECT_EQ(options.tee.of(0), (Streams{.out = true, .error = true}));
  given.redirects = "2";
  ASSERT_OK_AND_ASSIGN(const RunOptions chosen, parse_run_options(given));
  EXPECT_FALSE(chosen.tee.any());
}

struct BadCase {
  const char* name;
  void (*spoil)(RunWords&);
  const char* says;
};
void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

class BadWords : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadWords, AreRefusedWithASentenceThatNamesTheOption) {
  RunWords given = words();
  GetParam().spoil(given);
  EXPECT_THAT(parse_run_options(given), StatusIs(Code::kInvalid, HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadWords,
    ::testing::Values(
        BadCase{"NoProgram", [](RunWords& w) { w.command.clear(); }, "no program was given"},
        BadCase{"Nproc", [](RunWords& w) { w.nproc = "many"; }, R"(--nproc "many")"},
        BadCase{"Nnodes", [](RunWords& w) { w.nnodes = "0"; }, R"(--nnodes "0")"},
        BadCase{"NnodesRange", [](RunWords& w) { w.nnodes = "1:4"; }, "asks for a range"},
        BadCase{"NoEndpoint", [](RunWords& w) { w.nnodes = "2"; }, "needs --rdzv-endpoint"},
        BadCase{"NodeRank", [](RunWords& w) { w.node_rank = "1"; }, "--node-rank 1 does not exist"},
        BadCase{"NodeRankText", [](RunWords& w) { w.node_rank = "first"; }, R"(--node-rank "first")"},
        BadCase{"Endpoint", [](RunWords& w) { w.rdzv_endpoint = "a:b:c"; }, R"(--rdzv-endpoint "a:b:c")"},
        BadCase{"EndpointPortZero",
                [](RunWords& w) {
                  w.nnodes = "2";
                  w.rdzv_endpoint = "a:0";
                },
                R"(--rdzv-endpoint "a:0" has no port)"},
        BadCase{"MasterPortZero",
                [](RunWords& w) {
                  w.nnodes = "2";
                  w.master_addr = "a";
                  w.master_port = "0";
                },
                "--master-port 0 has no port"},
        BadCase{"EndpointPort", [](RunWords& w) { w.rdzv_endpoint = "a:70000"; },
                R"(--rdzv-endpoint "a:70000")"},
        BadCase{"EndpointTwice",
                [](RunWords& w) {
                  w.rdzv_endpoint = "a:1";
                  w.master_addr = "b";
                },
                "say the same thing"},
        BadCase{"PortAlone",
                [](RunWords& w) {
                  w.nnodes = "2";
                  w.master_port = "1";
                },
                "--master-port needs --master-addr"},
        BadCase{"PortThatIsNone", [](RunWords& w) { w.master_port = "x"; }, "--master-port \"127.0.0.1:x\""},
        BadCase{"Backend", [](RunWords& w) { w.rdzv_backend = "etcd"; }, R"(--rdzv-backend "etcd")"},
        BadCase{"Conf", [](RunWords& w) { w.rdzv_conf = "x=1"; }, R"(--rdzv-conf "x=1")"},
        BadCase{"ConfRank", [](RunWords& w) { w.rdzv_conf = "rank="; }, R"(--rdzv-conf rank "")"},
        BadCase{"ConfRankAlone", [](RunWords& w) { w.rdzv_conf = "rank"; }, R"(--rdzv-conf rank "")"},
        BadCase{"ConfTimeout", [](RunWords& w) { w.rdzv_conf = "rank=0,timeout="; },
                R"(--rdzv-conf timeout "")"},
        BadCase{"NnodesColon", [](RunWords& w) { w.nnodes = ":"; }, R"(--nnodes ":")"},
        BadCase{"LocalAddrByArrival",
                [](RunWords& w) {
                  w.nnodes = "2";
                  w.rdzv_endpoint = "a:1";
                  w.local_addr = "10.0.0.1";
                },
                "--local-addr is the address that node 0 binds"},
        BadCase{"Id", [](RunWords& w) { w.rdzv_id = "../x"; }, R"(--rdzv-id "../x")"},
        BadCase{"Standalone",
                [](RunWords& w) {
                  w.standalone = true;
                  w.rdzv_endpoint = "a:1";
                },
                "--standalone means one host"},
        BadCase{"Restarts", [](RunWords& w) { w.max_restarts = "-1"; }, R"(--max-restarts "-1")"},
        BadCase{"Delay", [](RunWords& w) { w.restart_delay = "soon"; }, R"(--restart-delay "soon")"},
        BadCase{"Interval", [](RunWords& w) { w.monitor_interval = "0"; }, R"(--monitor-interval "0")"},
        BadCase{"Shutdown", [](RunWords& w) { w.shutdown_timeout = "-5"; }, R"(--shutdown-timeout "-5")"},
        BadCase{"Join", [](RunWords& w) { w.join_timeout = "1 week"; }, R"(--join-timeout "1 week")"},
        BadCase{"Signals", [](RunWords& w) { w.signals = "TERM,NOPE"; }, R"(--signals "TERM,NOPE")"},
        BadCase{"SignalKill", [](RunWords& w) { w.signals = "KILL"; }, "--signals cannot have SIGKILL"},
        BadCase{"Binding", [](RunWords& w) { w.cpu_binding = "socket"; }, R"(--cpu-binding "socket")"},
        BadCase{"Env", [](RunWords& w) { w.env = {"A"}; }, R"(--env "A")"},
        BadCase{"EnvOfOurs", [](RunWords& w) { w.env = {"RANK=3"}; }, "--env RANK is not possible"},
        BadCase{"Prefix", [](RunWords& w) { w.prefix = "{rnak}"; }, "no field {rnak}"},
        BadCase{"Filter", [](RunWords& w) { w.local_ranks_filter = "0,,1"; },
                R"(--local-ranks-filter "0,,1")"},
        BadCase{"RedirectsNowhere", [](RunWords& w) { w.redirects = "3"; }, "give --log-dir"},
        BadCase{"ModuleNoPython",
                [](RunWords& w) {
                  w.module = true;
                  w.no_python = true;
                },
                "-m and --no-python"},
        BadCase{"SecretInsecure",
                [](RunWords& w) {
                  w.insecure = true;
                  w.secret_file = "s";
                },
                "--secret-file and --insecure"}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(RestartDelay, DoublesUpToAMinute) {
  EXPECT_EQ(restart_delay(1s, 1), 1s);
  EXPECT_EQ(restart_delay(1s, 2), 2s);
  EXPECT_EQ(restart_delay(1s, 6), 32s);
  EXPECT_EQ(restart_delay(1s, 7), 60s);
  EXPECT_EQ(restart_delay(1s, 1'000'000), 60s);
  EXPECT_EQ(restart_delay(0s, 1'000'000), 0s);
  EXPECT_EQ(restart_delay(5min, 1), 60s);
}

}  // namespace
}  // namespace lockstep::launch

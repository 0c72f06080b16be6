// What TcpStore promises beyond the contract of every store: pipelining, order, deadlines, forks and signals.
#include "lockstep/store/tcp_store.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/store/tcp_connect.h"
#include "lockstep/store/tcp_frame.h"
#include "lockstep/store/tcp_test_support.h"
#include "lockstep/store/tcp_wire.h"
#include "lockstep/testing/pattern.h"

namespace lockstep::store {
namespace {

using ::lockstep::testing::FailureIs;
using ::lockstep::testing::IsOkAnd;
using ::lockstep::testing::StatusIs;
using ::testing::HasSubstr;

std::string text(const Result<Buffer>& value) { return value.ok() ? std::string(text_of(*value)) : "error"; }

constexpr LocalSocket kBoth[] = {LocalSocket::kOff, LocalSocket::kOn};

TEST(TcpStore, ABlockedGetOfOneThreadHoldsNobodyUp) {
  for (const LocalSocket local : kBoth) {
    const TestServer server;
    const auto store = server.connect(local);
    std::thread waiting([&] { EXPECT_EQ(text(store->get("late")), "value"); });
    for (int i = 0; i < 100; ++i) ASSERT_OK(store->add("counter", 1));
    ASSERT_OK(store->set("late", bytes_of("value")));
    waiting.join();
  }
}

// Threads that lead, follow, hand over, time out and are cancelled, all on one connection.
TEST(TcpStore, ManyThreadsShareOneConnection) {
  for (const LocalSocket local : kBoth) {
    const TestServer server;
    const auto store = server.connect(local);
    constexpr int kThreads = 8;
    constexpr int kTurns = 200;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kTurns; ++i) {
          const std::string own = cat("key/", t, "/", i);
          const std::string next = cat("key/", (t + 1) % kThreads, "/", i);
          EXPECT_OK(store->set(own, bytes_of(own)));
          EXPECT_EQ(text(store->get(next)), next);
          EXPECT_OK(store->add("counter", 1));
          if (i % 50 == 0) {
            EXPECT_THAT(store->get("never", Clock::steady().in(1ms)), StatusIs(Code::kTimeout));
          }
          EXPECT_OK(store->queue_push("queue", bytes_of(own)));
          EXPECT_OK(store->queue_pop("queue"));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(store->add("counter", 0), IsOkAnd(kThreads * kTurns));
    EXPECT_THAT(store->queue_len("queue"), IsOkAnd(0));
  }
}

TEST(TcpStore, OperationsOfOneThreadTakeEffectInOrderAcrossHandles) {
  for (const LocalSocket local : kBoth) {
    const TestServer server;
    const auto writer = server.connect(local);
    const auto reader = server.connect(local);
    const auto other_writer = server.connect(local);
    for (int i = 0; i < 300; ++i) {
      const std::vector<std::string> key = {cat("key/", i)};
      ASSERT_OK(writer->set(key[0], bytes_of("1")));
      ASSERT_THAT(reader->check(key), IsOkAnd(true)) << i;
      ASSERT_OK(writer->set("last", bytes_of("first")));
      ASSERT_OK(other_writer->set("last", bytes_of("second")));
      ASSERT_EQ(text(reader->get("last")), "second") << i;
    }
  }
}

// What is sent without waiting for an answer does not run ahead without end.
TEST(TcpStore, ManyUnansweredWritesAllArrive) {
  for (const LocalSocket local : kBoth) {
    const TestServer server;
    const auto store = server.connect(local);
    const Buffer value(4096);
    for (int i = 0; i < 2000; ++i) {
      ASSERT_OK(store->set(cat("key/", i), value));
      ASSERT_OK(store->queue_push("queue", value));
    }
    EXPECT_THAT(store->num_keys(), IsOkAnd(2000));
    EXPECT_THAT(store->queue_len("queue"), IsOkAnd(2000));
  }
}

TEST(TcpStore, AWriteThatTheServerRefusesIsReportedOnce) {
  const TestServer server({}, TenantOptions{.max_memory = Bytes::mib(1)});
  const auto store = server.connect();
  const Buffer large(kMaxPosted + 1);  // waited for
  int filled = 0;
  while (store->set(cat("key/", filled), large).ok()) ++filled;
  ASSERT_GT(filled, 10);
  EXPECT_OK(store->set("one too many", Buffer(kMaxPosted)));
  EXPECT_THAT(store->num_keys(), IsOkAnd(filled));  // with its answer comes the refusal
  EXPECT_THAT(store->num_keys(), StatusIs(Code::kInvalid, HasSubstr("an earlier write was refused")));
  EXPECT_THAT(store->num_keys(), IsOkAnd(filled));
  EXPECT_OK(store->delete_key("key/0"));
  EXPECT_OK(store->set("small", bytes_of("fits")));
  EXPECT_EQ(text(store->get("small")), "fits");
}

TEST(TcpStore, ValuesOfEverySizeComeBack) {
  for (const LocalSocket local : kBoth) {
    const TestServer server;
    const auto store = server.connect(local);
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, kMaxPosted,
                                   kMaxPosted + 1, std::size_t{65536}, kMaxValueSize}) {
      const Buffer value = lockstep::testing::pattern(size, 1);
      ASSERT_OK(store->set("key", value));
      ASSERT_OK_AND_ASSIGN(const Buffer back, store->get("key"));
      EXPECT_TRUE(text_of(back) == text_of(value)) << size;
    }
  }
}

TEST(TcpStore, ConnectNamesTheEndpointThatDoesNotAnswer) {
  ASSERT_OK_AND_ASSIGN(const auto address, base::SocketAddress::parse("127.0.0.1", 0));
  ASSERT_OK_AND_ASSIGN(const auto held, base::hold_port(address));
  ASSERT_OK_AND_ASSIGN(const auto bound, base::local_address(held.get()));
  const TcpStoreOptions options{.endpoint = {.host = "127.0.0.1", .port = bound.port()}, .job_id = "job"};
  const auto store = TcpStore::connect(options, Clock::steady().in(50ms));
  EXPECT_THAT(store, StatusIs(Code::kTimeout, HasSubstr(options.endpoint.text())));
}

TEST(TcpStore, AClientMayComeBeforeItsServer) {
  ASSERT_OK_AND_ASSIGN(const auto address, base::SocketAddress::parse("127.0.0.1", 0));
  ASSERT_OK_AND_ASSIGN(auto held, base::hold_port(address));
  ASSERT_OK_AND_ASSIGN(const auto bound, base::local_address(held.get()));
  const Secret secret = Secret::generate();
  std::atomic<bool> trying{false};
  std::thread early([&] {
    const TcpStoreOptions options{
        .endpoint = {.host = "127.0.0.1", .port = bound.port()}, .job_id = "job", .secret = secret};
    trying = true;
    const auto store = TcpStore::connect(options, soon());
    EXPECT_OK(store);
  });
  while (!trying) std::this_thread::yield();
  TcpServerOptions options;
  options.port = bound.port();
  options.tenants.push_back({.job_id = "job", .secret = secret});
  const auto server = TcpStoreServer::start(std::move(options));
  EXPECT_OK(server);
  early.join();
}

TEST(TcpStore, HostStoreServesAndConnects) {
  TcpServerOptions options;
  options.tenants.push_back({.job_id = "job", .secret = Secret::generate()});
  ASSERT_OK_AND_ASSIGN(const auto hosted, host_store(std::move(options), soon()));
  EXPECT_OK(hosted.store->set("key", bytes_of("value")));
  EXPECT_EQ(text(hosted.store->get("key")), "value");
  EXPECT_THAT(host_store({}, soon()), StatusIs(Code::kInvalid));
}

// Runs `body` in a forked child; its exit code.
template <typename Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// F36.
TEST(TcpStore, AForkedChildIsToldAndTheParentGoesOn) {
  for (const LocalSocket local : kBoth) {
    const TestServer server;
    const auto store = server.connect(local);
    ASSERT_OK(store->set("key", bytes_of("value")));
    EXPECT_EQ(in_child([&] {
                const bool told =
                    store->get("key").status().failure() == Failure::kForked &&
                    store->set("key", {}).failure() == Failure::kForked &&
                    server.server->add_tenant({.job_id = "other"}).failure() == Failure::kForked;
                return told ? 0 : 1;
              }),
              0);
    EXPECT_EQ(text(store->get("key")), "value");
    EXPECT_OK(server.connect(local)->num_keys());
  }
}

// F36: leaving the child by its destructors does not touch the parent's connections.
TEST(TcpStore, DestroyingEverythingInAForkedChildHarmsNobody) {
  auto server = std::make_unique<TestServer>();
  auto store = server->connect();
  auto tcp_store = server->connect(LocalSocket::kOff);
  EXPECT_EQ(in_child([&] {
              store.reset();
              tcp_store.reset();
              server.reset();
              return 0;
            }),
            0);
  EXPECT_OK(store->set("key", bytes_of("value")));
  EXPECT_EQ(text(tcp_store->get("key")), "value");
}

// F18: a child that lives on does not hide the server's end.
TEST(TcpStore, AForkedChildOfTheServersProcessDoesNotKeepItsConnectionsOpen) {
  for (const LocalSocket local : kBoth) {
    auto server = std::make_unique<TestServer>();
    const auto store = server->connect(local);
    int gate[2];
    ASSERT_EQ(pipe(gate), 0);
    const pid_t child = fork();
    if (child == 0) {
      ::close(gate[1]);
      char byte;
      _exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
    }
    server.reset();
    EXPECT_THAT(store->num_keys(), FailureIs(Failure::kStoreLost));
    ::close(gate[0]);
    ::close(gate[1]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

// F35.
TEST(TcpStore, AStormOfSignalsChangesNothing) {
  static std::atomic<int> signals{0};
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++signals; };  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const TestServer server;
  const auto local = server.connect(LocalSocket::kOn);
  const auto remote = server.connect(LocalSocket::kOff);
  const itimerval storm{.it_interval = {.tv_sec = 0, .tv_usec = 500},
                        .it_value = {.tv_sec = 0, .tv_usec = 500}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &storm, nullptr), 0);
  Buffer value(1U << 20);
  while (signals < 100) {
    for (TcpStore* store : {local.get(), remote.get()}) {
      EXPECT_OK(store->set("large", value));
      EXPECT_OK(store->get("large"));
      EXPECT_OK(store->add("counter", 1));
      EXPECT_THAT(store->get("never", Clock::steady().in(2ms)), StatusIs(Code::kTimeout));
      EXPECT_OK(store->clone());
    }
  }
  const itimerval calm{};
  ASSERT_EQ(setitimer(ITIMER_REAL, &calm, nullptr), 0);
  ASSERT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
}

// F35: a client that vanishes while it is being answered raises no SIGPIPE in the server's process.
TEST(TcpStore, AClientThatDiesWhileItIsAnsweredHarmsNobody) {
  const TestServer server;
  const auto store = server.connect();
  ASSERT_OK(store->set("large", Buffer(kMaxValueSize)));
  for (const LocalSocket local : kBoth) {
    for (int i = 0; i < 5; ++i) {
      ASSERT_OK_AND_ASSIGN(const auto connected, connect_to_server(server.client_options(local), soon()));
      FrameWriter writer(connected.keys ? FrameKey(connected.keys->client_to_server) : FrameKey());
      Buffer frame;
      const Request request{.id = 1, .op = Op::kGet, .timeout = 60s, .key = "large"};
      writer.write(frame, [&](Buffer& out) { write_request(request, out); });
      ASSERT_EQ(connected.conduit.send(frame), static_cast<ssize_t>(frame.size()));
      // It leaves when the answer, which is larger than any buffer on the way, has begun to come.
      pollfd descriptor{.fd = connected.conduit.receiving(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(poll(&descriptor, 1, 60'000), 1);
    }
  }
  EXPECT_OK(store->num_keys());
}

TEST(TcpStore, AWillIsHeardByThoseWhoWaitWhenItsConnectionEnds) {
  for (const LocalSocket local : kBoth) {
    const TestServer server;
    const auto waiting = server.connect(local);
    auto ending = server.connect(local);
    ASSERT_OK(ending->set_will("died", bytes_of("said for it")));
    ASSERT_OK(ending->set_will("settled", bytes_of("said for it")));
    ASSERT_OK(ending->set_will("settled", {}));
    std::thread ends([&] { ending.reset(); });
    EXPECT_EQ(text(waiting->get("died")), "said for it");
    ends.join();
    const std::vector<std::string> settled = {"settled"};
    EXPECT_THAT(waiting->check(settled), IsOkAnd(false));
  }
}

// F31, for the client: no descriptors left.
TEST(TcpStore, WithoutDescriptorsConnectSaysSo) {
  const TestServer server;
  EXPECT_EQ(in_child([&] {
              const rlimit none{.rlim_cur = 3, .rlim_max = 3};
              setrlimit(RLIMIT_NOFILE, &none);
              const auto store = TcpStore::connect(server.client_options(LocalSocket::kOn), soon());
              return store.status().failure() == Failure::kNoDescriptors ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace lockstep::store

#include "tools/bench/fingerprint_bench.h"

#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "lockstep/collective/local_round.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/transport/shm/domain.h"
#include "tools/bench/machine.h"
#include "tools/bench/output.h"
#include "tools/bench/spread.h"

namespace lockstep::bench {
namespace {

using collective::Exposed;
using collective::LocalCall;
using collective::LocalRounds;
using nlohmann::json;
using tools::CommandContext;
using transport::shm::Board;
using transport::shm::Domain;

constexpr int kTimes = 20'000;  // that a round looks at all peers, each way

struct FingerprintBenchOptions {
  int peers = 8;
  int rounds = 21;
  std::string json_path = {};
};

// A board whose members are all here, and have posted the same operation. One thread looks at all of them:
// the cost of looking without that of cores that talk to each other.
struct PostedBoard {
  std::vector<std::unique_ptr<Domain>> domains;
  std::vector<std::unique_ptr<Board>> boards;
  collective::Fingerprint fingerprint;

  static Result<PostedBoard> make(int size, const Clock& clock) {
    const Deadline deadline = clock.in(std::chrono::minutes(1));
    PostedBoard posted;
    std::vector<Rank> ranks;
    ranks.reserve(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) ranks.emplace_back(i);
    LOCKSTEP_ASSIGN(posted.domains, Domain::of_threads(ranks, Bytes::mib(64)));
    store::HashStore store;
    transport::shm::BoardOptions options{.name = "bench", .members = {}, .staging = Bytes::kib(64)};
    for (int i = 0; i < size; ++i) options.members.push_back(i);
    // Members wait for each other while the board is made.
    posted.boards.resize(posted.domains.size());
    std::vector<Status> made(posted.domains.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < posted.domains.size(); ++i) {
      threads.emplace_back([&, i] {
        auto board = Board::make(*posted.domains[i], options, store, deadline);
        made[i] = board.status();
        if (board.ok()) posted.boards[i] = std::move(*board);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : made) LOCKSTEP_TRY(status);
    posted.fingerprint = {.group = 1, .sequence = 1, .count = 1000, .kind = collective::OpKind::kAllReduce};
    for (const auto& board : posted.boards) {
      const LocalCall call{.board = *board, .fingerprint = posted.fingerprint, .deadline = deadline};
      LocalRounds rounds(call);
      LOCKSTEP_TRY(rounds.open());
      rounds.post_staged(4096, 4096);
    }
    return posted;
  }
};

double nanoseconds_each(const Clock& clock, base::TimePoint start) {
  return std::chrono::duration<double, std::nano>(clock.now() - start).count() / kTimes;
}

// What is read of a peer's posting in any case: how much it is, and where.
Status look_without(Board& board, const Deadline& deadline) {
  LOCKSTEP_TRY(board.await_all(deadline));
  std::vector<Exposed> peers;
  peers.reserve(static_cast<std::size_t>(board.size()));
  for (int peer = 0; peer < board.size(); ++peer) {
    const transport::shm::Posting posting = board.posting_of(peer);
    Exposed& out = peers.emplace_back();
    std::memcpy(&out.header, posting.header.data(), sizeof(out.header));
    out.rank = board.rank_of(peer);
    out.bytes = board.range_of(peer, posting);
    out.size = posting.size;
    if (out.bytes == nullptr) return Status::internal("a peer posted nothing");
  }
  return {};
}

// ns per peer that the comparison adds, in one round.
Result<double> measure_round(PostedBoard& posted, const Clock& clock) {
  Board& board = *posted.boards.front();
  const Deadline deadline = clock.in(std::chrono::minutes(1));
  const LocalCall call{.board = board, .fingerprint = posted.fingerprint, .deadline = deadline};
  LocalRounds rounds(call);
  base::TimePoint start = clock.now();
  for (int i = 0; i < kTimes; ++i) LOCKSTEP_TRY(rounds.await_all().status());
  const double with = nanoseconds_each(clock, start);
  start = clock.now();
  for (int i = 0; i < kTimes; ++i) LOCKSTEP_TRY(look_without(board, deadline));
  return (with - nanoseconds_each(clock, start)) / board.size();
}

Result<int> run_fingerprint_bench(const FingerprintBenchOptions& options, const CommandContext& context) {
  LOCKSTEP_ASSIGN(PostedBoard posted, PostedBoard::make(options.peers, context.clock));
  std::vector<double> each;
  for (int i = 0; i <= options.rounds; ++i) {
    LOCKSTEP_ASSIGN(const double ns, measure_round(posted, context.clock));
    if (i > 0) each.push_back(ns);  // the first one warms the caches
  }
  const Spread spread = quartiles_of(std::move(each));
  std::cout << "comparing fingerprints with " << options.peers << " ranks: " << rounded(spread.median, 2)
            << " ns per rank (" << rounded(spread.low, 2) << " to " << rounded(spread.high, 2) << ")"
            << std::endl;
  const json report = {{"machine", machine_json()},
                       {"rows", json::array({{{"op", "fingerprint"},
                                              {"ranks", options.peers},
                                              {"ns_per_rank", spread.median},
                                              {"low_ns", spread.low},
                                              {"high_ns", spread.high}}})}};
  LOCKSTEP_TRY(write_report(options.json_path, report.dump(2) + "\n"));
  return tools::kExitOk;
}

}  // namespace

void add_fingerprint_bench(CLI::App& bench, CommandContext& context) {
  CLI::App* command = bench.add_subcommand("fingerprint", "Measure what comparing operations costs");
  command->footer(
      "Looks at what every rank of a board has posted, with the comparison of fingerprints and without, in\n"
      "turns, on one thread; prints the median and the quartiles of the difference.");
  auto options = std::make_shared<FingerprintBenchOptions>();
  tools::add_integer<int>(*command, "--ranks", options->peers, "Ranks on the board (8)", {1, 256});
  tools::add_integer<int>(*command, "--rounds", options->rounds, "Rounds to measure (21)", {1, 100000});
  command->add_option("--json", options->json_path, "Write the report to FILE")->type_name("FILE");
  on_run(*command, context, [options, &context] { return run_fingerprint_bench(*options, context); });
}

}  // namespace lockstep::bench

// 01: several ranks meet, tell each other who they are, and count together.
//
// Run:
//   lockstep run --nproc 4 build/release/examples/01_ranks_meet
//
// Prints (hosts, numbers and the order of the last lines differ):
//   [rank 0] 4 ranks have met as job job-c8e8a17a2fac
//   [rank 0]   rank  host   pid    cores  free memory  store round trip
//   [rank 0]   0     node7  24006  8      21.5 GiB     38.1 us
//   [rank 0]   1     node7  24007  8      21.5 GiB     41.0 us
//   [rank 0]   2     node7  24008  8      21.5 GiB     40.2 us
//   [rank 0]   3     node7  24009  8      21.5 GiB     39.7 us
//   [rank 0] counting to 400 together: 100, reached by rank 2
//   [rank 0] counting to 400 together: 200, reached by rank 0
//   [rank 0] counting to 400 together: 300, reached by rank 3
//   [rank 0] counting to 400 together: 400, reached by rank 1
//   [rank 0] rank 0 is done
//   [rank 1] rank 1 is done
//   [rank 2] rank 2 is done
//   [rank 3] rank 3 is done
//
// With --kill 2, rank 2 kills itself before the end; the launcher stops the others, reports it and exits with
// 137:
//   lockstep run --nproc 4 build/release/examples/01_ranks_meet --kill 2
// Alone, without the launcher, it is a world of one.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/store/rendezvous.h"

namespace {

using namespace std::chrono_literals;
using lockstep::base::text_of;

constexpr int kStepsPerRank = 100;

// One write per line, so that the lines of several ranks never mix.
void say(const std::string& line) { std::cout << line + "\n" << std::flush; }

// The median time of a question to the store and its answer.
lockstep::Result<lockstep::Duration> store_round_trip(lockstep::Store& store) {
  const std::vector<std::string> nobody = {"nobody"};
  std::array<lockstep::Duration, 51> times;
  for (lockstep::Duration& time : times) {
    const auto start = store.clock().now();
    LOCKSTEP_ASSIGN([[maybe_unused]] const bool there, store.check(nobody));
    time = store.clock().now() - start;
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// What the others cannot know by themselves, as one line of text.
lockstep::Result<std::string> card_of_this_rank(lockstep::Store& store) {
  LOCKSTEP_ASSIGN(const auto memory, lockstep::base::memory_limits());
  LOCKSTEP_ASSIGN(const auto round_trip, store_round_trip(store));
  return lockstep::cat(lockstep::base::usable_cores(), "\t", memory.available, "\t", round_trip);
}

// Lines up columns; the last one is not padded.
std::string row(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) {
  std::string out;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    out += "  " + cells[i];
    if (i + 1 < cells.size()) out.append(widths[i] - cells[i].size(), ' ');
  }
  return out;
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& cells : rows) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  for (const auto& cells : rows) say(row(cells, widths));
}

// Every rank hands in its card, rank 0 prints them all.
lockstep::Status introduce(const lockstep::Rendezvous& world) {
  lockstep::Store& store = *world.store;
  LOCKSTEP_ASSIGN(const std::string card, card_of_this_rank(store));
  LOCKSTEP_TRY(store.set(lockstep::cat("card/", world.rank), lockstep::bytes_of(card)));
  if (world.rank.value != 0) return {};

  say(lockstep::cat(world.world_size, world.world_size.value == 1 ? " rank has" : " ranks have",
                    " met as job ", world.job_id));
  std::vector<std::string> keys;
  for (const auto& member : world.members) keys.push_back(lockstep::cat("card/", member.rank));
  LOCKSTEP_ASSIGN(const auto cards, store.multi_get(keys));
  std::vector<std::vector<std::string>> rows = {
      {"rank", "host", "pid", "cores", "free memory", "store round trip"}};
  for (std::size_t i = 0; i < world.members.size(); ++i) {
    const auto& member = world.members[i];
    std::vector<std::string> cells = {lockstep::cat(member.rank), member.host.name,
                                      lockstep::cat(member.pid)};
    for (std::string& cell : lockstep::base::split(text_of(cards[i]), '\t')) cells.push_back(std::move(cell));
    rows.push_back(std::move(cells));
  }
  print_table(rows);
  return {};
}

// All ranks add to one counter; whoever completes a quarter leaves word, and rank 0 tells.
lockstep::Status count_together(const lockstep::Rendezvous& world) {
  lockstep::Store& store = *world.store;
  const int total = kStepsPerRank * world.world_size.value;
  for (int step = 0; step < kStepsPerRank; ++step) {
    LOCKSTEP_ASSIGN(const std::int64_t count, store.add("counter", 1));
    if (count * 4 % total == 0) {
      LOCKSTEP_TRY(store.set(lockstep::cat("quarter/", count * 4 / total),
                             lockstep::bytes_of(lockstep::cat(count, ", reached by rank ", world.rank))));
    }
  }
  if (world.rank.value != 0) return {};
  for (int quarter = 1; quarter <= 4; ++quarter) {
    LOCKSTEP_ASSIGN(const auto word, store.get(lockstep::cat("quarter/", quarter)));
    say(lockstep::cat("counting to ", total, " together: ", text_of(word)));
  }
  return {};
}

lockstep::Status run(std::optional<int> victim) {
  LOCKSTEP_ASSIGN(const auto env, lockstep::Environment::read());
  lockstep::base::configure_logging(env.log);
  LOCKSTEP_ASSIGN(const auto world, lockstep::rendezvous({}, env));

  LOCKSTEP_TRY(introduce(world));
  LOCKSTEP_TRY(world.store->barrier("introduced", world.world_size));
  LOCKSTEP_TRY(count_together(world));
  LOCKSTEP_TRY(world.store->barrier("counted", world.world_size));

  if (victim == world.rank.value) {
    std::cerr << lockstep::cat("rank ", world.rank, " kills itself now, on purpose\n");
    ::kill(::getpid(), SIGKILL);
  }
  // With a victim this barrier is never complete: the launcher ends the wait.
  LOCKSTEP_TRY(world.store->barrier("done", world.world_size));
  say(lockstep::cat("rank ", world.rank, " is done"));
  return {};
}

// --kill RANK
std::optional<std::optional<int>> parse_arguments(const std::vector<std::string_view>& arguments) {
  if (arguments.empty()) return std::optional<int>();
  if (arguments.size() != 2 || arguments[0] != "--kill") return std::nullopt;
  const auto victim = lockstep::base::parse_integer<int>(arguments[1]);
  return victim ? std::optional(victim) : std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  const auto victim = parse_arguments({argv + 1, argv + argc});
  if (!victim) {
    std::cerr << "Usage: 01_ranks_meet [--kill RANK]\n";
    return 2;
  }
  const lockstep::Status status = run(*victim);
  if (!status.ok()) std::cerr << status.message() << "\n";
  if (status.code() == lockstep::Code::kInvalid) return 2;  // as for a wrong argument
  return status.ok() ? 0 : 1;
}

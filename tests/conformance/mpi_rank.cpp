// A rank for mpi_test.py: does what its first argument says under mpirun, and prints what came of it, one
// line for each rank.
#include <mpi.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/backend/mpi/mpi_world.h"
#include "lockstep/backend/operations.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::string sum_over(Groups& groups) {
  std::vector<int> data{groups.rank().value + 1};
  const Status status = backend::all_reduce(groups.group(), std::span(data));
  return status.ok() ? cat("sum ", data[0]) : status.text();
}

std::string join_and_sum(const MpiOptions& options = {}) {
  const auto world = join_mpi(options);
  return world.ok() ? sum_over(**world) : world.status().text();
}

std::string program_initialises(int level) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, level, &provided);
  std::string said = join_and_sum();
  int finalized = 0;
  MPI_Finalized(&finalized);
  MPI_Finalize();
  return cat(said, finalized == 0 ? "; MPI lives" : "; MPI has ended");
}

std::string after_the_end() {
  MPI_Init(nullptr, nullptr);
  MPI_Finalize();
  return join_and_sum();
}

std::string join_twice() {
  return cat(join_and_sum(), ", ", join_and_sum({.compare_calls = CompareCalls::kNever}));
}

// The world goes before its group, in which a message is expected.
std::string world_first() {
  auto world = join_mpi();
  if (!world.ok()) return world.status().text();
  auto group = (*world)->new_group({Rank{0}, Rank{1}});
  if (!group.ok()) return group.status().text();
  std::byte in{};
  const WorkPtr received = (*group)->recv({}, 1, {&in, 1});
  world->reset();
  return cat(received->wait().text(), " | ", backend::barrier(**group).text());
}

std::string large_tag() {
  const auto world = join_mpi();
  if (!world.ok()) return world.status().text();
  return (*world)->group().send(Rank{0}, std::uint64_t{1} << 40, {})->wait().text();
}

// Rank 0 alone makes a group of all.
std::string group_alone() {
  const auto world = join_mpi({.join_timeout = 300ms});
  if (!world.ok()) return world.status().text();
  std::string said;
  if ((*world)->rank().value == 0) said = (*world)->new_group({Rank{0}, Rank{1}}).status().text();
  return cat(said, sum_over(**world));
}

// A message of another size than a rank expects in a collective whose sizes each pair alone knows.
std::string uneven_gather() {
  const auto world = join_mpi();
  if (!world.ok()) return world.status().text();
  Backend& group = (*world)->group();
  const bool is_root = group.rank().value == 0;
  const std::vector<float> input(is_root ? 3 : 50'000, 1.F);
  std::vector<std::vector<float>> outputs(2, std::vector<float>(3));
  const ByteView in = bytes_of(input);
  std::vector<ByteSpan> out;
  for (auto& output : outputs)
    if (is_root) out.push_back(bytes_of(output));
  const Status status =
      group.run({.kind = OpKind::kGather, .dtype = DType::kFloat32, .inputs = {&in, 1}, .outputs = out});
  return status.text();
}

// The last rank comes too late; the others give up, and it hears so.
std::string late_barrier() {
  const auto world = join_mpi();
  if (!world.ok()) return world.status().text();
  Backend& group = (*world)->group();
  const Deadline patience = Clock::steady().in(60s);
  if (group.rank().value == group.size().value - 1) {
    while (group.failure().ok() && !patience.expired()) std::this_thread::yield();
    return backend::barrier(group).text();
  }
  return backend::barrier(group, {.deadline = Clock::steady().in(200ms)}).text();
}

std::string run(const std::string& what) {
  const std::map<std::string, std::function<std::string()>> kWays = {
      {"initialised", [] { return program_initialises(MPI_THREAD_MULTIPLE); }},
      {"single", [] { return program_initialises(MPI_THREAD_SINGLE); }},
      {"after_the_end", after_the_end},
      {"twice", join_twice},
      {"world_first", world_first},
      {"disagrees", [] { return join_and_sum({.world_size = WorldSize{7}}); }},
      {"large_tag", large_tag},
      {"group_alone", group_alone},
      {"uneven_gather", uneven_gather},
      {"late_barrier", late_barrier}};
  const auto found = kWays.find(what);
  return found == kWays.end() ? "unknown" : found->second();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  std::cout << (lockstep::run(argc > 1 ? argv[1] : "") + "\n") << std::flush;
  return 0;
}

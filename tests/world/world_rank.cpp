// One rank for world_hosts_test.py: joins the world that its environment says, reduces and passes a message
// around, and prints what came of it as one line of JSON. With --desync the last rank takes the first
// operation for another one. With --shrink rank 0 dies, and the others go on without it.
//
// With --steps, for attack.py, it runs steps of a job instead: some work, a reduction, and a call of the
// store. For each byte on rank 0's stdin that prints how long the steps since the last one took; at its end
// all leave.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/backend/operations.h"
#include "lockstep/backend/world.h"

namespace lockstep {
namespace {

using nlohmann::json;

enum class First : std::uint8_t { kSame, kAnother };

Status run(json& answer, First first) {
  LOCKSTEP_ASSIGN(const std::unique_ptr<World> world, World::join());
  Backend& group = world->group();
  const int rank = world->rank().value;
  const int size = world->size().value;

  if (first == First::kAnother && rank == size - 1) return backend::barrier(group);
  std::vector<float> data(100'000, static_cast<float>(rank + 1));
  LOCKSTEP_TRY(backend::all_reduce(group, std::span(data)));
  answer["sum"] = data.front();
  answer["same"] = std::vector<float>(data.size(), data.front()) == data;

  std::vector<float> out(50'000, static_cast<float>(rank));
  std::vector<float> in(out.size());
  const WorkPtr received =
      group.recv(Rank((rank + size - 1) % size), 3, std::as_writable_bytes(std::span(in)));
  const WorkPtr sent = group.send(Rank((rank + 1) % size), 3, std::as_bytes(std::span(out)));
  LOCKSTEP_TRY(received->wait());
  LOCKSTEP_TRY(sent->wait());
  answer["from"] = in.back();

  answer["addresses"] = json::array();
  for (const base::SocketAddress& address : world->rendezvous().addresses)
    answer["addresses"].push_back(address.host());
  return backend::barrier(group);
}

Status run_shrink(json& answer) {
  (void)::signal(SIGTERM, SIG_IGN);  // the launcher asks those that are left to end; they may finish first
  LOCKSTEP_ASSIGN(const std::unique_ptr<World> world, World::join());
  LOCKSTEP_TRY(backend::barrier(world->group()));
  if (world->rank() == Rank{0}) ::raise(SIGKILL);
  answer["heard"] = backend::barrier(world->group()).text();
  LOCKSTEP_ASSIGN(const std::unique_ptr<Backend> group, world->shrink());
  std::vector<float> data(1, static_cast<float>(world->rank().value));
  LOCKSTEP_TRY(backend::all_reduce(*group, std::span(data)));
  answer["sum"] = data.front();
  return {};
}

// Enough for a step of some milliseconds; the reduction is about a quarter of it.
constexpr std::size_t kElements = 256U << 10;
constexpr int kPasses = 20;

void work(std::vector<float>& data) {
  for (int pass = 0; pass < kPasses; ++pass) {
    for (float& value : data) value = value * 0.5F + 1.0F;
  }
}

// The next byte on stdin, 0 while there is none, and nothing at its end.
std::optional<char> next_byte() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (::poll(&input, 1, 0) <= 0) return '\0';
  char byte = 0;
  return ::read(STDIN_FILENO, &byte, 1) == 1 ? std::optional(byte) : std::nullopt;
}

void print_times(std::vector<Duration>& times) {
  std::ranges::sort(times);
  const auto micros = [&times](std::size_t percent) {
    return std::chrono::duration<double, std::micro>(times[(times.size() - 1) * percent / 100]).count();
  };
  json answer{{"steps", times.size()}};
  if (!times.empty()) answer.update({{"p50_us", micros(50)}, {"p90_us", micros(90)}, {"p99_us", micros(99)}});
  std::cout << answer.dump() << std::endl;
  times.clear();
}

// Who says that it is over adds 1 to what is reduced, so that all leave after the same step.
Status run_steps() {
  LOCKSTEP_ASSIGN(const std::unique_ptr<World> world, World::join());
  const bool first = world->rank() == Rank{0};
  std::vector<float> data(kElements);
  std::vector<Duration> times;
  std::cout << json{{"joined", true}}.dump() << std::endl;
  for (bool over = false; !over;) {
    const base::TimePoint start = Clock::steady().now();
    std::optional<char> said = '\0';
    if (first) said = next_byte();
    std::ranges::fill(data, 0.0F);
    work(data);
    const float each = data[1];
    data[0] = said ? 0.0F : 1.0F;
    LOCKSTEP_TRY(backend::all_reduce(world->group(), std::span(data)));
    if (data[1] != each * static_cast<float>(world->size().value)) return Status::internal("a wrong sum");
    LOCKSTEP_TRY(world->rendezvous().store->add("steps", 1).status());
    over = data[0] != 0.0F;
    times.push_back(Clock::steady().now() - start);
    if (first && said.value_or('\0') != '\0') print_times(times);
  }
  return {};
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using lockstep::First;
  const std::string_view mode = argc == 2 ? argv[1] : "";
  nlohmann::json answer;
  const lockstep::Status status =
      mode == "--steps"    ? lockstep::run_steps()
      : mode == "--shrink" ? lockstep::run_shrink(answer)
                           : lockstep::run(answer, mode == "--desync" ? First::kAnother : First::kSame);
  answer["ok"] = status.ok();
  answer["message"] = status.text();
  std::cout << answer.dump() << std::endl;
  return status.ok() ? 0 : 1;
}

// One rank for world_hosts_test.py: joins the world that its environment says, reduces and passes a message
// around, and prints what came of it as one line of JSON. With --desync the last rank takes the first
// operation for another one.
#include <iostream>
#include <nlohmann/json.hpp>
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

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using lockstep::First;
  const bool desync = argc == 2 && std::string_view(argv[1]) == "--desync";
  nlohmann::json answer;
  const lockstep::Status status = lockstep::run(answer, desync ? First::kAnother : First::kSame);
  answer["ok"] = status.ok();
  answer["message"] = status.text();
  std::cout << answer.dump() << std::endl;
  return status.ok() ? 0 : 1;
}

#include "report.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/process.h"

namespace lockstep::chaos {

json to_json(const Status& status) {
  const Cause& cause = status.cause();
  json missing = json::array();
  for (const Rank rank : cause.missing) missing.push_back(rank.value);
  return {{"code", base::code_name(status.code())},
          {"failure", base::failure_name(status.failure())},
          {"rank", cause.rank ? json(cause.rank->value) : json()},
          {"peer", cause.peer ? json(cause.peer->value) : json()},
          {"missing", missing},
          {"op", cause.op},
          {"sequence", cause.sequence ? json(*cause.sequence) : json()},
          {"group", cause.group},
          {"message", status.message()},
          {"where", status.where()}};
}

void report(std::string_view event, json fields) {
  fields["event"] = event;
  fields["at"] = std::chrono::steady_clock::now().time_since_epoch().count();
  // A message may hold whatever a peer has sent.
  const std::string line = fields.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
  (void)!::write(STDOUT_FILENO, line.data(), line.size());
}

json resources() {
  int descriptors = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++descriptors;
  return {{"descriptors", descriptors}, {"threads", base::thread_count()}};
}

json resources_after(const json& before) {
  const Deadline limit = Clock::steady().in(std::chrono::seconds(1));
  json now = resources();
  while (now["threads"] > before["threads"] && !limit.expired()) {
    std::this_thread::yield();
    now = resources();
  }
  return now;
}

}  // namespace lockstep::chaos

// What another agent or a rank of the job has written: never a crash, and what is taken comes back as it was.
#include <cstdlib>
#include <string_view>

#include "lockstep/base/error_file.h"
#include "lockstep/launch/agent_message.h"
#include "lockstep/launch/placement.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::launch;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto message = message_from_json(text); message.ok()) {
    const std::string json = message_to_json(*message);
    const auto again = message_from_json(json);
    require(again.ok() && message_to_json(*again) == json);
    if (message->nodes.size() < 16) static_cast<void>(place_ranks(message->nodes));
  }
  if (const auto card = card_from_json(text); card.ok()) {
    require(card_from_json(card_to_json(*card)).ok());
  }
  if (const auto error = lockstep::base::error_from_json(text); error.ok()) {
    require(lockstep::base::error_from_json(lockstep::base::error_to_json(*error)).ok());
  }
  return 0;
}

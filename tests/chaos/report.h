// What a rank of a chaos test says: one line of JSON per event, on stdout, each with the monotonic time at
// which it happened. Thread safety: any thread; a line is written in one call.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::chaos {

using nlohmann::json;

json to_json(const Status& status);

// `fields` are added to {"event": event, "at": nanoseconds}.
void report(std::string_view event, json fields = json::object());

// How many descriptors and threads this process has now.
json resources();
// The same at its end, once what was joined has gone: a thread is joined when the kernel has cleared its id,
// and counted until it has left the thread group, a moment later. Waits for that at most a second.
json resources_after(const json& before);

}  // namespace lockstep::chaos

#include "plan.h"

#include <algorithm>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::chaos {
namespace {

using transport::link::LinkFaults;

// What is spoilt of links; false if the option is another one.
bool parse_links(LinkFaults& links, std::string_view name, std::int64_t number) {
  const auto unsigned_number = static_cast<std::uint64_t>(number);
  if (name == "--end-after" || name == "--reset-after") {
    links.cut = {.after = unsigned_number,
                 .how = name == "--end-after" ? LinkFaults::How::kEnd : LinkFaults::How::kReset};
  } else if (name == "--flip-bit") {
    links.flip = unsigned_number;
  } else if (name == "--slice") {
    links.most = unsigned_number;
  } else if (name == "--jitter-us") {
    links.jitter = std::chrono::microseconds(number);
  } else if (name == "--connect-jitter-us") {
    links.connect_jitter = std::chrono::microseconds(number);
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool Plan::is_victim(Rank rank) const {
  return std::find(victims.begin(), victims.end(), rank) != victims.end();
}

Result<Plan> Plan::parse(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
    const auto number = base::parse_integer<std::int64_t>(value);
    if (name == "--fault") {
      plan.fault = value;
    } else if (name == "--victims") {
      for (const std::string& rank : base::split(value, ',')) {
        if (const auto parsed = base::parse_integer<int>(rank)) plan.victims.emplace_back(*parsed);
      }
    } else if (!number) {
      return Status::invalid(cat(name, " needs a number, not ", base::quoted(value)));
    } else if (name == "--seed") {
      plan.seed = static_cast<std::uint64_t>(*number);
    } else if (name == "--steps") {
      plan.steps = static_cast<int>(*number);
    } else if (name == "--step") {
      plan.step = static_cast<int>(*number);
    } else if (name == "--delay-us") {
      plan.delay = std::chrono::microseconds(*number);
    } else if (name == "--slow-ms") {
      plan.slow = std::chrono::milliseconds(*number);
    } else if (name == "--stall-ms") {
      plan.stall_after = std::chrono::milliseconds(*number);
    } else if (name == "--timeout-ms") {
      plan.timeout = std::chrono::milliseconds(*number);
    } else if (name == "--memory-checks") {
      plan.memory_checks = *number != 0 ? backend::MemoryChecks::kOn : backend::MemoryChecks::kOff;
    } else if (name == "--tcp-if-no-memory") {
      plan.without_shared_memory =
          *number != 0 ? backend::WithoutSharedMemory::kUseTcp : backend::WithoutSharedMemory::kFail;
    } else if (name == "--encrypt") {
      plan.privacy = *number != 0 ? backend::Privacy::kEncrypt : backend::Privacy::kIntegrity;
    } else if (name == "--largest") {
      plan.largest = static_cast<std::size_t>(*number);
    } else if (name == "--too-much") {
      plan.too_much = Bytes{static_cast<std::uint64_t>(*number)};
    } else if (name == "--heap-capacity") {
      plan.heap_capacity = Bytes{static_cast<std::uint64_t>(*number)};
    } else if (!parse_links(plan.links, name, *number)) {
      return Status::invalid(cat(name, " is no option of a rank"));
    }
  }
  return plan;
}

}  // namespace lockstep::chaos

// The log that the agents of a job share: entries log/1, log/2, ... of their store, read by all in one order.
//
// An entry is written in one step, so an agent that dies while it writes leaves no gap for the others to wait
// at.
//
// Thread safety: one thread; each agent has its own, on the same store.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/launch/agent_message.h"
#include "lockstep/store/store.h"

namespace lockstep::launch {

class SharedLog {
 public:
  // `store` outlives the log.
  explicit SharedLog(Store& store) : store_(store) {}

  // Adds the message as the last entry.
  Status append(const AgentMessage& message, const Deadline& deadline);
  // The next entry that this agent has not read; empty if none has come by the deadline.
  Result<std::optional<AgentMessage>> read(const Deadline& deadline);

 private:
  Store& store_;
  std::int64_t next_ = 1;
};

}  // namespace lockstep::launch

// What the agents of a job tell each other, through the log that they share (job_log.h). JSON on the wire:
// docs/wire/agents.md.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/report.h"
#include "lockstep/launch/worker_environment.h"

namespace lockstep::launch {

struct AgentMessage {
  enum class Kind {
    kReady,   // this node can start the attempt `epoch`
    kRound,   // node 0: all are ready, and this is the setting
    kFailed,  // a rank of this node was the first of it to fail
    kDone,    // all ranks of this node have ended with 0
    kStop,    // this agent was told to stop, by a signal
    kLost,    // node 0: the job is over, because an agent is gone
  };
  Kind kind = Kind::kLost;
  std::uint64_t epoch = 0;
  int node = 0;  // whose message it is

  NodePlan plan = {};                // kReady
  JobSetting job = {};               // kRound
  std::vector<NodePlan> nodes = {};  // kRound
  FailureReport report = {};         // kFailed
  int signal = 0;                    // kStop
  std::string host = {};             // kStop
  std::string text = {};             // kLost: the sentence to print
};

std::string message_to_json(const AgentMessage& message);
// kInvalid if it is none, or holds what no agent can mean: ranks without number, a signal that does not
// exist.
Result<AgentMessage> message_from_json(std::string_view text);

// What node 0 says of the job to whoever comes, before anything else.
struct JobCard {
  int nnodes = 1;
  bool by_arrival = false;  // node ranks are not given, but by arrival
  std::string job_id = {};
  std::string run_id = {};
  int max_restarts = 0;
  std::string host = {};  // of node 0

  bool operator==(const JobCard&) const = default;
};
std::string card_to_json(const JobCard& card);
Result<JobCard> card_from_json(std::string_view text);

}  // namespace lockstep::launch

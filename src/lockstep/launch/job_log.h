// The state of a job as its agents see it: a pure function of the log that all of them read.
//
// Every message of every agent is an entry of one log, in one order. Each agent applies the entries one by
// one and gets the same events, so "the first failure of an attempt" needs no further agreement.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/launch/agent_message.h"
#include "lockstep/launch/coordinator.h"

namespace lockstep::launch {

class JobLog {
 public:
  // `node` is the one that reads.
  JobLog(int nnodes, int node) : node_(node), plans_(static_cast<std::size_t>(nnodes)) {}

  // What the entry means for this agent; nothing for one that comes too late or says nothing new.
  std::optional<AgentEvent> apply(const AgentMessage& message);

  std::uint64_t epoch() const { return epoch_; }
  // All nodes are ready for the current epoch, and no round was made of it yet: node 0 makes it.
  bool wants_round() const { return !round_ && ready_.size() == plans_.size(); }
  // In the order of the nodes; of those that have not come, empty.
  const std::vector<NodePlan>& plans() const { return plans_; }
  // Nodes that are not ready for the current epoch, ascending.
  std::vector<int> missing() const;

 private:
  void enter(std::uint64_t epoch);

  const int node_;
  std::vector<NodePlan> plans_;
  std::uint64_t epoch_ = 0;
  std::set<int> ready_;  // of the current epoch
  bool round_ = false;   // it has begun
  bool over_ = false;    // it has failed or is done
  std::set<int> done_;
};

}  // namespace lockstep::launch

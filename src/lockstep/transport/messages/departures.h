// The Departures of a channel: who of its two ends has left which group.
//
// A receive that waits says nothing to the rank from which it expects its message, so it would not hear that
// this one has left the group. So a rank asks: the other tells it when it leaves, or that it has left.
// Thread safety: none; lives on the strand.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "lockstep/base/status.h"
#include "lockstep/transport/messages/frame.h"

namespace lockstep::transport::messages {

class Channel;

class Departures {
 public:
  // Belongs to the channel.
  explicit Departures(Channel& channel) : channel_(channel) {}

  // Asks the peer, once for each group.
  void ask_on_strand(std::uint64_t group);
  bool has_asked(std::uint64_t group) const { return asked_.contains(group); }
  // How the group has ended at the peer, as far as it was asked and has answered.
  std::optional<Refusal> ended_there(std::uint64_t group) const;
  // The group has ended here: tells the peer, if it has asked.
  void end_group_on_strand(std::uint64_t group);

  // What the peer says. An error means that it does not follow the grammar.
  Status asked_on_strand(const Frame& frame);
  void left_on_strand(const Frame& frame);

 private:
  void say_left_on_strand(std::uint64_t group);

  Channel& channel_;
  std::map<std::uint64_t, Refusal> asked_;  // of the peer; kNone while it is in the group
  std::set<std::uint64_t> wanted_;          // by the peer, of us
};

}  // namespace lockstep::transport::messages

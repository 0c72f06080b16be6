// The Routes of a messenger: the ways to all ranks of its job, each made when it is first needed.
//
// Thread safety: none; lives on the strand.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/transport/messages/channel.h"
#include "lockstep/transport/messages/route.h"

namespace lockstep::transport::messages {

class Routes {
 public:
  // The surroundings are shared with the routes.
  explicit Routes(std::shared_ptr<Surroundings> surroundings);

  // Whether it is a rank of the job; a world of one needs no list of them.
  bool is_member(Rank rank) const;
  bool is_other(Rank rank) const { return is_member(rank) && rank != surroundings_->options.rank; }

  // To a member, and to another rank.
  Route& to_on_strand(Rank rank);
  Channel& channel_on_strand(Rank rank);
  // Those that were made.
  const std::map<Rank, std::shared_ptr<Route>>& made() const { return made_; }

  // What has come from neighbours, and what waits for room in a pipe to them. True if there was something.
  bool move_on_strand();
  // Ends all, and those that are made later. The first call counts.
  void end_on_strand(const Status& why);
  const std::optional<Status>& ended() const { return ended_; }

 private:
  void begin_on_strand(Channel& channel);

  const std::shared_ptr<Surroundings> surroundings_;
  // A Loopback for this rank, a Channel for every other; shared with the callbacks of their connections.
  std::map<Rank, std::shared_ptr<Route>> made_;
  std::vector<Channel*> neighbours_;  // by position in the domain: those that have pipes
  std::optional<Status> ended_;
};

}  // namespace lockstep::transport::messages

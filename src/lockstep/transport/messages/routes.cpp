#include "lockstep/transport/messages/routes.h"

#include "lockstep/transport/messages/loopback.h"
#include "lockstep/transport/messages/neighbour.h"

namespace lockstep::transport::messages {

Routes::Routes(std::shared_ptr<Surroundings> surroundings) : surroundings_(std::move(surroundings)) {
  const std::shared_ptr<shm::Pipes>& pipes = surroundings_->options.pipes;
  if (pipes) neighbours_.resize(static_cast<std::size_t>(pipes->domain().size()));
}

bool Routes::is_member(Rank rank) const {
  const MessengerOptions& options = surroundings_->options;
  return rank == options.rank ||
         (rank.value >= 0 && static_cast<std::size_t>(rank.value) < options.endpoints.size());
}

Route& Routes::to_on_strand(Rank rank) {
  if (is_other(rank)) return channel_on_strand(rank);
  if (!made_.contains(rank)) made_.emplace(rank, std::make_shared<Loopback>(surroundings_));
  return *made_.at(rank);
}

Channel& Routes::channel_on_strand(Rank rank) {
  const auto found = made_.find(rank);
  if (found != made_.end()) return static_cast<Channel&>(*found->second);
  // Known before it begins: should there be no memory for that, it is ended as the others are.
  const auto channel = std::make_shared<Channel>(surroundings_, rank);
  made_.emplace(rank, channel);
  begin_on_strand(*channel);
  return *channel;
}

void Routes::begin_on_strand(Channel& channel) {
  if (ended_) return channel.end_on_strand(*ended_);
  const std::shared_ptr<shm::Pipes>& pipes = surroundings_->options.pipes;
  const auto position = pipes ? pipes->position_of(channel.peer()) : std::nullopt;
  if (!position) return;
  channel.join_on_strand(std::make_unique<Neighbour>(*surroundings_->strand, pipes, *position));
  neighbours_[static_cast<std::size_t>(*position)] = &channel;
}

bool Routes::move_on_strand() {
  bool moved = false;
  for (std::size_t i = 0; i < neighbours_.size(); ++i) {
    const int position = static_cast<int>(i);
    shm::Pipes& pipes = *surroundings_->options.pipes;
    if (neighbours_[i] == nullptr && pipes.has_spoken(position))
      static_cast<void>(channel_on_strand(pipes.domain().rank_of(position)));
    if (neighbours_[i] != nullptr) moved |= neighbours_[i]->move_on_strand();
  }
  return moved;
}

void Routes::end_on_strand(const Status& why) {
  if (!ended_) ended_ = why;
  for (const auto& [rank, route] : made_) route->end_on_strand(*ended_);
}

}  // namespace lockstep::transport::messages

#include "lockstep/transport/messages/mailbox.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace lockstep::transport::messages {
namespace {

bool takes(const Operation& receive, Rank source) { return !receive.peer || *receive.peer == source; }

}  // namespace

OperationPtr Mailbox::take_receive(Key key, Rank source) {
  const auto slot = slots_.find(key);
  if (slot == slots_.end()) return nullptr;
  auto& receives = slot->second.receives;
  const auto found =
      std::ranges::find_if(receives, [&](const OperationPtr& receive) { return takes(*receive, source); });
  if (found == receives.end()) return nullptr;
  OperationPtr receive = std::move(*found);
  receives.erase(found);
  tidy(slot);
  return receive;
}

void Mailbox::keep(Arrival arrival) { slots_[arrival.key].arrivals.push_back(std::move(arrival)); }

std::optional<Arrival> Mailbox::take_arrival(const Operation& receive) {
  const auto slot = slots_.find({.group = receive.group, .tag = receive.tag});
  if (slot == slots_.end()) return std::nullopt;
  auto& arrivals = slot->second.arrivals;
  const auto found =
      std::ranges::find_if(arrivals, [&](const Arrival& arrival) { return takes(receive, arrival.source); });
  if (found == arrivals.end()) return std::nullopt;
  std::optional<Arrival> arrival(std::move(*found));
  arrivals.erase(found);
  tidy(slot);
  return arrival;
}

void Mailbox::post(OperationPtr receive) {
  const Key key{.group = receive->group, .tag = receive->tag};
  slots_[key].receives.push_back(std::move(receive));
}

bool Mailbox::remove_ask(Key key, Rank source, std::uint64_t id) {
  const auto slot = slots_.find(key);
  if (slot == slots_.end()) return false;
  // Those that many senders withdraw at once are the first, one after another.
  auto& arrivals = slot->second.arrivals;
  const auto found = std::ranges::find_if(arrivals, [&](const Arrival& arrival) {
    return arrival.asked && arrival.source == source && arrival.id == id;
  });
  if (found == arrivals.end()) return false;
  arrivals.erase(found);
  tidy(slot);
  return true;
}

void Mailbox::remove_asks_from(Rank source) {
  for (auto slot = slots_.begin(); slot != slots_.end(); slot = tidy(slot)) {
    slot->second.arrivals.remove_if(
        [&](const Arrival& arrival) { return arrival.asked && arrival.source == source; });
  }
}

std::vector<std::pair<OperationPtr, Status>> Mailbox::withdraw(const Why& why) {
  std::vector<std::pair<OperationPtr, Status>> withdrawn;
  for (auto slot = slots_.begin(); slot != slots_.end(); slot = tidy(slot)) {
    slot->second.receives.remove_if([&](const OperationPtr& receive) {
      const auto status = why(*receive);
      if (status) withdrawn.emplace_back(receive, *status);
      return status.has_value();
    });
  }
  return withdrawn;
}

Mailbox::Ended Mailbox::end_group(std::uint64_t group, const Status& why) {
  ended_.emplace(group, why);
  const auto begin = slots_.lower_bound({.group = group, .tag = 0});
  const auto end = slots_.upper_bound({.group = group, .tag = std::numeric_limits<std::uint64_t>::max()});
  Ended ended;
  for (auto slot = begin; slot != end; ++slot) {
    std::ranges::move(slot->second.receives, std::back_inserter(ended.receives));
    std::ranges::move(slot->second.arrivals, std::back_inserter(ended.arrivals));
  }
  slots_.erase(begin, end);
  return ended;
}

void Mailbox::leave_group(std::uint64_t group) {
  ended_.erase(group);
  left_.add(group);
}

const Status* Mailbox::ended(std::uint64_t group) const {
  if (const auto found = ended_.find(group); found != ended_.end()) return &found->second;
  return left_.contains(group) ? &left_status_ : nullptr;
}

Mailbox::Slots::iterator Mailbox::tidy(Slots::iterator slot) {
  const bool empty = slot->second.receives.empty() && slot->second.arrivals.empty();
  return empty ? slots_.erase(slot) : std::next(slot);
}

}  // namespace lockstep::transport::messages

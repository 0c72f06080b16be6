// A Mailbox brings receives and arrived messages together, by group, sender and tag.
//
// Of a key, receives are kept in the order of their calls and messages in the order of their arrival; each
// takes the first that fits. A receive and a message that fit never wait beside each other.
// Thread safety: none; lives on the strand. Does no I/O and calls nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/messages/operation.h"
#include "lockstep/transport/recent_ids.h"

namespace lockstep::transport::messages {

struct Key {
  std::uint64_t group = 0;
  std::uint64_t tag = 0;
  auto operator<=>(const Key&) const = default;
};

// A message that no receive has taken yet.
struct Arrival {
  Key key = {};
  Rank source{0};
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  bool asked = false;  // its sender has asked, and still holds the payload
  Buffer payload = {};
};

class Mailbox {
 public:
  struct Ended {
    std::vector<OperationPtr> receives = {};
    std::vector<Arrival> arrivals = {};
  };

  // Removes the receive that takes a message from `source`; null if there is none.
  OperationPtr take_receive(Key key, Rank source);
  // For a message that take_receive() had nothing for.
  void keep(Arrival arrival);
  // Removes the message that the receive takes.
  std::optional<Arrival> take_arrival(const Operation& receive);
  // For a receive that take_arrival() had nothing for.
  void post(OperationPtr receive);

  // Removes a message whose sender has asked. False if it is not here.
  bool remove_ask(Key key, Rank source, std::uint64_t id);
  void remove_asks_from(Rank source);
  // Removes the receives that `why` says, and gives them with it.
  std::vector<std::pair<OperationPtr, Status>> withdraw(const Why& why);

  // Removes all of the group's, and remembers why it has ended. The first call counts.
  Ended end_group(std::uint64_t group, const Status& why);
  // Nobody here asks for the group any more. It counts as ended; only its number is remembered, and only
  // those of the last kLeft.
  static constexpr std::size_t kLeft = 1024;
  void leave_group(std::uint64_t group);
  // Null while it lives.
  const Status* ended(std::uint64_t group) const;
  // How many groups it remembers.
  std::size_t remembered() const { return ended_.size() + left_.size(); }

 private:
  struct Slot {
    std::list<OperationPtr> receives;
    std::list<Arrival> arrivals;
  };
  using Slots = std::map<Key, Slot>;
  // To the next one; a slot with nothing in it goes.
  Slots::iterator tidy(Slots::iterator slot);

  Slots slots_;
  std::map<std::uint64_t, Status> ended_;  // whose owners are still here
  RecentIds left_{kLeft};
  const Status left_status_ = Status::aborted("this rank has left the group", {.failure = Failure::kClosed});
};

}  // namespace lockstep::transport::messages

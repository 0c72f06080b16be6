// A send or a receive, from its call until its callback is about to be called; and what its errors say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/messages/frame.h"
#include "lockstep/transport/messages/messenger.h"
#include "lockstep/transport/messages/strand.h"

namespace lockstep::transport::messages {

enum class Direction : bool { kSend, kRecv };

// Thread safety: none; lives on the strand.
struct Operation {
  Direction direction = Direction::kSend;
  Rank self{0};
  std::uint64_t group = 0;
  std::optional<Rank> peer = {};  // none: from any rank
  Senders others = {};            // then who that may be besides this one, if it is known
  std::uint64_t tag = 0;
  ByteSpan bytes = {};  // a send's are only read
  base::TimePoint started{};
  base::TimePoint deadline{};
  Received done = {};

  std::uint64_t id = 0;   // of a message that was announced to its receiver
  std::size_t moved = 0;  // of a message that comes or goes in pieces
  // Set while a connection holds its bytes: what it will end with unless the message gets through.
  std::optional<Status> withdrawn = {};
  base::TimePoint withdrawn_at{};

  // "send of 4.0 KiB to rank 1 (tag 7)"
  std::string text() const;
  // "rank 0: send of ... (tag 7): " before what the status says; code and failure are kept.
  Status blame(const Status& status) const;
  // The same with `other` as the one it is about: of a receive from any rank, whom the message came from.
  Status blame(const Status& status, std::optional<Rank> other) const;
  Status timed_out(base::TimePoint now) const;
};
// Shared with the callback of the connection that holds its bytes.
using OperationPtr = std::shared_ptr<Operation>;

// The callback is called after this turn, unless it was before. `source` is where the message came from, of a
// receive that has met one.
void complete_on_strand(Strand& strand, Operation& operation, const Status& status,
                        std::optional<Rank> source = {});

// All operations that have not been completed, so that none is lost with whoever was at work on it when there
// was no memory. Thread safety: none; lives on the strand.
class Started {
 public:
  void add(OperationPtr operation);
  // Those that only this knows of.
  void complete_lost_on_strand(Strand& strand, const Status& why);

 private:
  // Some may be completed already: they go when there are many.
  std::vector<OperationPtr> operations_;
  std::size_t many_ = 64;
};

// Why an operation is withdrawn; none: it is not.
using Why = std::function<std::optional<Status>(const Operation&)>;

// Whether it is something that a process asks for and cannot have.
bool is_want(Failure failure);
// Of an operation whose other side has another size.
Status unequal(const Operation& operation, Rank other, std::uint64_t size);
// Of one whose other side has withdrawn `what`, in the middle of the message. With kRemoteError if its group
// has failed there: what it has failed of is on its way.
Status withdrawn(const Operation& operation, Rank other, Refusal why, std::string_view what);

}  // namespace lockstep::transport::messages

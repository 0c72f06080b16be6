// A Transfer is what one operation has given to MPI: requests under way, and the memory that they use.
//
// Memory: bytes that the caller keeps alive for as long as MPI may need (`keep`) are used where they lie;
// others are copied, because MPI cannot be stopped and the caller may free them after a timeout.
//
// Thread safety: one thread at a time.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/backend/mpi/library.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::backend::mpi {

// A wait for MPI, which has none with a deadline: tests at once, then gives way to other threads, then sleeps
// for longer and longer, a millisecond at most.
class Pause {
 public:
  void operator()();
  // How often it has waited.
  int count() const { return count_; }

 private:
  int count_ = 0;
};

// The most bytes that one call of MPI is given; its counts are ints.
constexpr std::size_t kLargestPiece = std::size_t{1} << 30;

// How many bytes a message has.
std::size_t size_of(const MPI_Status& status);

// Bytes as one message of any size.
class MessageType {
 public:
  static Result<MessageType> of(std::size_t bytes);
  ~MessageType();
  MessageType(MessageType&& other) noexcept;
  MessageType& operator=(MessageType&&) = delete;

  MPI_Datatype type() const { return type_; }
  int count() const { return count_; }

 private:
  MessageType(MPI_Datatype type, int count) : type_(type), count_(count) {}
  MPI_Datatype type_;
  int count_;
};

class Transfer final : public Abandoned {
 public:
  explicit Transfer(std::shared_ptr<const void> keep) : keep_(std::move(keep)) {}

  // Whether bytes of the caller can be given to MPI as they are.
  bool uses_bytes_in_place() const { return keep_ != nullptr; }
  // Memory of this transfer's own, not initialised.
  ByteSpan memory(std::size_t size);
  // Numbers that MPI reads until the transfer is complete.
  std::vector<int>& numbers(std::size_t count);
  // What MPI may read for the caller's `bytes`.
  const std::byte* readable(ByteView bytes);

  // Where to put the next request; the caller fills it at once.
  MPI_Request* next_request();
  // A message of these bytes, which stay where they are.
  Status send(ByteView bytes, int peer, int tag, MPI_Comm comm);
  // Of a message that is surely not larger.
  Status receive(ByteSpan bytes, int peer, int tag, MPI_Comm comm);
  // Looks at the size of the message before it is let in: where a message is larger than what was expected,
  // MPI libraries have been seen to write behind the end. Those of one peer are received in this order.
  void receive_checked(ByteSpan bytes, int peer, int tag, MPI_Comm comm) {
    expected_.push_back({.bytes = bytes, .peer = peer, .tag = tag, .comm = comm});
  }
  // To be done when all requests are complete, in this order.
  void then(std::function<void()> step) { steps_.push_back(std::move(step)); }

  // Whether all requests are complete. Their first error; kDesync for a message of another size.
  Result<bool> test();
  // Until all are complete; then what was to be done is done. `look` is asked now and then, and an error of
  // it ends the wait, as the deadline does with kTimeout.
  Status wait(const Deadline& deadline, const std::function<Status()>& look);
  // The peers from whom nothing has come that receive() waits for; those receives are withdrawn.
  std::vector<int> withdraw_receives();
  bool under_way() const;

  bool given_back() override;

 private:
  struct Expected {
    ByteSpan bytes;
    int peer;
    int tag;
    MPI_Comm comm;
  };
  struct Posted {
    std::size_t request;
    int peer;
  };
  // Begins to receive what has come of what is expected.
  Status let_in();
  // True if it has come.
  Result<bool> let_in(const Expected& expected);

  std::shared_ptr<const void> keep_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
  std::deque<std::vector<int>> numbers_;
  std::vector<MPI_Request> requests_;
  std::vector<Expected> expected_;  // that have not come
  std::vector<Posted> posted_;
  std::vector<MessageType> types_;  // of the requests
  std::vector<std::function<void()>> steps_;
  std::size_t complete_ = 0;  // so many of the first requests
};

}  // namespace lockstep::backend::mpi

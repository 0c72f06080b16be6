// A Window over the heaps of this host and messages to others.
//
// Each rank has one block in its heap (window_memory.h). Peers of its host use it directly. Others ask the
// WindowAttendant, which there is only where the group spans hosts, with a WindowRequest by message:
//
//   put      the request, then the bytes; answered by one byte when they are written
//   get      the request; answered by the bytes
//   leave    the request alone: the peer will ask and answer nothing any more
//   signal   one byte, for the thread that waits for it, not for the attendant
//
// Grammar: docs/wire/windows.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/backend/native/window_attendant.h"
#include "lockstep/backend/native/window_memory.h"
#include "lockstep/backend/window.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/transport/shm/domain.h"
#include "lockstep/transport/shm/wait.h"

namespace lockstep::backend {

struct NativeWindowParts {
  std::unique_ptr<Backend> group;
  // Nothing in a world of one. Shared with the memory that the window has given out.
  std::shared_ptr<transport::shm::Domain> domain;
  transport::shm::Patience patience;
};

class NativeWindow final : public Window {
 public:
  static Result<std::unique_ptr<NativeWindow>> make(NativeWindowParts parts, Bytes size, const Clock& clock);
  ~NativeWindow() override;

  Backend& group() override { return *parts_.group; }
  SharedMemory memory() const override;
  Bytes size_of(Rank rank) const override { return sizes_[static_cast<std::size_t>(rank.value)]; }

  Status put(Rank to, std::uint64_t offset, ByteView bytes, const OpOptions& options) override;
  Status get(Rank from, std::uint64_t offset, ByteSpan bytes, const OpOptions& options) override;
  Status signal(Rank to, const OpOptions& options) override;
  Status wait_signal(Rank from, const OpOptions& options) override;
  Result<SharedMemory> map(Rank rank) const override;

 private:
  struct Announcement;
  class SignalWatch;
  // What this rank knows of another one's signals.
  struct Heard {
    std::uint32_t taken = 0;  // so many were waited for
    WorkPtr next = {};        // from another host: the message that will be the next one
  };

  NativeWindow(NativeWindowParts parts, const Clock& clock);
  Status exchange(const Result<std::shared_ptr<OwnWindowBlock>>& own, Bytes size);
  Status reach_all(const std::vector<Announcement>& all);
  Status admit(const char* op, Rank peer) const;
  Status check_range(const char* op, Rank peer, std::uint64_t offset, std::size_t size) const;
  // In this host's memory; nothing for a rank of another host.
  const WindowBlock* block_of(Rank rank) const;
  Deadline deadline_of(const OpOptions& options) const;
  Status described(const char* op, Rank peer, const Status& status) const;
  Status missing_signal(Rank from) const;
  Status has_left(Rank rank) const;
  bool is_gone(Rank peer) const;
  // Until the message is done, or its peer has left.
  Status await(Rank peer, Work& work, std::optional<Deadline> deadline);
  Status wait_here(Rank from, const WindowBlock& own, const WindowBlock& peer, const Deadline& deadline);
  Status wait_message(Rank from, const Deadline& deadline);

  NativeWindowParts parts_;
  const Clock& clock_;
  std::vector<Bytes> sizes_;                  // by rank
  std::shared_ptr<OwnWindowBlock> own_;       // shared with the memory that was given out
  std::shared_ptr<const WindowReach> reach_;  // shared with mapped memory
  std::vector<Heard> heard_;                  // by rank; each used by the one thread that waits for that rank
  std::atomic<std::uint64_t> requests_ = 0;
  Mutex signalling_;                            // a Signal has one writer at a time
  std::unique_ptr<WindowAttendant> attendant_;  // where the group spans hosts
};

}  // namespace lockstep::backend

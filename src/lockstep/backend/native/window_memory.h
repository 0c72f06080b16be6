// The memory of a window: one block in each rank's heap, and who still uses it.
//
// A block is what its peers count (WindowControl), a Signal for each member, then the bytes.
// Thread safety: any thread, once it is made.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/transport/shm/domain.h"
#include "lockstep/transport/shm/wait.h"

namespace lockstep::backend {

// Zero-filled memory is a valid WindowControl.
struct WindowControl {
  alignas(128) std::atomic<std::uint32_t> left;  // how many peers will never use this block again
  std::atomic<std::uint32_t> gone;               // 1: its owner has destroyed the window
};

// Where the parts of a rank's block are, in this process.
struct WindowBlock {
  WindowBlock(std::byte* start, int members)
      : control(reinterpret_cast<WindowControl*>(start)),
        signals(reinterpret_cast<transport::shm::Signal*>(start + sizeof(WindowControl))),
        data(start + header_size(members)) {}
  static std::size_t header_size(int members) {
    return sizeof(WindowControl) + static_cast<std::size_t>(members) * sizeof(transport::shm::Signal);
  }
  WindowControl* control;
  transport::shm::Signal* signals;  // by member: what it has signalled to the owner
  std::byte* data;
};

// This rank's block, zero-filled. It goes when nobody here and no peer uses it any more.
class OwnWindowBlock {
 public:
  // Without a domain, of a world of one, it is plain memory.
  static Result<std::shared_ptr<OwnWindowBlock>> make(std::shared_ptr<transport::shm::Domain> domain,
                                                      Bytes size, int members);
  ~OwnWindowBlock();
  OwnWindowBlock(const OwnWindowBlock&) = delete;
  OwnWindowBlock& operator=(const OwnWindowBlock&) = delete;

  const WindowBlock& block() const { return block_; }
  std::uint64_t offset() const { return offset_; }
  // How many peers use it; none at first. Nothing while they are being told: if it goes then, its place is
  // never used again.
  void set_users(std::optional<std::uint32_t> count) { users_ = count; }

 private:
  OwnWindowBlock(std::shared_ptr<transport::shm::Domain> domain, std::uint64_t offset, std::byte* start,
                 int members)
      : domain_(std::move(domain)), offset_(offset), start_(start), block_(start, members) {}

  const std::shared_ptr<transport::shm::Domain> domain_;  // shared with the world and its other memory
  const std::uint64_t offset_;
  std::byte* const start_;
  const WindowBlock block_;
  const std::uint64_t fork_generation_ = base::fork_generation();
  std::optional<std::uint32_t> users_ = 0;
};

// The blocks of all members of this host; while it lives, their owners know that they are used.
class WindowReach {
 public:
  explicit WindowReach(std::shared_ptr<transport::shm::Domain> domain) : domain_(std::move(domain)) {}
  ~WindowReach();
  WindowReach(const WindowReach&) = delete;
  WindowReach& operator=(const WindowReach&) = delete;

  // In the order of the members' ranks.
  void add_own(const WindowBlock& block) { blocks_.emplace_back(block); }
  void add_peer(const WindowBlock& block);
  void add_far() { blocks_.emplace_back(); }

  // Nothing for a rank of another host.
  const std::optional<WindowBlock>& block(Rank rank) const {
    return blocks_[static_cast<std::size_t>(rank.value)];
  }
  std::uint32_t peers() const { return static_cast<std::uint32_t>(peers_.size()); }
  bool spans_hosts() const { return peers() + 1 < blocks_.size(); }
  std::uint64_t fork_generation() const { return fork_generation_; }

 private:
  const std::shared_ptr<transport::shm::Domain> domain_;  // keeps the mappings
  const std::uint64_t fork_generation_ = base::fork_generation();
  std::vector<std::optional<WindowBlock>> blocks_;  // by rank
  std::vector<WindowBlock> peers_;
};

}  // namespace lockstep::backend

// A Domain is the ranks of one host with each other's heaps mapped.
//
// Joining passes descriptors over abstract unix sockets: the other side must run as the same user
// (SO_PEERCRED) and know the job's secret (the handshake of docs/wire/handshake.md). Nothing that was
// exchanged has a name in the file system.
//
// Thread safety: after it is made, any thread; but nobody uses a heap while renew() runs.
// Ownership: owns the mappings; outlives every Board on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/store/store.h"
#include "lockstep/store/watched_wait.h"
#include "lockstep/transport/shm/heap.h"

namespace lockstep::transport::shm {

struct DomainOptions {
  // Behaviour.
  std::vector<Rank> members;   // the world ranks on this host, ascending; the same list on each of them
  Rank rank;                   // one of them
  std::vector<int> pids = {};  // of the members, for noticing a death; empty if that is not wanted
  std::string job_id;
  std::uint64_t epoch = 0;
  Secret secret = Secret::insecure();
  store::Look look = {};  // what ends the wait for members that have not come
  // Performance: address space for each rank's heap, the same on all; no memory is taken.
  Bytes heap_capacity = Bytes::gib(64);
};

class Domain {
 public:
  // Every member calls it. Addresses meet in `store` under "heap/". The error names the rank that did not
  // come.
  static Result<std::unique_ptr<Domain>> join(const DomainOptions& options, store::Store& store,
                                              const Deadline& deadline);
  // For ranks that are threads of one process: all of them at once, over one mapping per heap.
  static Result<std::vector<std::unique_ptr<Domain>>> of_threads(const std::vector<Rank>& members,
                                                                 Bytes heap_capacity);

  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  // After a failure: the members at the positions `stay` (ascending, ours among them) go on without the
  // others. Each of them calls it. Where one of the others may still live, each moves house first, so that
  // what that one writes late is written where nobody reads; then they map each other's heaps anew. Addresses
  // and contents stay. `name` is where they meet in the store, used once. On an error some may have moved:
  // call it again, with those that are still there. kNoSpace if there is no memory to move.
  Status renew(const std::vector<int>& stay, const std::string& name, store::Store& store,
               const Deadline& deadline, const store::Look& look);

  // Positions, not world ranks: 0 to size() - 1.
  int index() const { return index_; }
  int size() const { return static_cast<int>(members_.size()); }
  Rank rank_of(int index) const { return members_[static_cast<std::size_t>(index)]; }

  // True once the member's process has ended, however; false if it has no process of its own.
  bool is_dead(int index) const;

  Heap& heap() { return *heap_; }
  // Frees a range of our heap once `left` is `expected`: peers count it up when they have done with
  // it. One that died never does; its share stays until the domain goes, and so does a range that there is no
  // memory to remember. Looked at whenever a range is retired.
  void retire(std::uint64_t offset, const std::atomic<std::uint32_t>& left, std::uint32_t expected);
  // A place in a member's heap, for an offset that came from that member: nullptr unless all of it is inside.
  std::byte* at(int index, std::uint64_t offset, Bytes size) const;

 private:
  struct View {
    std::byte* data = nullptr;
    Bytes capacity;
  };
  struct Retired {
    std::uint64_t offset;
    const std::atomic<std::uint32_t>* left;
    std::uint32_t expected;
  };
  Domain() = default;

  Status move_away_from_others(const std::vector<int>& stay);

  DomainOptions options_;
  std::vector<Rank> members_;
  int index_ = 0;
  std::shared_ptr<Heap> heap_;       // shared with the domains of the other threads, which only keep it alive
  std::vector<View> views_;          // by index, our own included
  std::map<int, Segment> peers_;     // by index: the mappings behind the views of other processes
  std::set<int> moved_from_;         // who maps pages that nobody uses any more
  std::vector<UniqueFd> processes_;  // pidfds, by index; an empty one where none is watched
  std::vector<std::shared_ptr<Heap>> neighbours_;  // the heaps behind the views of other threads
  Mutex mutex_;
  std::vector<Retired> retired_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::transport::shm

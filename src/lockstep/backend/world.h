// A World is this process's place among all ranks of a job, and what it needs to communicate with them.
// Groups are made from it.
//
//   auto world = lockstep::World::join();                        // env:// by default; alone, a world of one
//   lockstep::Backend& all = world->group();
//   auto pair = world->new_group({Rank{0}, Rank{2}});            // called by ranks 0 and 2 alone
//
// Thread safety: any thread; the ranks of a new group must make their groups in the same order.
// Lifetime: outlives its groups (this is checked). Destruction leaves; the order between ranks does not
// matter.
// In a forked child every operation is kForked, and destruction touches nothing of the parent's.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep::backend {

// What becomes of ranks of one host that cannot have shared memory.
enum class WithoutSharedMemory : std::uint8_t { kFail, kUseTcp };
// How bytes between hosts are protected. Every frame is checked by CRC32C; kEncrypt adds AES-128-GCM.
enum class Privacy : std::uint8_t { kIntegrity, kEncrypt };

struct GroupOptions {
  // Behaviour.
  std::optional<std::string> name = {};  // else made from the members
  Duration timeout = kDefaultOpTimeout;
};

struct WorldOptions {
  // Behaviour.
  RendezvousOptions rendezvous = {};
  Duration timeout = kDefaultOpTimeout;  // of an operation
  // A rank that does not move for so long is lost: stopped, starved, or cut off.
  Duration stall_after = std::chrono::seconds(5);
  WithoutSharedMemory without_shared_memory = WithoutSharedMemory::kFail;
  Privacy privacy = Privacy::kIntegrity;
  // Performance.
  Bytes staging = Bytes::mib(1);  // per group and rank, twice; the same on all ranks
  // Threads that a rank uses for a large operation, the calling one included; else what cores are left over.
  std::optional<int> threads = {};
  int streams = 1;  // sockets between two ranks of different hosts
};

// Memory that the ranks of this host can reach: operations use it where it lies. Freed with its last copy,
// once no rank can still be reading it.
struct SharedMemory {
  ByteSpan bytes = {};
  std::shared_ptr<const void> owner = {};
};

class World {
 public:
  // kInvalid, kTimeout and the rest as rendezvous(); kNoSpace if there is no shared memory.
  // Without an environment: the process's own, which also says what is logged (LOCKSTEP_LOG).
  static Result<std::unique_ptr<World>> join(const WorldOptions& options = {});
  static Result<std::unique_ptr<World>> join(const WorldOptions& options, const Environment& environment);
  virtual ~World() = default;

  virtual const Rendezvous& rendezvous() const = 0;
  Rank rank() const { return rendezvous().rank; }
  WorldSize size() const { return rendezvous().world_size; }

  // All ranks.
  virtual Backend& group() = 0;
  // `members` in the order of their ranks in the group; this rank is one of them.
  virtual Result<std::unique_ptr<Backend>> new_group(const std::vector<Rank>& members,
                                                     const GroupOptions& options = {}) = 0;
  // Plain memory in a world of one.
  virtual Result<SharedMemory> allocate(Bytes size) = 0;
};

}  // namespace lockstep::backend

namespace lockstep {
using backend::GroupOptions;
using backend::SharedMemory;
using backend::World;
using backend::WorldOptions;
}  // namespace lockstep

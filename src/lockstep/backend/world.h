// A World is this process's place among all ranks of a job, over shared memory and TCP: groups are made from
// it, memory that other ranks can reach, and a smaller world after a failure.
//
//   auto world = lockstep::World::join();                        // env:// by default; alone, a world of one
//   lockstep::Backend& all = world->group();
//   auto pair = world->new_group({Rank{0}, Rank{2}});            // called by ranks 0 and 2 alone
//   auto half = world->split(all, {.color = rank % 2});          // called by all ranks of the group
//
// After a failure shrink() gives those that are left a group of their own, with no new rendezvous.
//
// Thread safety: any thread; the ranks of a new group must make their groups in the same order.
// Lifetime: as Groups; what group() refers to goes with it. Destruction leaves, and the order between ranks
// does not matter. It waits for threads of this world, so it does not happen in a completion callback. Rank
// 0's, where it serves the store, waits up to 2 s for the others to leave first (30 s for those whose world
// is still being made), so that none of them loses the store. In a forked child every operation is kForked,
// and destruction touches nothing of the parent's.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend/rendezvous_groups.h"
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
// When the sockets between two ranks of different hosts are made: with the first operation that needs them,
// or with their group. The first costs less where there are many ranks: few operations use all pairs.
enum class Connect : std::uint8_t { kOnFirstUse, kAtStart };

// Whether collectives and messages check by CRC32C what ranks of one host read from each other's memory,
// where the network is checked anyway. For machines whose memory is in doubt: everything is staged, and read
// once more by every rank. What ranks say of their operations is checked always. Windows are not: their
// memory is written by whoever likes.
enum class MemoryChecks : std::uint8_t { kOff, kOn };

struct ShrinkOptions {
  // Behaviour.
  std::vector<Rank> exclude = {};  // in the world: they are out whatever they do
  // Of each of its steps: how long to wait for a rank that is not known to be lost. Who does not come in this
  // time is left out.
  Duration patience = std::chrono::seconds(30);
  GroupOptions group = {};  // of the group that it gives
};

struct WorldOptions {
  // Behaviour.
  RendezvousOptions rendezvous = {};
  Duration timeout = kDefaultOpTimeout;  // of an operation
  // A rank that does not move for so long is lost: stopped, starved, or cut off.
  Duration stall_after = std::chrono::seconds(5);
  WithoutSharedMemory without_shared_memory = WithoutSharedMemory::kFail;
  Privacy privacy = Privacy::kIntegrity;
  MemoryChecks memory_checks = MemoryChecks::kOff;  // the same on all ranks
  // Performance.
  // Address space for each rank's shared memory, of which it takes what it uses; the same on all ranks. Every
  // rank maps those of all ranks of its host.
  Bytes heap_capacity = Bytes::gib(64);
  // Per group and rank, twice; four times as much where several ranks of each host talk to another one. The
  // same on all ranks: 16 KiB at least, and 1 KiB for each rank of a host.
  Bytes staging = Bytes::mib(1);
  // Threads that a rank uses for a large operation, the calling one included; else what cores are left over.
  std::optional<int> threads = {};
  int streams = 1;                         // sockets between two ranks of different hosts; 1 to 65535
  Connect connect = Connect::kOnFirstUse;  // the same on all ranks
  // Of sockets to other ranks, as Linux names it. Empty: the system's, but cubic instead of bbr. What the
  // system does not allow is left.
  std::string congestion_control = {};
};

// Memory that the ranks of this host can reach: operations use it where it lies. Freed with its last copy,
// once no rank can still be reading it.
struct SharedMemory {
  ByteSpan bytes = {};
  std::shared_ptr<const void> owner = {};
};

class World : public RendezvousGroups {
 public:
  // kInvalid, kTimeout and the rest as rendezvous(); kInvalid also for options that cannot be worked with;
  // kNoSpace if there is no shared memory.
  // Without an environment: the process's own, which also says what is logged (LOCKSTEP_LOG).
  static Result<std::unique_ptr<World>> join(const WorldOptions& options = {});
  static Result<std::unique_ptr<World>> join(const WorldOptions& options, const Environment& environment);

  // Called by all ranks that are left, mostly after a failure: they agree on who that is, and go on without
  // those that are dead, have stopped, cannot be reached, do not come or are excluded. Gives their group, in
  // the order of their ranks in the world; all who get it have the same. Works when others die meanwhile.
  //
  // Every earlier group ends with it: make those that are needed anew. Shared memory stays where it is, with
  // its contents, and a rank that was left out cannot change a byte of it any more, if it comes back; what an
  // operation was working on when it failed should be written anew afterwards. No thread uses it, and no
  // other call of this world runs, meanwhile.
  // kLeftOut for a rank that the others go on without, now and from every later call. kStoreLost if the store
  // is gone or does not answer; then nobody can shrink. So it is after the death of rank 0 where that serves
  // the store: env:// without a launcher, tcp://, spawn(). Under `lockstep run` the launcher serves it.
  virtual Result<std::unique_ptr<Backend>> shrink(const ShrinkOptions& options = {}) = 0;
  // Plain memory in a world of one.
  virtual Result<SharedMemory> allocate(Bytes size) = 0;
};

}  // namespace lockstep::backend

namespace lockstep {
using backend::SharedMemory;
using backend::ShrinkOptions;
using backend::World;
using backend::WorldOptions;
}  // namespace lockstep

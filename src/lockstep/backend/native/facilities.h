// The Facilities of a world are what its groups stand on: memory that the ranks of a host share, the door and
// the mail to the others, the monitor that watches them.
//
// Lifetime: shared by the world and its groups, so that what a group refers to is there as long as the group.
// The world closes them when it is destroyed; a group that is still there is of no use then, and says so.
// Thread safety: any thread, once set_up() has returned.
// In a forked child each of the parts knows what is the parent's.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "lockstep/backend/helper_pool.h"
#include "lockstep/backend/living_groups.h"
#include "lockstep/backend/native/mail.h"
#include "lockstep/backend/native/memory_reserve.h"
#include "lockstep/backend/native/monitor.h"
#include "lockstep/backend/native/native_group.h"
#include "lockstep/backend/native/occupancy.h"
#include "lockstep/backend/world.h"
#include "lockstep/transport/link/door.h"
#include "lockstep/transport/link/socket_calls.h"
#include "lockstep/transport/shm/domain.h"

namespace lockstep::backend {

class Facilities final : public std::enable_shared_from_this<Facilities> {
 public:
  // `calls` are those of the links between hosts; they outlive the facilities.
  Facilities(const WorldOptions& options, Rendezvous rendezvous, const Clock& clock,
             transport::link::SocketCalls& calls);
  Facilities(const Facilities&) = delete;
  Facilities& operator=(const Facilities&) = delete;

  // Called by all ranks, before anything else.
  Status set_up();
  // Ends the groups that live, and leaves the world. Not in a forked child.
  void close();

  const WorldOptions& options() const { return options_; }
  const Clock& clock() const { return clock_; }
  const Rendezvous& rendezvous() const { return rendezvous_; }
  Rank rank() const { return rendezvous_.rank; }
  bool in_forked_child() const;
  // Nothing in a world of one.
  const std::shared_ptr<transport::shm::Domain>& domain() const { return domain_; }
  Monitor* monitor() { return monitor_.get(); }
  Mail& mail() { return *mail_; }
  transport::shm::Patience patience() const;
  transport::shm::PayloadChecks payload_checks() const;
  // The world is made; see Seat::settle().
  void settle();

  // `options` have a name; `identity` is the same on all members, and no other group's.
  Result<std::unique_ptr<Backend>> make_group(const std::vector<Rank>& members, const GroupOptions& options,
                                              std::string_view identity, const Deadline& deadline);
  // As LivingGroups::for_each().
  Status for_each_group(const std::function<Status(NativeGroup&)>& use) { return groups_.for_each(use); }
  // Nothing outside refers to the group's communicator afterwards.
  void forget(std::uint64_t group);
  // Why a group of them cannot be made; ok if nobody is lost.
  Status first_lost(const std::vector<Rank>& members) const;
  // kStoreLost if any rank of the world is lost, which may be the one that serves the store, and the store
  // has not answered for as long as a rank may be silent. Asked by who waits for something in the store.
  // `named` are lost, too: the monitor may not know it.
  Status look_at_store(std::set<Rank> named = {}) const;

 private:
  // Once it is known what each of these ranks runs on.
  void share_cores(std::span<const Cores> neighbours, std::size_t own);

  // The steps of set_up().
  Status share_memory(const Deadline& deadline);
  Status tune(const Deadline& deadline);
  Status open_door(const Deadline& deadline);
  Status start_monitor(const Deadline& deadline);
  Status open_mail(const Deadline& deadline);
  store::Look look_while_joining() const;

  WorldSize size() const { return rendezvous_.world_size; }
  transport::Identity identity() const;
  // The same on all members.
  Bytes staging_of(const transport::Layout& layout) const;
  Result<std::unique_ptr<transport::Communicator>> connect(std::uint64_t id, int position,
                                                           const std::vector<Rank>& members,
                                                           const Deadline& deadline);
  Result<std::unique_ptr<transport::shm::Board>> make_board(std::uint64_t id, const transport::Layout& layout,
                                                            int position, const std::vector<Rank>& members,
                                                            const Deadline& deadline);
  Result<std::unique_ptr<transport::link::Links>> make_links(std::uint64_t id, int position,
                                                             const std::vector<Rank>& members,
                                                             const transport::shm::Board& board);
  // Something is missing here without which no message can be sent or received, to one rank or to all: its
  // groups have failed.
  void lose_messages(const Status& why, std::optional<Rank> peer);

  const WorldOptions options_;
  const Clock& clock_;
  transport::link::SocketCalls& calls_;
  Rendezvous rendezvous_;
  const std::uint64_t fork_generation_;
  std::vector<int> host_of_;  // by rank; equal for ranks that share memory
  Occupancy occupancy_;
  // Shared with the memory that the world has given out.
  std::shared_ptr<transport::shm::Domain> domain_;
  MemoryReserve reserve_;
  HelperPool helpers_;
  collective::Means means_{.tuning = {}, .helpers = helpers_};
  std::unique_ptr<transport::link::Door> door_;          // nothing on one host
  std::vector<std::vector<base::SocketAddress>> doors_;  // by rank
  LivingGroups<NativeGroup> groups_;
  std::unique_ptr<Mail> mail_;
  std::unique_ptr<Monitor> monitor_;
};

}  // namespace lockstep::backend

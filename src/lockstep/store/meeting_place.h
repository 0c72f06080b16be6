// Opens the store at which the ranks of a job meet: over TCP, served by rank 0 or by others, or in a file.
//
// Thread safety: free functions, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/job_environment.h"
#include "lockstep/store/store.h"
#include "lockstep/store/wills.h"

namespace lockstep::store {

// What rank 0 keeps up for the others; destroying it ends the service.
class StoreService {
 public:
  virtual ~StoreService() = default;
};

struct MeetingPlace {
  std::unique_ptr<StoreService> service;  // only where this rank serves
  // Shared by the membership and by the user of the rendezvous.
  std::shared_ptr<Store> store;
  Wills* wills = nullptr;                      // the store's, if it has any
  std::optional<Secret> secret;                // nothing if the place needs none
  std::optional<base::SocketAddress> address;  // the store's, where it has one
};

// How the job is protected. kLocal: nobody gave a secret, so only loopback will do, with a secret of rank
// 0's.
enum class Protection : std::uint8_t { kGiven, kLocal, kInsecure };

struct TcpMeeting {
  StorePlace place;
  JobSource source = JobSource::kNone;
  Rank rank;
  WorldSize world_size;
  std::string job_id;
  std::uint64_t epoch = 0;
  Protection protection = Protection::kLocal;
  std::optional<Secret> secret;         // with kGiven
  std::optional<int> listening_fd;      // of our launcher; it stays open for the next time
  std::vector<std::string> interfaces;  // to serve on, if the place's name is not this host's own
  Duration timeout{};                   // of the store's calls
};
// kNoSecret before anything is bound or connected; kPortTaken with the owner; kMissingRanks if nobody serves;
// kRejected if the store refuses this rank.
Result<MeetingPlace> open_tcp_meeting(const TcpMeeting& meeting, const Deadline& deadline);

// A FileStore at `path`, which must belong to this user; others lose their rights to it.
Result<MeetingPlace> open_file_meeting(const std::string& path, Duration timeout, const Clock& clock);
// Removes the file if what it holds is history: called by whoever leaves, or hears that the join has
// failed. A file in which another job lives, somebody has not heard yet, or a next round has begun, stays.
void remove_finished_file(const std::string& path);

}  // namespace lockstep::store

// rendezvous(): how the ranks of a job find each other. The result is a value that says who this rank is, who
// the others are, and through which store they talk.
//
//   Rendezvous job = ...;                       // env:// by default; with no variables set, a world of one
//   rendezvous({.url = "tcp://node7:29500?rank=0&world_size=2"}, env);
//   rendezvous({.url = "file:///shared/job", .rank = Rank{0}, .world_size = WorldSize{2}}, env);
//   rendezvous({.store = store, .rank = Rank{0}, .world_size = WorldSize{2}}, env);
//
// Arguments beat the environment; a value given both as an argument and in the URL is an error.
// docs/rendezvous.md has every scheme, scheduler and variable.
//
// Thread safety: any thread; a Rendezvous is used by one thread at a time (its store by any).
// Errors: kInvalid with kMissingVariable, kDuplicateRank, kWorldSizeMismatch, kNoSecret or kPortTaken;
// kTimeout with kMissingRanks; kUnsupported with kVersionMismatch; kRejected for a wrong secret, job or
// epoch; kStoreLost. Every one names the offender. Takes at most the timeout and 2 s. Does not: watch the
// other ranks afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error_file.h"
#include "lockstep/base/net.h"
#include "lockstep/base/process.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/job_secret.h"
#include "lockstep/store/member.h"
#include "lockstep/store/rendezvous_url.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

// A scheme of the user's own: opens a store, and may say who this rank is where the caller did not.
struct SchemeRequest {
  const RendezvousUrl& url;
  std::optional<Rank> rank;
  std::optional<WorldSize> world_size;
  const Environment& env;
  Deadline deadline;
};
struct SchemeAnswer {
  std::shared_ptr<Store> store;  // shared with the result of the rendezvous
  std::optional<Rank> rank = {};
  std::optional<WorldSize> world_size = {};
};
using Scheme = std::function<Result<SchemeAnswer>(const SchemeRequest&)>;

// How far a secret goes that rank 0 makes for a job that was given none, and passes through the store.
// kStore: to all ranks, so that the job is as safe as the store that it was handed.
enum class SecretSharing : std::uint8_t { kOneHost, kStore };

struct RendezvousOptions {
  // Where: a URL, or a store that exists already; env:// if neither is given, an error if both are.
  std::optional<std::string> url = {};
  std::shared_ptr<Store> store = {};
  // Who; what is not given here comes from the URL or the environment.
  std::optional<Rank> rank = {};
  std::optional<WorldSize> world_size = {};
  std::optional<std::string> job_id = {};
  // How long the join may take: default LOCKSTEP_TIMEOUT, else 5 minutes. Also the store's own timeout.
  std::optional<Duration> timeout = {};
  // The job's secret. `insecure` lets a job without one use the network; LOCKSTEP_INSECURE says the same.
  SecretSources secret = {};
  SecretSharing secret_sharing = SecretSharing::kOneHost;
  bool insecure = false;
  // Interfaces by name; default LOCKSTEP_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, else the route to the master.
  std::vector<std::string> interfaces = {};
  // Schemes beside env, tcp and file, by name in lower case.
  std::map<std::string, Scheme, std::less<>> schemes = {};
};

// A rank's place in a world; destroying it leaves. The last to leave removes what a file:// left behind, and
// the store of a job that rank 0 serves ends with rank 0's seat. Takes at most 2 s, and rank 0's, if it has
// settled and serves the store, 30 s more as long as others are about to settle; never throws. In a forked
// child it does nothing.
class Seat {
 public:
  virtual ~Seat() = default;
  // The world is made: until then the end of this process is a failure of the join, which the others find
  // under kSetUpFailed in their store, where that sees its clients end. Idempotent; leaving does it too.
  virtual void settle() = 0;
};

struct Rendezvous {
  Rank rank;
  WorldSize world_size;
  Rank local_rank;  // among the ranks of this host
  WorldSize local_size;
  std::string job_id;
  std::uint64_t epoch = 0;
  Secret secret = Secret::insecure();  // for the connections between ranks
  base::HostIdentity host;
  // Where this rank may listen for the others: loopback if all are on one host, unless interfaces were named.
  std::vector<base::SocketAddress> addresses;
  // All ranks, by rank; their addresses follow the same rule.
  Members members;
  // A namespace of this world's own: what an earlier world on the same store left is not seen. Shared by
  // whoever talks through it; after the seat of the rank that serves it is gone, its calls say kStoreLost.
  std::shared_ptr<Store> store;
  std::unique_ptr<Seat> seat;  // nothing for a world of one
  ErrorNote error_note;        // for what happens to this rank later on
};

// An error is also left in LOCKSTEP_ERROR_FILE, for the launcher.
Result<Rendezvous> rendezvous(const RendezvousOptions& options, const Environment& env,
                              const Clock& clock = Clock::steady());

}  // namespace lockstep::store

namespace lockstep {
using store::rendezvous;
using store::Rendezvous;
using store::RendezvousOptions;
}  // namespace lockstep

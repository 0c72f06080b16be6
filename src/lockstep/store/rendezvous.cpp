#include "lockstep/store/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "lockstep/base/handshake.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/interface_choice.h"
#include "lockstep/store/join_errors.h"
#include "lockstep/store/liveness.h"
#include "lockstep/store/meeting_place.h"
#include "lockstep/store/membership.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/rendezvous_plan.h"

namespace lockstep::store {
namespace {

using base::SocketAddress;
using std::chrono::milliseconds;
using std::chrono::seconds;

// For telling the others of a rank that cannot be in any world.
constexpr Duration kMisfitWait = seconds(2);
// Before the store is looked for again.
constexpr Duration kPause = milliseconds(5);

// Leaves the world first, then takes down what this rank served.
class WorldSeat final : public Seat {
 public:
  WorldSeat(std::unique_ptr<StoreService> service, std::unique_ptr<Membership> membership, std::string file)
      : service_(std::move(service)), membership_(std::move(membership)), file_(std::move(file)) {}
  ~WorldSeat() override {
    if (membership_->leave() == Membership::Left::kLast && !file_.empty()) remove_finished_file(file_);
  }

  void settle() override { membership_->settle(); }

 private:
  std::unique_ptr<StoreService> service_;
  std::unique_ptr<Membership> membership_;
  const std::string file_;  // of file://, else empty
};

Result<MeetingPlace> open_tcp(const Plan& plan, const Who& who, const Environment& env,
                              const Deadline& deadline) {
  TcpMeeting meeting;
  if (plan.url.scheme == "tcp") {
    LOCKSTEP_ASSIGN(meeting.place.endpoint, base::parse_endpoint(plan.url.place));
    if (meeting.place.endpoint.port == 0)
      return Status::invalid(
          cat("The rendezvous URL ", plan.url.text, " needs a port that every rank knows."));
  } else {
    meeting.place = *plan.job.store;
    meeting.source = plan.job.source;
    if (meeting.place.server == StorePlace::Server::kElsewhere) meeting.listening_fd = env.store_fd;
  }
  meeting.rank = who.rank;
  meeting.world_size = who.world_size;
  meeting.job_id = plan.job_id;
  meeting.epoch = plan.job.epoch;
  meeting.protection =
      plan.secret ? Protection::kGiven : (plan.insecure ? Protection::kInsecure : Protection::kLocal);
  meeting.secret = plan.secret;
  meeting.interfaces = plan.interfaces;
  meeting.timeout = plan.timeout;
  return open_tcp_meeting(meeting, deadline);
}

// Asks the user's scheme for a store, and for what the caller has not said.
Result<MeetingPlace> open_custom(const RendezvousOptions& options, const Environment& env,
                                 const Deadline& deadline, Plan& plan) {
  const Scheme& scheme = options.schemes.find(plan.url.scheme)->second;
  const Said known{plan.said.rank ? plan.said.rank : plan.job.rank,
                   plan.said.world_size ? plan.said.world_size : plan.job.world_size};
  LOCKSTEP_ASSIGN(SchemeAnswer answer, scheme({plan.url, known.rank, known.world_size, env, deadline}));
  if (!answer.store)
    return Status::invalid(cat("The scheme ", plan.url.scheme, ":// of this program gave no store."));
  plan.said = {known.rank ? known.rank : answer.rank,
               known.world_size ? known.world_size : answer.world_size};
  MeetingPlace place;
  place.store = std::move(answer.store);
  return place;
}

Result<MeetingPlace> open_builtin(const Plan& plan, const Who& who, const Environment& env,
                                  const Deadline& deadline) {
  if (plan.url.scheme == "file") return open_file_meeting(plan.url.place, plan.timeout, deadline.clock());
  return open_tcp(plan, who, env, deadline);
}

Result<MemberRecord> record_of_self(const Plan& plan, const Who& who,
                                    const std::optional<SocketAddress>& master) {
  MemberRecord self;
  self.version = base::kWireVersion;
  self.world_size = who.world_size;
  self.secret = plan.secret ? SecretFrom::kGiven : SecretFrom::kNowhere;
  self.member.rank = who.rank;
  self.member.pid = ::getpid();
  LOCKSTEP_ASSIGN(self.member.host, base::this_host());
  LOCKSTEP_ASSIGN(self.member.addresses, own_addresses(plan.interfaces, master));
  self.member.choice = plan.interfaces.empty() ? AddressChoice::kRouted : AddressChoice::kNamed;
  return self;
}

Result<Rendezvous> world_of_one(const Plan& plan, const Who& who, const Clock& clock) {
  LOCKSTEP_ASSIGN(const SocketAddress loopback, SocketAddress::parse("127.0.0.1", 0));
  LOCKSTEP_ASSIGN(MemberRecord record, record_of_self(plan, who, loopback));
  record.member.start_time = process_start_time(record.member.pid).value_or(0);
  Rendezvous out;
  out.local_rank = plan.job.local_rank.value_or(Rank{0});
  out.local_size = plan.job.local_size.value_or(WorldSize{1});
  out.job_id = plan.job_id;
  out.epoch = plan.job.epoch;
  out.secret = plan.secret ? *plan.secret : Secret::generate();
  out.host = record.member.host;
  out.addresses = record.member.addresses;
  out.members = {record.member};
  out.store = std::make_shared<HashStore>(StoreOptions{.timeout = plan.timeout, .clock = &clock});
  return out;
}

// A secret that rank 0 makes and passes through the store: for a file of this user's, and for one host.
Result<Secret> share_secret(Store& store, const RoundKeys& keys, Rank rank, const Deadline& deadline) {
  if (rank == Rank{0}) {
    const Secret secret = Secret::generate();
    LOCKSTEP_TRY(store.set(keys.secret(), secret.bytes(), deadline));
    return secret;
  }
  LOCKSTEP_ASSIGN(Buffer bytes, store.get(keys.secret(), deadline));
  if (bytes.size() != base::kSecretSize) return join_errors::foreign_key(keys.secret());
  const Secret secret = Secret::from_bytes(ByteView(bytes).first<base::kSecretSize>());
  ::explicit_bzero(bytes.data(), bytes.size());
  return secret;
}

bool on_one_host(const Members& members) {
  return std::all_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.host.same_host(members.front().host); });
}

Result<Secret> secret_of_world(const Plan& plan, const Who& who, const MeetingPlace& place,
                               const Membership& membership, const Deadline& deadline) {
  if (place.secret) return *place.secret;
  if (plan.secret) return *plan.secret;
  const bool private_store =
      plan.url.scheme == "file" || plan.sharing == SecretSharing::kStore || on_one_host(membership.members());
  if (private_store) return share_secret(*place.store, membership.keys(), who.rank, deadline);
  if (plan.insecure) return Secret::insecure();
  return no_secret("The connections between the ranks, which are on several hosts,");
}

// Local rank and size by host, where the environment does not say.
void place_on_host(const JobEnvironment& job, Rendezvous& out) {
  int local_rank = 0, local_size = 0;
  for (const Member& member : out.members) {
    if (!member.host.same_host(out.host)) continue;
    if (member.rank < out.rank) ++local_rank;
    ++local_size;
  }
  out.local_rank = job.local_rank.value_or(Rank{local_rank});
  out.local_size = job.local_size.value_or(WorldSize{local_size});
}

// On one host the ranks meet on loopback, unless their user named interfaces.
Status use_loopback(const std::optional<SocketAddress>& master, Members& members) {
  LOCKSTEP_ASSIGN(SocketAddress loopback, SocketAddress::parse("127.0.0.1", 0));
  if (master && master->is_loopback()) loopback = master->with_port(0);
  for (Member& member : members) {
    if (member.choice == AddressChoice::kRouted) member.addresses = {loopback};
  }
  return {};
}

Result<Rendezvous> join_at(MeetingPlace place, const Plan& plan, const Who& who, const Deadline& deadline,
                           JoinPhase* reached = nullptr) {
  JoinRequest request;
  LOCKSTEP_ASSIGN(request.self, record_of_self(plan, who, place.address));
  request.job_id = plan.job_id;
  request.epoch = plan.job.epoch;
  request.since = deadline.at() - plan.timeout;
  const std::string file = plan.url.scheme == "file" ? plan.url.place : "";
  request.store_ends = place.service   ? StoreEnds::kWithThisRank
                       : !file.empty() ? StoreEnds::kWithTheLastRank
                                       : StoreEnds::kLater;
  request.wills = place.wills;
  Rendezvous out;
  out.host = request.self.member.host;
  auto joined = Membership::join(place.store, std::move(request), deadline, reached);
  if (!joined.ok() && !file.empty() && joined.status().failure() != Failure::kStoreLost)
    remove_finished_file(file);
  LOCKSTEP_ASSIGN(std::unique_ptr<Membership> membership, std::move(joined));
  LOCKSTEP_ASSIGN(out.secret, secret_of_world(plan, who, place, *membership, deadline));
  out.rank = who.rank;
  out.world_size = who.world_size;
  out.job_id = plan.job_id;
  out.epoch = plan.job.epoch;
  out.members = membership->members();
  if (on_one_host(out.members)) LOCKSTEP_TRY(use_loopback(place.address, out.members));
  out.addresses = out.members[static_cast<std::size_t>(who.rank.value)].addresses;
  place_on_host(plan.job, out);
  out.store = std::make_shared<PrefixStore>(membership->keys().world(), place.store);
  out.seat = std::make_unique<WorldSeat>(std::move(place.service), std::move(membership), file);
  return out;
}

Status with_hint(const Status& status, const Plan& plan, const Environment& env) {
  const bool outside_srun = plan.job.source == JobSource::kSlurm && !env.slurm.step_id;
  if (status.failure() != Failure::kMissingRanks || !outside_srun) return status;
  return Status(
      status.code(),
      cat(status.message(), ". SLURM_STEP_ID is not set: was this program started by srun, once per task?"),
      status.cause());
}

// env://, tcp:// and file://.
Result<Rendezvous> meet_at_builtin(const Plan& plan, const Who& who, const Environment& env,
                                   const Clock& clock) {
  const bool misfit = !who.world_size.contains(who.rank);
  const Deadline deadline = clock.in(misfit ? std::min(plan.timeout, kMisfitWait) : plan.timeout);
  while (true) {
    auto place = open_builtin(plan, who, env, deadline);
    JoinPhase reached = JoinPhase::kArrived;
    Result<Rendezvous> joined =
        place.ok() ? join_at(std::move(place).value(), plan, who, deadline, &reached) : place.status();
    if (joined.ok()) return joined;
    if (misfit) {
      LOCKSTEP_ASSIGN(const MemberRecord self, record_of_self(plan, who, {}));
      return join_errors::rank_beyond_world(self);
    }
    // The store of an earlier world has just ended: its server was closed, its file removed by the last to
    // leave.
    const bool again = reached == JoinPhase::kLooking && joined.status().failure() == Failure::kStoreLost;
    if (!again || deadline.expired()) return with_hint(joined.status(), plan, env);
    std::this_thread::sleep_for(clock.patience(kPause));
  }
}

// Who this rank is; from here on its log says so too.
Result<Who> identify_and_log(const Plan& plan) {
  LOCKSTEP_ASSIGN(const Who who, identify(plan));
  if (!who.alone) base::set_log_rank(who.rank);
  return who;
}

Result<Rendezvous> meet(const RendezvousOptions& options, const Environment& env, const Clock& clock) {
  LOCKSTEP_ASSIGN(Plan plan, make_plan(options, env));
  if (plan.is_builtin()) {
    LOCKSTEP_ASSIGN(const Who who, identify_and_log(plan));
    return who.alone ? world_of_one(plan, who, clock) : meet_at_builtin(plan, who, env, clock);
  }
  const Deadline deadline = clock.in(plan.timeout);
  MeetingPlace place;
  if (options.store) {
    place.store = options.store;
  } else {
    LOCKSTEP_ASSIGN(place, open_custom(options, env, deadline, plan));
  }
  LOCKSTEP_ASSIGN(const Who who, identify_and_log(plan));
  return join_at(std::move(place), plan, who, deadline);
}

}  // namespace

Result<Rendezvous> rendezvous(const RendezvousOptions& options, const Environment& env, const Clock& clock) {
  auto met = meet(options, env, clock);
  const ErrorNote note(env);
  if (met.ok()) {
    met->error_note = note;
  } else {
    note.write(met.status());
  }
  return met;
}

}  // namespace lockstep::store

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"
#include "lockstep/store/interface_choice.h"
#include "lockstep/store/job_secret.h"
#include "lockstep/store/local_secret.h"
#include "lockstep/store/logger.h"
#include "lockstep/store/meeting_place.h"
#include "lockstep/store/port_owner.h"
#include "lockstep/store/tcp_local.h"
#include "lockstep/store/tcp_server.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::store {
namespace {

using base::SocketAddress;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Addresses = std::vector<SocketAddress>;

// How long rank 0 asks who has its port, if that may be a rank of this job, before it says only that the port
// is taken.
constexpr Duration kAsking = seconds(2);
// How long to ask, at the end, whether anybody listens.
constexpr Duration kProbing = milliseconds(500);
constexpr Duration kLookUpPause = milliseconds(250);

class TcpService final : public StoreService {
 public:
  TcpService(std::unique_ptr<LocalSecretServer> secret, std::unique_ptr<TcpStoreServer> server)
      : secret_(std::move(secret)), server_(std::move(server)) {}

 private:
  std::unique_ptr<LocalSecretServer> secret_;  // nothing if the secret was given
  std::unique_ptr<TcpStoreServer> server_;
};

// The name of a pod exists only once the pod is up, so there it is asked for until the deadline.
Result<Addresses> look_up(const TcpMeeting& meeting, const Deadline& deadline) {
  while (true) {
    auto addresses = base::resolve(meeting.place.endpoint, deadline);
    if (addresses.ok() || meeting.source != JobSource::kKubernetes || deadline.expired()) return addresses;
    std::this_thread::sleep_for(deadline.clock().patience(std::min(kLookUpPause, deadline.remaining())));
  }
}

bool all_loopback(const Addresses& addresses) {
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const SocketAddress& a) { return a.is_loopback(); });
}

std::string place_text(const TcpMeeting& meeting) {
  return cat("The store at ", meeting.place.endpoint.text());
}

// A copy of the launcher's socket: the original stays for the next rendezvous of this process, and no program
// that this one starts inherits it.
Result<base::UniqueFd> copy_of_listening(int fd) {
  int listening = 0;
  socklen_t size = sizeof(listening);
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0) {
    return Status::invalid(
        cat("LOCKSTEP_STORE_FD=", fd,
            " is not a listening socket. lockstep::spawn sets it for rank 0; a program that rank 0 "
            "starts must not use it."));
  }
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
  base::UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy) return Status::from_errno("LOCKSTEP_STORE_FD could not be copied", errno);
  (void)::fcntl(copy.get(), F_SETFL, O_NONBLOCK);
  return copy;
}

// The one of the place's addresses that is this host's own; else one of the named interfaces.
Result<SocketAddress> address_to_bind(const TcpMeeting& meeting, const Addresses& addresses) {
  const auto own = std::find_if(addresses.begin(), addresses.end(), is_own_address);
  if (own != addresses.end()) {
    if (own->is_loopback() && meeting.place.hosts == StorePlace::Hosts::kSeveral) {
      return Status::invalid(
          cat(place_text(meeting), " is ", own->text(),
              " on the host of rank 0, where the other hosts cannot reach it. Give the address "
              "instead of the name (MASTER_ADDR), or mend /etc/hosts."));
    }
    return *own;
  }
  if (!meeting.interfaces.empty()) {
    LOCKSTEP_ASSIGN(const Addresses named, own_addresses(meeting.interfaces, addresses.front()));
    return named.front().with_port(meeting.place.endpoint.port);
  }
  return Status::invalid(
      cat(place_text(meeting), " cannot be served by rank 0: ", addresses.front().text(),
          " is not an address of this host. Give rank 0's own name or address, or name the "
          "interface to serve on with LOCKSTEP_SOCKET_IFNAME."));
}

TcpStoreOptions client_options(const TcpMeeting& meeting, const Secret& secret) {
  return {.endpoint = meeting.place.endpoint,
          .job_id = meeting.job_id,
          .epoch = meeting.epoch,
          .secret = secret,
          .rank = meeting.rank,
          .timeout = meeting.timeout};
}

// One rank's way to the store.
class Opener {
 public:
  Opener(const TcpMeeting& meeting, const Deadline& deadline) : meeting_(meeting), deadline_(deadline) {}

  Result<MeetingPlace> open() {
    auto found = look_up(meeting_, deadline_);
    if (!found.ok())
      return found.status().with_prefix(cat(place_text(meeting_), " (MASTER_ADDR, or the address given): "));
    addresses_ = *std::move(found);
    if (meeting_.protection == Protection::kLocal && !all_loopback(addresses_))
      return no_secret(place_text(meeting_));
    if (meeting_.protection == Protection::kInsecure && meeting_.rank == Rank{0}) {
      kRendezvousLog.warn(cat(place_text(meeting_),
                              " and the ranks' connections are open to everyone on the network: "
                              "insecure was asked for."));
    }
    if (meeting_.listening_fd) return serve_inherited();
    if (meeting_.rank == Rank{0} && meeting_.place.server == StorePlace::Server::kRankZero) return serve();
    return meet_server();
  }

 private:
  Result<MeetingPlace> meet_server() {
    LOCKSTEP_ASSIGN(Secret secret, secret_of_client(deadline_));
    while (true) {
      auto place = connect(secret, deadline_);
      const bool refused = place.status().failure() == Failure::kRejected;
      if (!refused || meeting_.protection != Protection::kLocal) return place;
      // Between the two steps the store of an earlier world, with its secret, may have made room for this
      // one.
      LOCKSTEP_ASSIGN(const Secret now, secret_of_client(deadline_));
      if (base::equal_in_constant_time(now.bytes(), secret.bytes())) return place;
      secret = now;
    }
  }

  Result<MeetingPlace> serve_inherited() {
    TcpServerOptions options;
    LOCKSTEP_ASSIGN(options.listening, copy_of_listening(*meeting_.listening_fd));
    return host(std::move(options), given_secret(), nullptr);
  }

  Result<MeetingPlace> serve() {
    LOCKSTEP_ASSIGN(const SocketAddress address, address_to_bind(meeting_, addresses_));
    std::unique_ptr<LocalSecretServer> hands_out;
    Secret secret = given_secret();
    if (meeting_.protection == Protection::kLocal) {
      secret = Secret::generate();
      // Before the store listens: who finds the store finds the secret.
      auto started = LocalSecretServer::start(secret_name(), secret);
      if (started.status().failure() == Failure::kPortTaken) return join_whoever_serves(started.status());
      if (!started.ok()) return started.status().with_prefix("Rank 0 cannot serve the job's store: ");
      hands_out = std::move(started).value();
    }
    TcpServerOptions options;
    options.bind_host = address.host();
    options.port = address.port();
    auto hosted = host(std::move(options), secret, std::move(hands_out));
    if (hosted.status().failure() == Failure::kPortTaken) return join_whoever_serves(hosted.status());
    return hosted;
  }

  Result<MeetingPlace> host(TcpServerOptions options, const Secret& secret,
                            std::unique_ptr<LocalSecretServer> hands_out) {
    options.tenants = {
        {.job_id = meeting_.job_id, .epoch = meeting_.epoch, .secret = secret, .world = meeting_.world_size}};
    if (meeting_.protection == Protection::kInsecure) options.open_to_all = OpenToAll::kAllow;
    LOCKSTEP_ASSIGN(std::unique_ptr<TcpStoreServer> server,
                    TcpStoreServer::start(std::move(options), deadline_.clock()));
    TcpStoreOptions client = client_options(meeting_, secret);
    client.endpoint = server->endpoint();
    LOCKSTEP_ASSIGN(std::unique_ptr<TcpStore> store, TcpStore::connect(client, deadline_));
    MeetingPlace place;
    place.address = server->address();
    place.service = std::make_unique<TcpService>(std::move(hands_out), std::move(server));
    place.wills = store.get();
    place.store = std::move(store);
    place.secret = secret;
    return place;
  }

  // The port is taken. If it is by a store of this very job, joining there tells both sides who they are;
  // else the error of the port stands.
  Result<MeetingPlace> join_whoever_serves(const Status& taken) {
    const auto owner = owner_of_port(taken);
    const bool stranger = owner && is_another_program(*owner);
    const Deadline soon = deadline_.at_most(stranger ? kStrangerAnswers : kAsking);
    const auto secret = secret_of_client(soon);
    if (!secret.ok()) return port_is_taken(taken);
    auto place = connect(*secret, soon);
    return place.ok() ? std::move(place) : port_is_taken(taken);
  }

  std::optional<int> owner_of_port(const Status& taken) const {
    return taken.cause().pid ? taken.cause().pid : base::listener_pid(meeting_.place.endpoint.port);
  }

  Status port_is_taken(const Status& taken) const {
    Cause cause = taken.cause();
    cause.failure = Failure::kPortTaken;
    cause.pid = owner_of_port(taken);
    const std::string owner = cause.pid ? cat(" by process ", *cause.pid) : "";
    return Status(taken.code(),
                  cat("Rank 0 cannot serve the job's store: port ", meeting_.place.endpoint.port, " of ",
                      meeting_.place.endpoint.host, " is taken", owner,
                      ". Choose another, the same for every rank, with ",
                      meeting_.source == JobSource::kNone ? "the URL" : "LOCKSTEP_PORT or MASTER_PORT", "."),
                  cause);
  }

  Result<MeetingPlace> connect(const Secret& secret, const Deadline& deadline) {
    auto store = TcpStore::connect(client_options(meeting_, secret), deadline);
    if (!store.ok()) return not_reached(store.status());
    MeetingPlace place;
    place.address = addresses_.front();
    place.wills = store->get();
    place.store = std::move(store).value();
    place.secret = secret;
    return place;
  }

  // Says who should have been there.
  Status not_reached(const Status& status) const {
    if (status.code() != Code::kTimeout) return status;
    if (somebody_listens()) return status.with_prefix("The store is there, but does not answer: ");
    if (meeting_.place.server == StorePlace::Server::kElsewhere) return status;
    Cause cause = status.cause();
    cause.failure = Failure::kMissingRanks;
    cause.rank = meeting_.rank;
    cause.peer = Rank{0};
    cause.missing = {Rank{0}};
    return Status(
        Code::kTimeout,
        cat("rank 0 of ", meeting_.world_size, " missing, which serves the store: ", status.message()),
        std::move(cause));
  }

  bool somebody_listens() const {
    const Deadline deadline = deadline_.clock().in(kProbing);
    return std::any_of(addresses_.begin(), addresses_.end(), [&](const SocketAddress& address) {
      return base::connect_to(address, deadline, base::OnRefused::kFail).ok();
    });
  }

  Secret given_secret() const { return meeting_.secret ? *meeting_.secret : Secret::insecure(); }

  Result<Secret> secret_of_client(const Deadline& deadline) {
    if (meeting_.protection != Protection::kLocal || meeting_.place.server == StorePlace::Server::kElsewhere)
      return given_secret();
    auto secret = fetch_local_secret(secret_name(), addresses_.front(), deadline);
    if (!secret.ok()) return not_reached(secret.status());
    return secret;
  }

  std::string secret_name() const { return local_secret_name(addresses_.front()); }

  const TcpMeeting& meeting_;
  const Deadline deadline_;
  Addresses addresses_;
};

}  // namespace

Result<MeetingPlace> open_tcp_meeting(const TcpMeeting& meeting, const Deadline& deadline) {
  return Opener(meeting, deadline).open();
}

}  // namespace lockstep::store

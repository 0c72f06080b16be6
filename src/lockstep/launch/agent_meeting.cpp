#include "lockstep/launch/agent_meeting.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/store/port_owner.h"

namespace lockstep::launch {
namespace {

using base::SocketAddress;

// One try to connect; between two of them the caller may give up. Each has twice the time of the one before:
// a slow name server must answer within one.
constexpr Duration kFirstTry = std::chrono::milliseconds(500);
constexpr Duration kLongestTry = std::chrono::seconds(2);
constexpr Duration kPause = std::chrono::milliseconds(50);
constexpr Duration kCardArrives = std::chrono::seconds(10);
constexpr Duration kAgentAnswers = std::chrono::seconds(5);

std::string tenant_of(const JobCard& card) { return cat("agents of ", card.run_id); }

Status not_here(const MeetingOptions& options) {
  return Status::invalid(
      cat("node 0 serves the rendezvous, and ", options.endpoint.host, " of --rdzv-endpoint ",
          options.endpoint.text(),
          " is no address of this host: start node 0 there, or give --local-addr if it is reached "
          "under another address"));
}

Status with_advice(const Status& status) {
  if (status.failure() != Failure::kPortTaken) return status;
  return Status(status.code(),
                cat(status.message(), ": give --rdzv-endpoint another port, the same on all hosts"),
                status.cause());
}

Result<Meeting> serve(const MeetingOptions& options, const SocketAddress& address, const Deadline& deadline) {
  store::TcpServerOptions server{
      .bind_host = address.host(),
      .port = options.endpoint.port,
      .open_to_all = options.secret.is_insecure() ? store::OpenToAll::kAllow : store::OpenToAll::kRefuse};
  server.tenants.push_back(
      {.job_id = tenant_of(options.card), .secret = options.secret, .world = WorldSize{options.card.nnodes}});
  Meeting meeting{.address = address, .card = options.card};
  auto hosted = store::host_store(std::move(server), deadline);
  if (!hosted.ok()) return with_advice(hosted.status());
  meeting.hosted = *std::move(hosted);
  LOCKSTEP_TRY(meeting.store().set("card", bytes_of(card_to_json(options.card)), deadline));
  return meeting;
}

// Trying again would not help.
bool is_final(const Status& status) {
  return status.failure() == Failure::kRejected || status.failure() == Failure::kVersionMismatch;
}

Status refusal(const MeetingOptions& options, const Status& status) {
  const std::string who = cat("what answers at --rdzv-endpoint ", options.endpoint.text());
  if (status.failure() == Failure::kVersionMismatch)
    return status.with_prefix(cat(who, " is of another build of Lockstep: "));
  return status.with_prefix(
      cat(who, " refuses this agent (is it node 0's, with the same --rdzv-id and the same secret?): "));
}

// Between two tries: what failed may have failed at once.
Status pause(std::string_view waiting_for, const Deadline& deadline, const GiveUp& give_up) {
  if (give_up(waiting_for)) return Status::aborted("stopped before the agents had met");
  std::this_thread::sleep_for(deadline.clock().patience(kPause));
  return {};
}

Result<Meeting> connect(const MeetingOptions& options, const Deadline& deadline, const GiveUp& give_up) {
  const store::TcpStoreOptions client{
      .endpoint = options.endpoint, .job_id = tenant_of(options.card), .secret = options.secret};
  const base::TimePoint start = deadline.clock().now();
  Meeting meeting;
  Status reason;
  for (Duration time = kFirstTry;; time = std::min(2 * time, kLongestTry)) {
    const bool is_cut_short = deadline.remaining() < kFirstTry;
    auto store = store::TcpStore::connect(client, deadline.at_most(time));
    if (store.ok()) {
      meeting.hosted.store = *std::move(store);
      break;
    }
    const Status error = store.status();
    if (!is_cut_short || reason.ok()) reason = error;  // what had no time says little
    if (is_final(error)) return error;
    if (deadline.expired()) {
      return reason.with_prefix(
          cat("the agent of node 0 was not reached in ", deadline.clock().now() - start, ": "));
    }
    LOCKSTEP_TRY(pause(cat("the agent of node 0: ", error.message()), deadline, give_up));
  }
  LOCKSTEP_ASSIGN(const Buffer card, meeting.store().get("card", deadline.at_most(kCardArrives)));
  LOCKSTEP_ASSIGN(meeting.card, card_from_json(text_of(card)));
  return meeting;
}

Status check_card(const MeetingOptions& options, const JobCard& theirs) {
  const JobCard& ours = options.card;
  if (ours.nnodes != theirs.nnodes) {
    return Status::invalid(
        cat("this agent (host ", options.host, ") has --nnodes ", ours.nnodes, ", node 0 (host ", theirs.host,
            ") has --nnodes ", theirs.nnodes, ": give the same everywhere"),
        {.failure = Failure::kWorldSizeMismatch});
  }
  if (ours.by_arrival != theirs.by_arrival) {
    return Status::invalid(cat("--node-rank is given on host ", ours.by_arrival ? theirs.host : options.host,
                               " and not on host ", ours.by_arrival ? options.host : theirs.host,
                               ": give it on all hosts or on none"));
  }
  return {};
}

// Takes a place among the nodes.
Status claim_node(const MeetingOptions& options, const Deadline& deadline, Meeting& meeting) {
  Store& store = meeting.store();
  const bool serves = meeting.hosted.server != nullptr;
  if (options.node_rank) {
    meeting.node = *options.node_rank;
  } else if (!serves) {
    LOCKSTEP_ASSIGN(const std::int64_t arrival, store.add("arrivals", 1, deadline));
    if (arrival >= meeting.card.nnodes) {
      return Status::invalid(cat("host ", options.host, " is one too many: all ", meeting.card.nnodes,
                                 " nodes of job ", base::quoted(meeting.card.run_id), " have come already"));
    }
    meeting.node = static_cast<int>(arrival);
  }
  const std::string mine = cat("host ", options.host, ", pid ", getpid());
  LOCKSTEP_ASSIGN(const Buffer owner,
                  store.compare_set(cat("node/", meeting.node), {}, bytes_of(mine), deadline));
  if (text_of(owner) != mine) {
    return Status::invalid(
        cat("--node-rank ", meeting.node, " is claimed twice: by ", text_of(owner), " and by ", mine),
        {.failure = Failure::kDuplicateRank});
  }
  return {};
}

// By arrival: who binds the endpoint first serves.
Result<Meeting> serve_or_connect(const MeetingOptions& options, const SocketAddress& here,
                                 const Deadline& deadline, const GiveUp& give_up) {
  auto served = serve(options, here, deadline);
  if (served.ok() || served.status().failure() != Failure::kPortTaken) return served;
  // Most likely by another agent of this host. If not, who has the port is what the user must know.
  const auto owner = served.status().cause().pid;
  const bool stranger = owner && store::is_another_program(*owner);
  auto met = connect(options, deadline.at_most(stranger ? store::kStrangerAnswers : kAgentAnswers), give_up);
  // An agent that refuses this one is no stranger: another port would not help.
  if (met.ok() || met.status().code() == Code::kAborted || (is_final(met.status()) && !stranger)) return met;
  const Status& taken = served.status();
  return Status(taken.code(),
                cat(taken.message(), ". It does not answer as an agent: ", met.status().message()),
                taken.cause());
}

// own_address() of the endpoint, as soon as its name can be looked up.
Result<std::optional<SocketAddress>> await_own_address(const MeetingOptions& options,
                                                       const Deadline& deadline, const GiveUp& give_up) {
  const base::TimePoint start = deadline.clock().now();
  Status reason;
  for (;;) {
    auto here = own_address(options.endpoint, deadline);
    if (here.ok()) return here;
    if (!deadline.expired() || reason.ok()) reason = here.status();  // what had no time says little
    if (deadline.expired()) {
      return reason.with_prefix(
          cat("the endpoint of the agents was not found in ", deadline.clock().now() - start, ": "));
    }
    LOCKSTEP_TRY(pause(cat("the endpoint of the agents: ", reason.message()), deadline, give_up));
  }
}

Result<Meeting> find_each_other(const MeetingOptions& options, const Deadline& deadline,
                                const GiveUp& give_up) {
  if (options.node_rank.value_or(0) != 0) return connect(options, deadline, give_up);
  if (options.node_rank && !options.local_addr.empty()) {
    const auto here = SocketAddress::parse(options.local_addr, options.endpoint.port);
    if (!here.ok()) return here.status().with_prefix("--local-addr: ");
    return serve(options, *here, deadline);
  }
  LOCKSTEP_ASSIGN(const auto here, await_own_address(options, deadline, give_up));
  if (options.node_rank) return here ? serve(options, *here, deadline) : Result<Meeting>(not_here(options));
  return here ? serve_or_connect(options, *here, deadline, give_up) : connect(options, deadline, give_up);
}

}  // namespace

Result<std::optional<SocketAddress>> own_address(const base::Endpoint& endpoint, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const std::vector<SocketAddress> resolved, base::resolve(endpoint, deadline));
  LOCKSTEP_ASSIGN(const std::vector<base::Interface> interfaces, base::interfaces());
  for (const SocketAddress& address : resolved) {
    for (const base::Interface& interface : interfaces) {
      const bool found = std::any_of(interface.addresses.begin(), interface.addresses.end(),
                                     [&](const SocketAddress& own) { return own.host() == address.host(); });
      if (found) return std::optional(address);
    }
    if (address.is_loopback()) return std::optional(address);  // 127.0.0.2 has no interface of its own
  }
  return std::optional<SocketAddress>();
}

Result<Meeting> meet(const MeetingOptions& options, const Deadline& deadline, const GiveUp& give_up) {
  auto meeting = find_each_other(options, deadline, give_up);
  if (!meeting.ok())
    return is_final(meeting.status()) ? refusal(options, meeting.status()) : meeting.status();
  LOCKSTEP_TRY(check_card(options, meeting->card));
  LOCKSTEP_TRY(claim_node(options, deadline, *meeting));
  return meeting;
}

}  // namespace lockstep::launch

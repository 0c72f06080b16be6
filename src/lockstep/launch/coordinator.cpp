#include "lockstep/launch/coordinator.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/net.h"

namespace lockstep::launch {

Result<UniqueFd> hold_master_port(const base::SocketAddress& address, JobSetting& job) {
  LOCKSTEP_ASSIGN(UniqueFd held, base::hold_port(address.with_port(0)));
  LOCKSTEP_ASSIGN(const base::SocketAddress master, base::local_address(held.get()));
  job.master = {.host = master.host(), .port = master.port()};
  return held;
}

Status open_ports(const base::SocketAddress& address, const Secret& secret, const Clock& clock,
                  Round& round) {
  LOCKSTEP_ASSIGN(round.master_port, hold_master_port(address, round.job));
  store::TcpServerOptions options{.bind_host = address.host()};
  const store::TenantOptions job{.job_id = round.job.job_id,
                                 .epoch = round.job.epoch,
                                 .secret = secret,
                                 .world = WorldSize{static_cast<int>(place_ranks(round.nodes).size())}};
  options.tenants = {job};
  if (round.job.insecure) options.open_to_all = store::OpenToAll::kAllow;
  LOCKSTEP_ASSIGN(round.store, store::TcpStoreServer::start(std::move(options), clock));
  const base::SocketAddress& served = round.store->address();
  round.job.store = {.host = served.host(), .port = served.port()};
  return {};
}

Result<std::unique_ptr<LocalCoordinator>> LocalCoordinator::make(JobSetting job, NodePlan node,
                                                                 const Secret& secret, const Clock& clock) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status::from_errno("the launcher cannot make an event descriptor", errno);
  return std::unique_ptr<LocalCoordinator>(
      new LocalCoordinator(std::move(job), std::move(node), secret, clock, std::move(wake)));
}

std::vector<AgentEvent> LocalCoordinator::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
  return std::exchange(events_, {});
}

void LocalCoordinator::add(AgentEvent event) {
  events_.push_back(std::move(event));
  constexpr std::uint64_t kOne = 1;
  [[maybe_unused]] const ssize_t wrote = write(wake_.get(), &kOne, sizeof(kOne));
}

void LocalCoordinator::open_round(std::uint64_t epoch) {
  AgentEvent event{.kind = AgentEvent::Kind::kRound, .epoch = epoch};
  event.round.job = job_;
  event.round.job.epoch = epoch;
  event.round.nodes = {node_};
  const auto loopback = base::SocketAddress::parse("127.0.0.1", 0);
  const Status opened = open_ports(loopback.value(), secret_, clock_, event.round);
  if (!opened.ok()) {
    event.kind = AgentEvent::Kind::kLost;
    event.error = opened;
  }
  add(std::move(event));
}

void LocalCoordinator::report_failure(const FailureReport& report) {
  add({.kind = AgentEvent::Kind::kFailure, .epoch = report.epoch, .report = report});
}

void LocalCoordinator::report_done(std::uint64_t epoch) {
  add({.kind = AgentEvent::Kind::kAllDone, .epoch = epoch});
}

void LocalCoordinator::report_stop(int signal) {
  add({.kind = AgentEvent::Kind::kStop, .signal = signal, .host = node_.host});
}

}  // namespace lockstep::launch

#include "lockstep/launch/coordinator.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/net.h"

namespace lockstep::launch {

Status open_rank0_sockets(const base::SocketAddress& address, Round& round) {
  LOCKSTEP_ASSIGN(round.store_listener, base::listen_on(address.with_port(0)));
  LOCKSTEP_ASSIGN(const base::SocketAddress store, base::local_address(round.store_listener.get()));
  LOCKSTEP_ASSIGN(round.master_port, base::hold_port(address.with_port(0)));
  LOCKSTEP_ASSIGN(const base::SocketAddress master, base::local_address(round.master_port.get()));
  round.job.store = {.host = store.host(), .port = store.port()};
  round.job.master = {.host = master.host(), .port = master.port()};
  return {};
}

Result<std::unique_ptr<LocalCoordinator>> LocalCoordinator::make(JobSetting job, NodePlan node) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status::from_errno("the launcher cannot make an event descriptor", errno);
  return std::unique_ptr<LocalCoordinator>(
      new LocalCoordinator(std::move(job), std::move(node), std::move(wake)));
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
  const Status opened = open_rank0_sockets(loopback.value(), event.round);
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

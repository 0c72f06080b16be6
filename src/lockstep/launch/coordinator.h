// How the agents of a job (one per host) act as one.
//
// An agent opens a round for each attempt and hears of it when all agents are there; it says how its own
// ranks end and hears what that means for the job. What the agents hear they hear in one order, the same
// everywhere: the first failure of a round is the same one for all.
//
// Thread safety: one thread. Nothing waits: results come as events; fd() is readable while take() has some.
// Implemented by LocalCoordinator (one host) and StoreCoordinator (several).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/report.h"
#include "lockstep/launch/worker_environment.h"
#include "lockstep/store/tcp_server.h"

namespace lockstep::launch {

// What the agents have agreed on for one attempt.
struct Round {
  JobSetting job = {};
  std::vector<NodePlan> nodes = {};
  int node = 0;  // this one
  // On node 0, where rank 0 is: our store, which its agent serves, so that no rank takes it along; and a
  // socket that holds torch's port. Both are there as long as the Round is.
  std::unique_ptr<store::TcpStoreServer> store = {};
  UniqueFd master_port = {};
};

struct AgentEvent {
  enum class Kind {
    kRound,    // all are there: start the ranks
    kFailure,  // the first failure of this round
    kAllDone,  // every rank of every host has ended with 0
    kStop,     // an agent was told to stop, by a signal
    kLost,     // an agent is gone, or they cannot meet: the job is over
    kNotice,   // nothing but a sentence for the user
  };
  Kind kind = Kind::kLost;
  std::uint64_t epoch = 0;
  Round round = {};
  FailureReport report = {};
  int signal = 0;
  std::string host = {};  // whose signal
  Status error = {};      // kLost, kNotice: its message
};

class Coordinator {
 public:
  virtual ~Coordinator() = default;

  virtual int fd() const = 0;
  virtual std::vector<AgentEvent> take() = 0;

  virtual void open_round(std::uint64_t epoch) = 0;
  virtual void report_failure(const FailureReport& report) = 0;
  virtual void report_done(std::uint64_t epoch) = 0;
  virtual void report_stop(int signal) = 0;
};

// Holds a port of `address` for torch's rank 0, and writes it into `job`.
Result<UniqueFd> hold_master_port(const base::SocketAddress& address, JobSetting& job);
// Node 0's part of a round whose ranks are known: serves the store on a port of `address`, and holds torch's.
Status open_ports(const base::SocketAddress& address, const Secret& secret, const Clock& clock, Round& round);

// One host: every report comes back as the event it means.
class LocalCoordinator final : public Coordinator {
 public:
  // `job` without endpoints and epoch.
  static Result<std::unique_ptr<LocalCoordinator>> make(JobSetting job, NodePlan node, const Secret& secret,
                                                        const Clock& clock);

  int fd() const override { return wake_.get(); }
  std::vector<AgentEvent> take() override;
  void open_round(std::uint64_t epoch) override;
  void report_failure(const FailureReport& report) override;
  void report_done(std::uint64_t epoch) override;
  void report_stop(int signal) override;

 private:
  LocalCoordinator(JobSetting job, NodePlan node, const Secret& secret, const Clock& clock, UniqueFd wake)
      : job_(std::move(job)),
        node_(std::move(node)),
        secret_(secret),
        clock_(clock),
        wake_(std::move(wake)) {}
  void add(AgentEvent event);

  JobSetting job_;
  NodePlan node_;
  const Secret secret_;
  const Clock& clock_;
  UniqueFd wake_;
  std::vector<AgentEvent> events_;
};

}  // namespace lockstep::launch

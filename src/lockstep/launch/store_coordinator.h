// The coordinator of several hosts: a thread that meets the other agents, shares the job's log with them, and
// watches that they live.
//
// Every agent beats; node 0 looks at all beats and says who is gone; the others see node 0 by its store,
// which does not answer any more. Either way the job is over within kSilence and a little.
//
// Thread safety: the methods are for the launcher's thread; the network is touched by the coordinator's own
// only. The destructor tells the others that this agent leaves on purpose (node 0 waits a moment until they
// have), and joins the thread.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/launch/agent_meeting.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/job_log.h"
#include "lockstep/launch/shared_log.h"

namespace lockstep::launch {

struct StoreCoordinatorOptions {
  MeetingOptions meeting = {};
  NodePlan plan = {};
  Duration join_timeout = std::chrono::minutes(5);
  Duration interval = std::chrono::milliseconds(100);  // between two looks; beats are at most kBeat apart
};

class StoreCoordinator final : public Coordinator {
 public:
  static constexpr Duration kSilence = std::chrono::seconds(4);
  static constexpr Duration kBeat = std::chrono::milliseconds(500);

  // Starts the thread; whether they meet comes as an event.
  static Result<std::unique_ptr<StoreCoordinator>> start(StoreCoordinatorOptions options, const Clock& clock);
  ~StoreCoordinator() override;

  int fd() const override { return wake_.get(); }
  std::vector<AgentEvent> take() override;
  void open_round(std::uint64_t epoch) override;
  void report_failure(const FailureReport& report) override;
  void report_done(std::uint64_t epoch) override;
  void report_stop(int signal) override;

 private:
  StoreCoordinator(StoreCoordinatorOptions options, const Clock& clock, UniqueFd wake);

  void post(AgentMessage message) LOCKSTEP_EXCLUDES(mutex_);
  void emit(AgentEvent event) LOCKSTEP_EXCLUDES(mutex_);
  bool leaving() LOCKSTEP_EXCLUDES(mutex_);
  std::vector<AgentMessage> take_outbox() LOCKSTEP_EXCLUDES(mutex_);

  // The coordinator's own thread.
  void run_on_thread();
  struct Session;  // its state, once the agents have met
  Status work_on_thread(Session& session);
  Status publish_on_thread(Session& session, const AgentMessage& message);
  Status read_log_on_thread(Session& session);
  Status make_round_on_thread(Session& session);
  Status beat_on_thread(Session& session);
  Status watch_beats_on_thread(Session& session);
  Status check_join_on_thread(Session& session);
  void leave_on_thread(Session& session);

  const StoreCoordinatorOptions options_;
  const Clock& clock_;
  UniqueFd wake_;
  Mutex mutex_;
  std::vector<AgentEvent> events_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<AgentMessage> outbox_ LOCKSTEP_GUARDED_BY(mutex_);
  bool leaving_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace lockstep::launch

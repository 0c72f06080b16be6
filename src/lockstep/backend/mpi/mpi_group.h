// A group of ranks over MPI: Backend on two communicators of its own.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/membership.h"
#include "lockstep/backend/mpi/message.h"
#include "lockstep/backend/mpi/mpi_world.h"
#include "lockstep/backend/mpi/news.h"
#include "lockstep/backend/op_queue.h"
#include "lockstep/backend/rounds.h"
#include "lockstep/base/clock.h"

namespace lockstep::backend::mpi {

class MpiGroup;

// What a group is made of.
struct MpiGroupParts {
  GroupPlan plan;
  std::uint64_t id = 0;  // tells groups apart
  CompareCalls compare_calls = CompareCalls::kAlways;
  // The group's from now on. The first is for collectives and the user's messages, which MPI keeps apart;
  // the second for its own messages.
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm own_comm = MPI_COMM_NULL;
  int largest_tag = 0;
  std::function<void(MpiGroup*)> on_leave;  // by its destructor
};

class MpiGroup final : public Backend, public RoundStarter {
 public:
  static Result<std::unique_ptr<MpiGroup>> make(MpiGroupParts parts, const Clock& clock);
  ~MpiGroup() override;

  Rank rank() const override { return who_.rank(); }
  WorldSize size() const override { return who_.size(); }
  const std::string& name() const override { return who_.name(); }
  Rank world_rank(Rank member) const override { return who_.world_rank(member); }

  Status run(const Call& call, const OpOptions& options) override;
  WorkPtr start(const Call& call, const OpOptions& options) override;
  WorkPtr start_rounds(Rounds rounds, const OpOptions& options) override;
  Status monitored_barrier(const OpOptions& options) override;
  WorkPtr send(Rank to, std::uint64_t tag, ByteView bytes, const OpOptions& options) override;
  WorkPtr recv(std::optional<Rank> from, std::uint64_t tag, ByteSpan bytes,
               const OpOptions& options) override;

  Duration timeout() const override { return who_.timeout(); }
  void set_timeout(Duration timeout) override { who_.set_timeout(timeout); }
  std::uint64_t sequence() const override { return queue_.last_sequence(); }

  Status failure() const override;
  void abort(const Status& why) override;
  std::uint64_t id() const { return parts_.id; }
  // What is pending, and what comes later, is told what this rank `did` to the group. Idempotent; destruction
  // does it.
  void leave(std::string_view did);

 private:
  MpiGroup(MpiGroupParts parts, const Clock& clock);

  Status perform(const Call& call, std::uint64_t sequence, const Deadline& deadline,
                 const std::shared_ptr<const void>& keep);
  Status compare(const collective::Fingerprint& own, const Deadline& deadline);
  Status exchange(const Call& call, const Deadline& deadline, const std::shared_ptr<const void>& keep);
  // Until it ends; what is under way after an error is kept.
  Status finish(const std::shared_ptr<Transfer>& transfer, const Deadline& deadline);
  Status meet(std::uint64_t sequence, const Deadline& deadline);
  // Why such a message cannot be sent or received.
  Status refuse_message(std::string_view op, std::optional<Rank> peer, std::uint64_t tag) const;
  WorkPtr begin_message(MessagePlan plan, std::string_view op, std::optional<Rank> peer, std::uint64_t tag,
                        const OpOptions& options);

  const MpiGroupParts parts_;
  const Clock& clock_;
  Membership who_;
  // Shared with messages, which may outlive the group.
  const std::shared_ptr<News> news_;
  const std::shared_ptr<Mail> mail_;
  OpQueue queue_;
  std::atomic<std::uint64_t> messages_ = 0;
  std::atomic<bool> has_abandoned_ = false;
};

}  // namespace lockstep::backend::mpi

// A group of ranks over shared memory and TCP: Backend on a Communicator.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/counting.h"
#include "lockstep/backend/membership.h"
#include "lockstep/backend/native/mail.h"
#include "lockstep/backend/native/memory_reserve.h"
#include "lockstep/backend/native/straggler_watch.h"
#include "lockstep/backend/op_queue.h"
#include "lockstep/backend/rounds.h"
#include "lockstep/backend/store_barriers.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error_file.h"
#include "lockstep/base/mutex.h"
#include "lockstep/collective/helpers.h"
#include "lockstep/transport/communicator.h"

namespace lockstep::backend {

class MessageWork;
class NativeGroup;

// What a group is made of.
struct NativeGroupParts {
  std::shared_ptr<const void> facilities;  // the world's: what the rest refers to
  GroupPlan plan;                          // with a store, for monitored_barrier
  std::uint64_t id = 0;                    // tells groups and epochs apart
  // Nothing for a group of one.
  std::unique_ptr<transport::Communicator> communicator;
  Mail& mail;
  const collective::Means& means;
  MemoryReserve& reserve;  // for what must be said when there is no memory
  // All members that are lost by now, ranks of the world; empty for a group of one.
  std::function<std::vector<Rank>()> lost;
  std::function<bool(Rank)> has_left;          // whether that rank of the world is known to have left it
  std::function<void(NativeGroup*)> on_leave;  // afterwards nothing outside refers to the communicator
  ErrorNote error_note;                        // hears what ends the group
};

class NativeGroup final : public Backend, public Counting, public RoundStarter {
 public:
  NativeGroup(NativeGroupParts parts, const Clock& clock);
  ~NativeGroup() override;

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
  void abort(const Status& given) override;
  Counters counters() const override;
  std::uint64_t id() const { return parts_.id; }
  bool has_member(Rank rank) const { return std::ranges::find(who_.members(), rank) != who_.members().end(); }
  // Members on this host hear it at once, those on others with their next operation. Does not wait, and does
  // not throw for want of memory.
  void fail_from_outside(const Status& why);
  // As abort(); afterwards no operation of the group touches memory. kTimeout if messages do not end.
  Status end(const Status& why, const Deadline& deadline);
  // What its destructor does, which does the rest of it: this rank takes part in nothing any more, and what
  // is pending or comes later is told what it `did` to the group. Idempotent.
  void leave(std::string_view did);

 private:
  // What the callbacks of messages need, which may run after the group is gone, and how many have not ended.
  struct Pending;
  // The failure as it is told to this rank: one that the others have lost hears that they did.
  Status told(const Status& failure) const;
  // The messenger, if such a message can be sent or received.
  Result<Mail::MessengerPtr> messenger_for(std::string_view op, Rank peer);
  std::shared_ptr<MessageWork> new_message(const char* op, const Result<Mail::MessengerPtr>& messenger,
                                           const OpOptions& options);
  void stop(const Status& why);
  Status perform(const Call& call, std::uint64_t sequence, const Deadline& deadline);
  // Runs the body of an operation. If it runs out of memory the group has failed.
  template <typename Body>
  Status bear(std::string_view op, std::uint64_t sequence, const Body& body);
  Status fail_without_memory(std::string_view op, std::uint64_t sequence);
  // Runs `body` until it finds memory, a few times: each time it comes further. False if it never did.
  template <typename Body>
  bool insist(const Body& body) const;
  // There was not even enough to say so: that is told when there is.
  void keep_untold();
  void tell_at_last() const;
  // An operation has ended the group; gives what this rank is told.
  Status fail(const Status& why) const;
  // The same for one that could not begin in time.
  Status fail_late(const Status& why);
  Status with_absent(const Status& why) const;
  // Members, ranks of the world, that are known without the store not to be in that operation: of this host,
  // and who is lost.
  std::vector<Rank> absent_from(std::uint64_t sequence) const;
  // After an operation: counts whom this rank has waited for; one rank of the host says whom its neighbours
  // wait for again and again.
  void look_for_straggler(std::uint64_t sequence);
  void say(const std::optional<StragglerWatch::Report>& report) const;

  NativeGroupParts parts_;
  const Clock& clock_;
  Membership who_;
  mutable OpQueue queue_;  // failure() may have something to tell yet
  // Of whoever runs an operation.
  StoreBarriers barriers_{who_};
  StragglerWatch stragglers_;       // on this host
  StragglerWatch lone_stragglers_;  // alone on another one
  mutable Mutex waits_mutex_;
  std::map<Rank, Counters::Wait> waits_ LOCKSTEP_GUARDED_BY(waits_mutex_);
  std::atomic<bool> left_ = false;  // then what becomes of the group on other ranks is not ours any more
  std::atomic<std::uint64_t> messages_ = 0;
  const std::shared_ptr<Pending> pending_;
  const Status no_memory_;  // made in time
  mutable std::atomic<bool> untold_ = false;
};

}  // namespace lockstep::backend

#include "lockstep/backend/rounds.h"

#include <new>
#include <utility>

namespace lockstep::backend {
namespace {

// Made while there is some.
Status without_memory() {
  return Status::internal("there is no memory for what goes into an operation",
                          {.failure = Failure::kNoMemory});
}

// What a round of its user's does without memory is an error like any other: the other ranks wait for it.
Result<Call> ask(const std::function<Result<Call>()>& next, const Status& no_memory) {
  try {
    return next();
  } catch (const std::bad_alloc&) {
    return no_memory;
  }
}

}  // namespace

Status run_rounds(Backend& backend, const Rounds& rounds, const OpOptions& options) {
  const Status no_memory = without_memory();
  for (const auto& next : rounds.calls) {
    const Result<Call> call = ask(next, no_memory);
    if (!call.ok()) {
      if (call.status().code() != Code::kInvalid) backend.abort(call.status());
      return call.status();
    }
    LOCKSTEP_TRY(backend.run(*call, options));
  }
  return rounds.finish ? rounds.finish() : Status();
}

WorkPtr start_in(OpQueue& queue, const Membership& who, Rounds rounds, RoundRunner runner,
                 const OpOptions& options) {
  if (const Status refused = who.refuse_in_forked_child("start_rounds"); !refused.ok())
    return queue.ended(refused);
  const Deadline deadline = who.deadline_of(options);
  const std::size_t count = rounds.calls.size();
  auto body = [&who, rounds = std::move(rounds), runner = std::move(runner), deadline, keep = options.keep,
               no_memory = without_memory()](std::uint64_t first) -> Status {
    std::uint64_t sequence = first;
    for (const auto& next : rounds.calls) {
      const Result<Call> call = ask(next, no_memory);
      if (!call.ok())
        return call.status().code() == Code::kInvalid ? call.status() : runner.fail(call.status(), sequence);
      LOCKSTEP_TRY(who.admit(*call));
      LOCKSTEP_TRY(runner.perform(*call, sequence++, deadline));
    }
    return rounds.finish ? rounds.finish() : Status();
  };
  return queue.start(std::move(body), deadline, count);
}

}  // namespace lockstep::backend

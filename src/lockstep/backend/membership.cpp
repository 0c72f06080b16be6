#include "lockstep/backend/membership.h"

#include <utility>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {

Membership::Membership(GroupPlan plan, const Clock& clock)
    : plan_(std::move(plan)),
      clock_(clock),
      fork_generation_(base::fork_generation()),
      timeout_(plan_.timeout) {}

std::string Membership::text() const { return cat("rank ", own(), ": group ", base::quoted(plan_.name)); }

bool Membership::in_forked_child() const { return base::fork_generation() != fork_generation_; }

Status Membership::refuse_in_forked_child(std::string_view op) const {
  if (!in_forked_child()) return {};
  return Status::invalid(
      cat(op, " in a process that was forked after its group ", base::quoted(plan_.name),
          " was made: the group belongs to the parent. Start a process of its own instead."),
      {.failure = Failure::kForked, .rank = plan_.rank, .op = std::string(op), .group = plan_.name});
}

Status Membership::admit(const Call& call) const {
  LOCKSTEP_TRY(refuse_in_forked_child(collective::name_of(call.kind)));
  return collective::check(call, plan_.rank, size());
}

}  // namespace lockstep::backend

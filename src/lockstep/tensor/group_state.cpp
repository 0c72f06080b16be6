#include "lockstep/tensor/group_state.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::tensor {
namespace {

std::string device_text(c10::DeviceType device) { return c10::DeviceTypeName(device, /*lower_case=*/true); }

}  // namespace

void check_timeout(const char* call, Duration timeout, std::optional<Rank> at) {
  if (timeout >= Duration::zero()) return;
  throw_error(Status::invalid(cat(at ? cat("rank ", *at, ": ") : "", call, ": timeout is ", timeout,
                                  ", and must not be negative."),
                              {.rank = at, .op = call}),
              at);
}

GroupState::GroupState(Parts parts)
    : name_(std::move(parts.name)),
      description_(std::move(parts.description)),
      backend_text_(std::move(parts.backend)),
      ranks_(std::move(parts.ranks)),
      world_ranks_(std::move(parts.world_ranks)),
      rank_(parts.rank),
      global_rank_(parts.global_rank),
      watch_(parts.watch ? std::move(parts.watch)
                         : std::make_shared<GroupWatch>(DebugLevel::kOff, Duration{})),
      profiling_(parts.profiling),
      fork_generation_(base::fork_generation()),
      backends_(std::move(parts.backends)) {
  for (const DeviceBackend& backend : backends_) names_.emplace_back(backend.device, backend.name);
}

std::shared_ptr<GroupState> GroupState::non_member(int global_rank) {
  return std::make_shared<GroupState>(Parts{.name = "non-member", .global_rank = global_rank});
}

int GroupState::group_rank_of(int global_rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), global_rank);
  return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
}

void GroupState::throw_closed(const char* call) const {
  throw_error(Status::invalid(cat("rank ", global_rank_, ": ", call, ": the group ", base::quoted(name_),
                                  " was destroyed; make a new one."),
                              {.failure = Failure::kClosed, .op = call, .group = name_}),
              Rank{global_rank_});
}

void GroupState::throw_non_member(const char* call) const {
  std::optional<Rank> at;  // known in a world alone
  if (global_rank_ >= 0) at = Rank{global_rank_};
  throw_error(Status::invalid(
                  cat(at ? cat("rank ", *at, ": ") : "", call, ": this rank is not a member of the group."),
                  {.rank = at, .op = call}),
              at);
}

bool GroupState::is_of_this_process() const { return base::fork_generation() == fork_generation_; }

void GroupState::check_open(const char* call) const {
  refuse_in_forked_child(call);
  if (is_closed()) throw_closed(call);
}

void GroupState::refuse_in_forked_child(const char* call) const {
  if (is_of_this_process()) return;
  throw_error(Status::invalid(cat("rank ", global_rank_, ": ", call,
                                  ": this process was forked after the group ", base::quoted(name_),
                                  " was made, which is its parent's. Start a process of its own instead."),
                              {.failure = Failure::kForked, .op = call, .group = name_}),
              Rank{global_rank_});
}

std::shared_ptr<Backend> GroupState::backend(const char* call, c10::DeviceType device) const {
  refuse_in_forked_child(call);
  if (!is_member()) throw_non_member(call);
  {
    const MutexLock lock(mutex_);
    for (const DeviceBackend& entry : backends_) {
      if (entry.device == device) return entry.backend;
    }
    if (backends_.empty()) throw_closed(call);
  }
  throw_error(
      Status::invalid(cat("rank ", global_rank_, ": ", call, ": the group ", base::quoted(name_),
                          " has no backend for tensors on ", device_text(device), "; it has ", config(), "."),
                      {.op = call, .group = name_}),
      Rank{global_rank_});
}

std::shared_ptr<Backend> GroupState::any_backend(const char* call) const {
  refuse_in_forked_child(call);
  if (!is_member()) throw_non_member(call);
  const MutexLock lock(mutex_);
  if (backends_.empty()) throw_closed(call);
  return backends_.front().backend;
}

bool GroupState::takes(c10::DeviceType device) const {
  return std::ranges::any_of(names_, [&](const auto& named) { return named.first == device; });
}

const std::string& GroupState::backend_name(c10::DeviceType device) const {
  for (const auto& [type, name] : names_) {
    if (type == device) return name;
  }
  throw_error(Status::invalid(cat("rank ", global_rank_, ": get_backend: device: the group ",
                                  base::quoted(name_), " has no backend for ", device_text(device), "."),
                              {.op = "get_backend", .group = name_}),
              Rank{global_rank_});
}

std::string GroupState::config() const {
  std::vector<std::string> parts;
  parts.reserve(names_.size());
  for (const auto& [type, name] : names_) parts.push_back(cat(device_text(type), ":", name));
  return base::join(parts, ",");
}

void GroupState::set_timeout(Duration timeout) {
  constexpr const char* kCall = "set_timeout";
  refuse_in_forked_child(kCall);
  if (!is_member()) throw_non_member(kCall);
  check_timeout(kCall, timeout, Rank{global_rank_});
  const MutexLock lock(mutex_);
  if (backends_.empty()) throw_closed(kCall);
  for (const DeviceBackend& entry : backends_) entry.backend->set_timeout(timeout);
}

bool GroupState::is_closed() const {
  const MutexLock lock(mutex_);
  return is_member() && backends_.empty();
}

void GroupState::close() {
  std::vector<DeviceBackend> taken;  // destroyed with no lock held
  {
    const MutexLock lock(mutex_);
    taken = std::exchange(backends_, {});
  }
  for (const DeviceBackend& entry : taken) {
    // Somebody is in an operation, which cannot end well for anybody any more.
    if (entry.backend.use_count() > 1) {
      entry.backend->abort(
          Status::aborted(cat("the group ", base::quoted(name_), " was destroyed during an operation"),
                          {.failure = Failure::kClosed, .group = name_}));
    }
  }
}

}  // namespace lockstep::tensor

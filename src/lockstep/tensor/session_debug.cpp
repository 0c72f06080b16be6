// What debugging asks of a session.
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/tensor/session.h"

namespace lockstep::tensor {

std::vector<std::shared_ptr<GroupState>> Session::groups() const {
  take_completed();
  std::vector<std::shared_ptr<GroupState>> living;
  const MutexLock lock(mutex_);
  for (const auto& group : groups_) {
    if (std::shared_ptr<GroupState> held = group.lock(); held && !held->is_closed())
      living.push_back(std::move(held));
  }
  return living;
}

int Session::count_breakpoint(const std::string& place) {
  const MutexLock lock(mutex_);
  return ++breakpoints_[place];
}

std::shared_ptr<GroupWatch> Session::new_watch() const {
  return std::make_shared<GroupWatch>(debug_level(), summary_every_);
}

DebugLevel Session::debug_level() const { return debug_level_.load(); }

void Session::set_debug_level(DebugLevel level) {
  debug_level_ = level;
  for (const std::shared_ptr<GroupState>& group : groups()) group->watch()->set_level(level);
}

std::string Session::describe() const {
  const std::shared_ptr<GroupState> all = default_group();
  return cat("rank ", all->rank(), " of ", all->size(), " (", local_rank_, " of ", local_size_,
             " on its host) has joined: backend ", all->config(), ", timeout ",
             all->any_backend("init_process_group")->timeout(), ", debug level ", name_of(debug_level()),
             ".");
}

}  // namespace lockstep::tensor

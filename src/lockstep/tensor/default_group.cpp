#include "lockstep/tensor/default_group.h"

#include <optional>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/debug_level.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/init.h"

namespace lockstep::tensor {
namespace {

struct Slot {
  Mutex mutex;
  std::shared_ptr<Session> session LOCKSTEP_GUARDED_BY(mutex);
  bool joining LOCKSTEP_GUARDED_BY(mutex) = false;
  std::optional<DebugLevel> debug_level LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed: a WorldHandle with static storage may be destroyed at any time.
Slot& slot() {
  static Slot* const only = new Slot;
  return *only;
}

// Takes the session out, if it is `which` or any will do.
std::shared_ptr<Session> take(const std::shared_ptr<Session>& which) {
  Slot& place = slot();
  const MutexLock lock(place.mutex);
  if (which && place.session != which) return nullptr;
  return std::exchange(place.session, nullptr);
}

class Joining {
 public:
  explicit Joining(std::optional<Rank> rank) {
    Slot& place = slot();
    const MutexLock lock(place.mutex);
    const Caller caller{"init_process_group",
                        place.session ? std::optional(Rank{place.session->default_group()->rank()}) : rank};
    if (place.joining) caller.refuse("this process is joining a world in another thread.");
    if (place.session)
      caller.refuse("this process is in a world already; call destroy_process_group() first.");
    place.joining = true;
  }
  ~Joining() {
    const MutexLock lock(slot().mutex);
    slot().joining = false;
  }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;
};

Environment read_environment() {
  auto environment = Environment::read();
  throw_if_error(environment.status(), {});
  return std::move(*environment);
}

DebugLevel level_in(const Environment& environment) { return environment.debug.value_or(DebugLevel::kOff); }

// By set_debug_level().
std::optional<DebugLevel> chosen_level() {
  const MutexLock lock(slot().mutex);
  return slot().debug_level;
}

}  // namespace

std::shared_ptr<Session> find_session() {
  const MutexLock lock(slot().mutex);
  return slot().session;
}

std::shared_ptr<Session> current_session(const char* call) {
  if (std::shared_ptr<Session> session = find_session()) return session;
  throw_error(Status::invalid(cat(call, ": there is no default group; call init_process_group() first."),
                              {.failure = Failure::kClosed, .op = call}),
              {});
}

std::shared_ptr<GroupState> default_group(const char* call) { return current_session(call)->default_group(); }

WorldHandle init_process_group(const InitOptions& options) {
  const Environment environment = options.environment ? *options.environment : read_environment();
  const Joining joining(rank_said(options, environment));
  const std::optional<DebugLevel> chosen = options.debug.level ? options.debug.level : chosen_level();
  const DebugLevel level = chosen ? *chosen : level_in(environment);
  std::shared_ptr<Session> session = Session::open(options, environment, level);
  const MutexLock lock(slot().mutex);
  slot().session = session;
  return WorldHandle(std::move(session));
}

WorldHandle::~WorldHandle() {
  if (!session_) return;
  if (const std::shared_ptr<Session> taken = take(session_)) taken->close();
}

WorldHandle& WorldHandle::operator=(WorldHandle&& other) noexcept {
  WorldHandle old(std::exchange(session_, std::exchange(other.session_, nullptr)));
  return *this;
}

void destroy_process_group() {
  const std::shared_ptr<Session> taken = take(nullptr);
  if (!taken) {
    throw_error(Status::invalid("destroy_process_group: there is no default group to destroy.",
                                {.failure = Failure::kClosed, .op = "destroy_process_group"}),
                {});
  }
  taken->close();
}

void destroy_process_group(const ProcessGroup& group) {
  const std::shared_ptr<Session> session = current_session("destroy_process_group");
  const std::shared_ptr<GroupState> state = group.state("destroy_process_group");
  if (!state->is_member()) return;
  if (state == session->default_group()) {
    destroy_process_group();
  } else {
    session->forget(state);
  }
}

bool is_initialized() { return find_session() != nullptr; }

DebugLevel get_debug_level() {
  if (const std::shared_ptr<Session> session = find_session()) return session->debug_level();
  const std::optional<DebugLevel> chosen = chosen_level();
  return chosen ? *chosen : level_in(read_environment());
}

void set_debug_level(DebugLevel level) {
  {
    const MutexLock lock(slot().mutex);
    slot().debug_level = level;
  }
  if (const std::shared_ptr<Session> session = find_session()) session->set_debug_level(level);
}

void set_debug_level_from_env() { set_debug_level(level_in(read_environment())); }

bool is_torchelastic_launched() {
  const auto environment = Environment::read();
  return environment.ok() && environment->torchelastic_run_id.has_value();
}

}  // namespace lockstep::tensor

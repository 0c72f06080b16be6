#include "lockstep/tensor/default_group.h"

#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/init.h"

namespace lockstep::tensor {
namespace {

struct Slot {
  Mutex mutex;
  std::shared_ptr<Session> session LOCKSTEP_GUARDED_BY(mutex);
  bool joining LOCKSTEP_GUARDED_BY(mutex) = false;
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
  Joining() {
    Slot& place = slot();
    const MutexLock lock(place.mutex);
    if (place.session || place.joining) {
      throw_error(
          Status::invalid(cat("init_process_group: this process ",
                              place.joining ? "is joining a world in another thread."
                                            : "is in a world already; call destroy_process_group() first.")),
          {});
    }
    place.joining = true;
  }
  ~Joining() {
    const MutexLock lock(slot().mutex);
    slot().joining = false;
  }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;
};

}  // namespace

std::shared_ptr<Session> current_session(const char* call) {
  Slot& place = slot();
  {
    const MutexLock lock(place.mutex);
    if (place.session) return place.session;
  }
  throw_error(Status::invalid(cat(call, ": there is no default group; call init_process_group() first."),
                              {.failure = Failure::kClosed, .op = call}),
              {});
}

std::shared_ptr<GroupState> default_group(const char* call) { return current_session(call)->default_group(); }

WorldHandle init_process_group(const InitOptions& options) {
  const Joining joining;
  std::shared_ptr<Session> session = Session::open(options);
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

bool is_initialized() {
  const MutexLock lock(slot().mutex);
  return slot().session != nullptr;
}

bool is_torchelastic_launched() {
  const auto environment = Environment::read();
  return environment.ok() && environment->torchelastic_run_id.has_value();
}

}  // namespace lockstep::tensor

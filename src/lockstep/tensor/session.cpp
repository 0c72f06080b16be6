#include "lockstep/tensor/session.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/logger.h"
#include "lockstep/tensor/window_state.h"

namespace lockstep::tensor {
namespace {

[[noreturn]] void refuse(std::string message, std::optional<Rank> at) {
  throw_error(Status::invalid(std::move(message)), at);
}

// What debugging says is to be seen, unless the log is told something else about tensors.
void configure_logging(base::LogOptions log, DebugLevel level) {
  if (level != DebugLevel::kOff && log.level > LogLevel::kInfo)
    log.modules.try_emplace("tensor", LogLevel::kInfo);
  base::configure_logging(log);
}

// A control block of its own, so that its count is that of the users of this backend.
std::shared_ptr<Backend> share(const std::shared_ptr<Groups>& groups, std::unique_ptr<Backend> made) {
  return {made.release(), [groups](Backend* backend) { delete backend; }};
}
std::shared_ptr<Backend> share_whole(const std::shared_ptr<Groups>& groups) {
  return {&groups->group(), [groups](Backend*) {}};
}

}  // namespace

// Groups without a name are matched by the order in which they are made, which two threads do not have.
class Session::Making {
 public:
  Making(Session& session, const char* call) : session_(session) {
    const MutexLock lock(session.mutex_);
    if (session.making_) {
      refuse(cat("rank ", session.default_->rank(), ": ", call,
                 ": another thread makes a group at this moment. Groups are matched by the order in which "
                 "they are made: "
                 "make them in one thread, or give each a name (group_name)."),
             Rank{session.default_->rank()});
    }
    session.making_ = true;
  }
  ~Making() {
    const MutexLock lock(session_.mutex_);
    session_.making_ = false;
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

 private:
  Session& session_;
};

std::shared_ptr<Session> Session::open(const InitOptions& options, const Environment& environment,
                                       DebugLevel level) {
  if (!options.environment) configure_logging(environment.log, level);
  std::shared_ptr<Session> session(new Session(join(options, environment), options, environment, level));
  if (level != DebugLevel::kOff) kLog.info(session->describe());
  return session;
}

Session::Session(Worlds worlds, const InitOptions& options, const Environment& environment, DebugLevel level)
    : backend_(options.backend),
      sources_(options.backends),
      variables_(environment.all),
      local_rank_(worlds.of_devices.front().groups->local_rank().value),
      local_size_(worlds.of_devices.front().groups->local_size().value),
      summary_every_(options.debug.summary_every),
      debug_level_(level),
      worlds_(std::move(worlds)) {
  const MutexLock lock(mutex_);
  GroupState::Parts parts{
      .name = options.group_name, .description = options.group_desc, .backend = options.backend};
  Backend& first = worlds_.of_devices.front().groups->group();
  parts.rank = parts.global_rank = first.rank().value;
  for (int i = 0; i < first.size().value; ++i) {
    parts.ranks.push_back(i);
    parts.world_ranks.push_back(first.world_rank(Rank{i}));
  }
  for (const DeviceWorld& world : worlds_.of_devices)
    parts.backends.push_back({world.device, world.backend, share_whole(world.groups)});
  parts.watch = new_watch();
  default_ = std::make_shared<GroupState>(std::move(parts));
  groups_.push_back(default_);
}

Session::~Session() { close(); }

std::shared_ptr<World> Session::find_native(const Worlds& worlds) {
  for (const auto* const some : {&worlds.of_devices, &worlds.of_groups}) {
    for (const DeviceWorld& world : *some)
      if (std::shared_ptr<World> found = std::dynamic_pointer_cast<World>(world.groups)) return found;
  }
  return nullptr;
}

std::shared_ptr<World> Session::native_world(const char* call) const {
  const Rank at = worlds(call).front().groups->rank();
  Worlds all;
  {
    const MutexLock lock(mutex_);
    all = worlds_;
  }
  if (std::shared_ptr<World> found = find_native(all)) return found;
  throw_error(Status::unsupported(cat("rank ", at, ": ", call, ": the backend ", base::quoted(backend_),
                                      " cannot do this; native can."),
                                  {.rank = at, .op = call}),
              at);
}

std::shared_ptr<GroupState> Session::default_group() const {
  const MutexLock lock(mutex_);
  return default_;
}

Duration Session::timeout_of(const char* call, const NewGroup& options) const {
  const std::shared_ptr<GroupState> all = default_group();
  if (!options.timeout) return all->any_backend(call)->timeout();
  check_timeout(call, *options.timeout, Rank{all->rank()});
  return *options.timeout;
}

std::string Session::unique_name(const std::string& name, const std::vector<Rank>& members) {
  const MutexLock lock(mutex_);
  const int count = ++made_[{name, members}];
  return count == 1 ? name : cat(name, " #", count);
}

std::shared_ptr<GroupState> Session::adopt(const char* call, std::unique_ptr<Backend> made,
                                           const std::vector<DeviceWorld>& from, std::string name,
                                           const NewGroup& options) {
  const std::shared_ptr<GroupState> all = default_group();
  GroupState::Parts parts{.name = std::move(name),
                          .description = options.description,
                          .backend = options.backend.value_or(backend_)};
  parts.rank = made->rank().value;
  parts.global_rank = all->rank();
  for (int i = 0; i < made->size().value; ++i) {
    const Rank world_rank = made->world_rank(Rank{i});
    const auto& known = all->world_ranks();
    parts.ranks.push_back(
        static_cast<int>(std::find(known.begin(), known.end(), world_rank) - known.begin()));
    parts.world_ranks.push_back(world_rank);
  }
  const GroupOptions same{.name = made->name(), .timeout = made->timeout()};
  for (const DeviceWorld& world : from) {
    if (!parts.backends.empty()) {
      auto next = world.groups->new_group(parts.world_ranks, same);
      throw_if_error(next.status().with_prefix(cat("rank ", all->rank(), ": ", call, ": ")),
                     Rank{all->rank()});
      made = std::move(*next);
    }
    parts.backends.push_back({world.device, world.backend, share(world.groups, std::move(made))});
  }
  parts.watch = new_watch();
  auto group = std::make_shared<GroupState>(std::move(parts));
  const MutexLock lock(mutex_);
  std::erase_if(groups_, [](const auto& other) { return other.expired(); });
  groups_.push_back(group);
  return group;
}

std::shared_ptr<GroupState> Session::make_group(const char* call, const std::vector<int>& members,
                                                const NewGroup& options) {
  const std::shared_ptr<GroupState> all = default_group();
  const Rank at{all->rank()};
  const auto wrong = [&](const auto&... what) { refuse(cat("rank ", at, ": ", call, ": ", what...), at); };
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) wrong("the list of ranks is empty.");
  if (sorted.front() < 0 || sorted.back() >= all->size())
    wrong("rank ", sorted.front() < 0 ? sorted.front() : sorted.back(),
          " in the list of ranks is not one of the ", all->size(), " ranks of the default group.");
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    wrong("rank ", *twice, " is in the list of ranks twice.");
  if (!std::binary_search(sorted.begin(), sorted.end(), at.value)) return GroupState::non_member(at.value);

  std::vector<Rank> world_ranks;
  world_ranks.reserve(members.size());
  for (const int member : members)
    world_ranks.push_back(all->world_ranks()[static_cast<std::size_t>(member)]);
  std::optional<Making> making;
  GroupOptions group{.timeout = timeout_of(call, options)};
  if (options.name) {
    group.name = unique_name(*options.name, world_ranks);
  } else {
    making.emplace(*this, call);
  }
  const std::vector<DeviceWorld> from = worlds_of(call, options.backend.value_or(backend_));
  auto made = from.front().groups->new_group(world_ranks, group);
  throw_if_error(made.status().with_prefix(cat("rank ", at, ": ", call, ": ")), at);
  std::string name = (*made)->name();
  return adopt(call, std::move(*made), from, std::move(name), options);
}

std::shared_ptr<GroupState> Session::split(const std::shared_ptr<GroupState>& parent, const SplitBy& by,
                                           const NewGroup& options) {
  const Rank at{parent->global_rank()};
  if (!parent->is_member()) return GroupState::non_member(at.value);
  const NewGroup group{options.name, options.description, options.timeout, parent->backend_text()};
  if (options.backend && *options.backend != *group.backend) {
    Caller{"split_group", at}.refuse("backend is ", base::quoted(*options.backend), ", but the group ",
                                     base::quoted(parent->name()), " has ", base::quoted(*group.backend),
                                     ", and so do those that it is split into by colour.");
  }
  const std::vector<DeviceWorld> from = worlds_of("split_group", *group.backend);
  const Making making(*this, "split_group");
  const std::shared_ptr<Backend> backend = parent->backend("split_group", from.front().device);
  auto made = from.front().groups->split(*backend, by, {.timeout = timeout_of("split_group", options)});
  throw_if_error(made.status(), at);
  if (!*made) return GroupState::non_member(at.value);
  std::string name = options.name.value_or((*made)->name());
  return adopt("split_group", std::move(*made), from, std::move(name), group);
}

std::shared_ptr<GroupState> Session::shrink(const std::vector<int>& exclude, const NewGroup& options) {
  const std::shared_ptr<GroupState> all = default_group();
  const Rank at{all->rank()};
  ShrinkOptions shrink{.group = {.name = options.name, .timeout = timeout_of("shrink_group", options)}};
  for (const int rank : exclude) {
    if (rank < 0 || rank >= all->size())
      refuse(cat("rank ", at, ": shrink_group: rank ", rank, " in ranks_to_exclude is not one of the ",
                 all->size(), " ranks of the group."),
             at);
    shrink.exclude.push_back(all->world_ranks()[static_cast<std::size_t>(rank)]);
  }
  if (options.backend && *options.backend != backend_)
    Caller{"shrink_group", at}.refuse("backend: the default group keeps ", base::quoted(backend_), ".");
  const Making making(*this, "shrink_group");
  const std::shared_ptr<World> world = native_world("shrink_group");
  const DeviceWorld from = only_world("shrink_group");
  auto made = world->shrink(shrink);
  throw_if_error(made.status(), at);

  GroupState::Parts parts{.name = (*made)->name(), .description = options.description, .backend = backend_};
  parts.rank = parts.global_rank = (*made)->rank().value;
  for (int i = 0; i < (*made)->size().value; ++i) {
    parts.ranks.push_back(i);
    parts.world_ranks.push_back((*made)->world_rank(Rank{i}));
  }
  parts.backends.push_back({from.device, from.backend, share(from.groups, std::move(*made))});
  parts.watch = new_watch();
  auto group = std::make_shared<GroupState>(std::move(parts));
  std::vector<std::weak_ptr<GroupState>> ended;
  std::vector<Kept> kept;
  {
    const MutexLock lock(mutex_);
    kept = std::exchange(kept_, {});
    ended = std::exchange(groups_, {group});
    default_ = group;
  }
  close_windows();
  for (const auto& old : ended) {
    if (const std::shared_ptr<GroupState> held = old.lock()) held->close();
  }
  return group;
}

Result<SharedMemory> Session::allocate(Bytes size) const {
  Worlds all;
  {
    const MutexLock lock(mutex_);
    all = worlds_;
  }
  if (all.of_devices.empty()) return Status::invalid("the world was left", {.failure = Failure::kClosed});
  if (const std::shared_ptr<World> world = find_native(all)) return world->allocate(size);
  return Status::unsupported(
      cat("the backend ", base::quoted(backend_), " has no memory of this kind; native has"));
}

std::shared_ptr<WindowState> Session::make_window(const char* call, const std::shared_ptr<GroupState>& group,
                                                  Bytes size, std::optional<Duration> timeout) {
  const Rank at{group->global_rank()};
  const std::shared_ptr<World> world = native_world(call);
  auto* const maker = dynamic_cast<backend::WindowMaker*>(world.get());
  if (maker == nullptr) refuse(cat("rank ", at, ": ", call, ": this world has no windows."), at);
  const Making making(*this, call);
  GroupOptions options{.timeout = timeout ? *timeout : group->any_backend(call)->timeout()};
  auto made = maker->open_window(group->world_ranks(), size, options);
  throw_if_error(made.status().with_prefix(cat("rank ", at, ": ", call, ": ")), at);
  // Keeps the world, which outlives its groups.
  std::shared_ptr<backend::Window> window(made->release(), [world](backend::Window* held) { delete held; });
  auto state = std::make_shared<WindowState>(std::move(window), group);
  const MutexLock lock(mutex_);
  std::erase_if(windows_, [](const auto& other) { return other.expired(); });
  windows_.push_back(state);
  return state;
}

// Windows end before the world of their groups.
void Session::close_windows() {
  std::vector<std::weak_ptr<WindowState>> ended;
  {
    const MutexLock lock(mutex_);
    ended = std::exchange(windows_, {});
  }
  for (const auto& old : ended) {
    if (const std::shared_ptr<WindowState> held = old.lock()) held->close();
  }
}

void Session::keep(std::shared_ptr<GroupState> group, backend::WorkPtr work) {
  const std::vector<Kept> over = take_completed();  // let go of with no lock held
  const MutexLock lock(mutex_);
  if (!worlds_.of_devices.empty()) kept_.push_back({std::move(group), std::move(work)});
}

std::vector<Session::Kept> Session::take_completed() const {
  std::vector<Kept> over;
  const MutexLock lock(mutex_);
  std::erase_if(kept_, [&](Kept& kept) {
    if (!kept.work->is_completed()) return false;
    over.push_back(std::move(kept));
    return true;
  });
  return over;
}

void Session::forget(const std::shared_ptr<GroupState>& group) {
  group->close();
  const MutexLock lock(mutex_);
  std::erase_if(groups_, [&](const auto& other) { return other.expired() || other.lock() == group; });
}

void Session::close() {
  close_windows();
  std::vector<std::weak_ptr<GroupState>> ended;
  Worlds worlds;  // outlive their groups
  std::vector<Kept> kept;
  {
    const MutexLock lock(mutex_);
    kept = std::exchange(kept_, {});
    ended = std::exchange(groups_, {});
    worlds = std::exchange(worlds_, {});
  }
  // The youngest first, so that the default group is the last.
  for (auto old = ended.rbegin(); old != ended.rend(); ++old) {
    if (const std::shared_ptr<GroupState> held = old->lock()) held->close();
  }
}

}  // namespace lockstep::tensor

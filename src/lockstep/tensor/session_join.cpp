// How a session joins its world: what the options say, and the backends one after the other.
#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/tensor/backend_source.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/session.h"

namespace lockstep::tensor {
namespace {

std::string name_of(c10::DeviceType device) { return c10::DeviceTypeName(device, /*lower_case=*/true); }

// What is said twice is refused: nobody could say which one counts.
WorldOptions world_options(const InitOptions& options, const Caller& caller) {
  WorldOptions world = options.world;
  RendezvousOptions& rendezvous = world.rendezvous;
  const auto take = [&](const auto& given, auto& target, const char* name, auto convert) {
    if (!given) return;
    if (target) caller.refuse(name, " is given twice, also in world.rendezvous.");
    target = convert(*given);
  };
  if (options.init_method && options.store)
    caller.refuse("init_method and store exclude each other; give one of them.");
  take(options.init_method, rendezvous.url, "init_method", [](const std::string& url) { return url; });
  take(options.rank, rendezvous.rank, "rank", [](int rank) { return Rank{rank}; });
  take(options.world_size, rendezvous.world_size, "world_size", [](int size) { return WorldSize{size}; });
  if (options.store) {
    if (rendezvous.store) caller.refuse("store is given twice, also in world.rendezvous.");
    rendezvous.store = options.store;
  }
  if (options.timeout) {
    check_timeout(caller.call, *options.timeout, caller.rank);
    world.timeout = *options.timeout;
  }
  return world;
}

// How the ranks meet again for the next backend: in the store of those that have met already.
void meet_in_store_of(const RendezvousGroups& first, const std::string& where, RendezvousOptions& next) {
  next.url.reset();
  next.store = std::make_shared<store::PrefixStore>(where, first.rendezvous().store);
  next.rank = first.rank();
  next.world_size = first.size();
}

}  // namespace

std::optional<Rank> rank_said(const InitOptions& options, const Environment& environment) {
  if (options.rank) return Rank{*options.rank};
  if (options.world.rendezvous.rank) return options.world.rendezvous.rank;
  return environment.rank ? std::optional(Rank{*environment.rank}) : std::nullopt;
}

Session::Worlds Session::join(const InitOptions& options, const Environment& environment) {
  const Caller caller{"init_process_group", rank_said(options, environment)};
  WorldOptions joining = world_options(options, caller);
  std::vector<DeviceWorld> all;
  for (const auto& [device, backend] : parse_backend_config(options.backend, options.backends, caller))
    all.push_back({device, backend, nullptr});
  const auto devices = static_cast<std::ptrdiff_t>(all.size());
  for (const std::string& text : options.group_backends) {
    for (const auto& [device, backend] : parse_backend_config(text, options.backends, caller)) {
      const DeviceWorld next{device, backend, nullptr};
      if (std::ranges::none_of(all,
                               [&](const auto& earlier) { return earlier.is_for(device, next.backend); }))
        all.push_back(next);
    }
  }
  // Whoever is first has the store, in which the ranks meet for the others.
  std::vector<DeviceWorld*> order;
  order.reserve(all.size());
  for (DeviceWorld& world : all) order.push_back(&world);
  std::stable_partition(order.begin(), order.end(),
                        [](const auto* world) { return world->backend == "native"; });
  const std::shared_ptr<Groups>& first = order.front()->groups;
  for (DeviceWorld* const world : order) {
    if (const auto* const met = dynamic_cast<const RendezvousGroups*>(first.get())) {
      const bool of_default = world - all.data() < devices;
      meet_in_store_of(*met,
                       of_default ? cat("device/", name_of(world->device))
                                  : cat("backend/", world->backend, "/", name_of(world->device)),
                       joining.rendezvous);
    }
    auto groups = find_backend(world->backend, options.backends, caller).join(joining, environment);
    throw_if_error(caller.named(groups.status()), caller.rank);
    // The first outlives the others.
    world->groups = {groups->release(), [first = first](const Groups* held) { delete held; }};
    if (world->groups->rank() != first->rank() || world->groups->size() != first->size()) {
      Caller{caller.call, first->rank()}.refuse(
          "backend: this is rank ", first->rank(), " of ", first->size(), " with ",
          base::quoted(order.front()->backend), ", but rank ", world->groups->rank(), " of ",
          world->groups->size(), " with ", base::quoted(world->backend), ".");
    }
  }
  Worlds joined;
  joined.of_devices.assign(all.begin(), all.begin() + devices);
  joined.of_groups.assign(all.begin() + devices, all.end());
  return joined;
}

std::vector<Session::DeviceWorld> Session::worlds(const char* call) const {
  const MutexLock lock(mutex_);
  if (worlds_.of_devices.empty())
    Caller{call, Rank{default_->rank()}}.refuse("the world was left meanwhile.");
  return worlds_.of_devices;
}

std::vector<Session::DeviceWorld> Session::worlds_of(const char* call, const std::string& backend) const {
  std::vector<DeviceWorld> all = worlds(call);
  if (backend == backend_) return all;
  const Caller caller{call, Rank{default_group()->rank()}};
  {
    const MutexLock lock(mutex_);
    all.insert(all.end(), worlds_.of_groups.begin(), worlds_.of_groups.end());
  }
  std::vector<DeviceWorld> chosen;
  for (const DeviceBackendName& named : parse_backend_config(backend, sources_, caller)) {
    const auto found = std::ranges::find_if(
        all, [&](const auto& world) { return world.is_for(named.device, named.backend); });
    if (found == all.end()) {
      caller.refuse("backend: the ranks have not joined ", base::quoted(named.backend), " for ",
                    name_of(named.device), "; name it in InitOptions::group_backends.");
    }
    chosen.push_back(*found);
  }
  return chosen;
}

Session::DeviceWorld Session::only_world(const char* call) const {
  const Rank at{default_group()->rank()};
  Worlds all;
  {
    const MutexLock lock(mutex_);
    all = worlds_;
  }
  if (all.of_devices.size() == 1 && all.of_groups.empty()) return all.of_devices.front();
  std::string names = backend_;
  for (const DeviceWorld& world : all.of_groups) names += cat(",", name_of(world.device), ":", world.backend);
  throw_error(Status::unsupported(cat("rank ", at, ": ", call, ": native is one of several backends (", names,
                                      "), and the others cannot be shrunk."),
                                  {.rank = at, .op = call}),
              at);
}

}  // namespace lockstep::tensor

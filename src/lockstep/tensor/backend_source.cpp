#include "lockstep/tensor/backend_source.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/backend/mpi/mpi_world.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/logger.h"

namespace lockstep::backend {
// Not there unless the program links Lockstep::mpi, which asks the linker for it.
[[gnu::weak]] Result<std::unique_ptr<Groups>> join_mpi(const MpiOptions& options);
}  // namespace lockstep::backend

namespace lockstep::tensor {
namespace {

std::string name_of(c10::DeviceType device) { return c10::DeviceTypeName(device, /*lower_case=*/true); }

std::optional<c10::DeviceType> parse_device(std::string_view text) {
  for (int i = 0; i < c10::COMPILE_TIME_MAX_DEVICE_TYPES; ++i) {
    const auto device = static_cast<c10::DeviceType>(i);
    if (c10::isValidDeviceType(device) && name_of(device) == text) return device;
  }
  return std::nullopt;
}

Result<std::unique_ptr<Groups>> join_native(const WorldOptions& options, const Environment& environment) {
  LOCKSTEP_ASSIGN(std::unique_ptr<World> world, World::join(options, environment));
  return std::unique_ptr<Groups>(std::move(world));
}

// Who a rank is, MPI says; what others say is ignored, as torch does.
Result<std::unique_ptr<Groups>> join_by_mpi(const WorldOptions& options, const Environment& environment) {
  MpiOptions mpi{.timeout = options.timeout};
  if (options.rendezvous.timeout) mpi.join_timeout = *options.rendezvous.timeout;
  LOCKSTEP_ASSIGN(std::unique_ptr<Groups> groups, backend::join_mpi(mpi));
  std::optional<Rank> rank = options.rendezvous.rank;
  if (!rank && environment.rank) rank = Rank{*environment.rank};
  std::optional<WorldSize> size = options.rendezvous.world_size;
  if (!size && environment.world_size) size = WorldSize{*environment.world_size};
  if (rank.value_or(groups->rank()) != groups->rank() || size.value_or(groups->size()) != groups->size()) {
    kLog.warn(cat("init_process_group: to MPI this is rank ", groups->rank(), " of ", groups->size(),
                  "; that it is rank ", rank.value_or(groups->rank()), " of ", size.value_or(groups->size()),
                  " was said elsewhere and is ignored.",
                  groups->size().value == 1 ? " Start the ranks with mpirun." : ""));
  }
  return groups;
}

// What the one who has named such a backend can do.
std::string_view way_out(std::string_view unknown) {
  if (unknown == "mpi") return "For mpi link Lockstep::mpi, which Lockstep has where it was built with MPI.";
  if (unknown == "gloo") return "What gloo does in torch, native does here: leave the name out.";
  return "Pass others in InitOptions::backends.";
}

// Those that come with Lockstep and are linked.
const BackendSource* find_built_in(std::string_view name) {
  static const BackendSource kNative{.join = join_native};
  static const BackendSource kMpi{.join = join_by_mpi};
  if (name == "native") return &kNative;
  if (name == "mpi" && backend::join_mpi != nullptr) return &kMpi;
  return nullptr;
}

}  // namespace

BackendSource own_backend(MakeGroup make, std::vector<c10::DeviceType> devices) {
  return {
      .join = [make = std::move(make)](const WorldOptions& options,
                                       const Environment& environment) -> Result<std::unique_ptr<Groups>> {
        const JoinOptions joining{.rendezvous = options.rendezvous, .timeout = options.timeout};
        LOCKSTEP_ASSIGN(std::unique_ptr<RendezvousGroups> groups, join_groups(make, joining, environment));
        return std::unique_ptr<Groups>(std::move(groups));
      },
      .devices = std::move(devices)};
}

void Caller::throw_refused(const std::string& what) const {
  throw_error(Status::invalid(text() + what, {.rank = rank, .op = call}), rank);
}

Status Caller::named(const Status& status) const {
  const bool says_rank = status.message().starts_with("rank ");
  return status.with_prefix(says_rank || !rank ? cat(call, ": ") : text());
}

bool is_backend_available(std::string_view backend) { return find_built_in(backend) != nullptr; }

BackendSource find_backend(const std::string& name, const BackendSources& own, const Caller& caller) {
  if (const auto found = own.find(name); found != own.end()) return found->second;
  if (const BackendSource* const found = find_built_in(name)) return *found;
  std::vector<std::string> known{"native"};
  if (find_built_in("mpi") != nullptr) known.emplace_back("mpi");
  for (const auto& [other, source] : own) known.push_back(other);
  caller.refuse("there is no backend ", base::quoted(name), "; there is: ", base::join(known), ". ",
                way_out(name));
}

std::vector<DeviceBackendName> parse_backend_config(std::string_view text, const BackendSources& own,
                                                    const Caller& caller) {
  std::vector<DeviceBackendName> config;
  if (text.find(':') == std::string_view::npos) {
    const std::string name(text);
    for (const c10::DeviceType device : find_backend(name, own, caller).devices)
      config.push_back({device, name});
    if (config.empty()) caller.refuse("the backend ", base::quoted(text), " is for no device.");
    return config;
  }
  for (const std::string& part : base::split(text, ',')) {
    const std::vector<std::string> words = base::split(part, ':');
    if (words.size() != 2 || words[0].empty() || words[1].empty()) {
      caller.refuse("the backend ", base::quoted(text),
                    " is neither a name nor a list as \"cpu:native,cuda:mine\"; ", base::quoted(part),
                    " is no device and its backend.");
    }
    const auto device = parse_device(words[0]);
    if (!device) {
      caller.refuse("there is no device ", base::quoted(words[0]), ", which the backend ", base::quoted(text),
                    " names.");
    }
    for (const DeviceBackendName& earlier : config) {
      if (earlier.device == *device)
        caller.refuse("the backend ", base::quoted(text), " names ", words[0], " twice.");
    }
    const std::vector<c10::DeviceType> devices = find_backend(words[1], own, caller).devices;
    if (std::find(devices.begin(), devices.end(), *device) == devices.end()) {
      std::vector<std::string> names;
      names.reserve(devices.size());
      for (const c10::DeviceType possible : devices) names.push_back(name_of(possible));
      caller.refuse("the backend ", base::quoted(words[1]), " does not take tensors of ", words[0],
                    "; it takes those of: ", base::join(names), ".");
    }
    config.push_back({*device, words[1]});
  }
  return config;
}

}  // namespace lockstep::tensor

// Where the backends of groups come from: their names, the devices that they are for, and those of one's own.
//
//   lockstep::init_process_group({.backend = "mpi"});
//   lockstep::init_process_group({.backend = "cpu:native,cuda:mine",
//                                 .backends = {{"mine", lockstep::own_backend(make_mine, {c10::kCUDA})}}});
//
// A group may have another backend than the default group, which the ranks have joined with it:
//
//   lockstep::init_process_group({.group_backends = {"mine"}, .backends = {{"mine", ...}}});
//   auto group = lockstep::new_group({0, 1}, {.backend = "mine"});
//
// There is no registry: two parts of a program cannot register one name, and no order of initialisation
// matters.
//
// Thread safety: values and free functions; any thread.
#pragma once

#include <c10/core/DeviceType.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/backend/rendezvous_groups.h"
#include "lockstep/backend/world.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/base/text.h"
#include "lockstep/base/types.h"

namespace lockstep::tensor {

// Joins the other ranks, and gives what groups are made from.
using JoinGroups = std::function<Result<std::unique_ptr<Groups>>(const WorldOptions& options,
                                                                 const Environment& environment)>;

struct BackendSource {
  JoinGroups join;
  // What it takes the tensors of. A backend is given bytes: for another device than the CPU these are
  // addresses of that device.
  std::vector<c10::DeviceType> devices = {c10::DeviceType::CPU};
};
using BackendSources = std::map<std::string, BackendSource, std::less<>>;

// A backend that is a function that makes one group. The ranks meet as with native (init_method, store, rank
// and world_size say how).
BackendSource own_backend(MakeGroup make, std::vector<c10::DeviceType> devices = {c10::DeviceType::CPU});

// Whether `backend` can be named without a source of one's own: native always, mpi in a program that links
// Lockstep::mpi.
bool is_backend_available(std::string_view backend);
inline bool is_mpi_available() { return is_backend_available("mpi"); }
inline bool is_nccl_available() { return is_backend_available("nccl"); }

// A device type and the name of the backend that takes its tensors.
struct DeviceBackendName {
  c10::DeviceType device;
  std::string backend;
  bool operator==(const DeviceBackendName&) const = default;
};
// Who asks: what its errors begin with.
struct Caller {
  const char* call = "init_process_group";
  std::optional<Rank> rank = {};  // where it is known

  // "rank 2: new_group: ".
  std::string text() const { return rank ? cat("rank ", *rank, ": ", call, ": ") : cat(call, ": "); }
  // The same before the message of an error, but for what the message says itself.
  Status named(const Status& status) const;
  // InvalidArgument.
  template <typename... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    throw_refused(cat(what...));
  }

 private:
  [[noreturn]] void throw_refused(const std::string& what) const;
};

// "native" is that backend for every device that it is for, "cpu:native,cuda:mine" says it for each. Throws
// InvalidArgument for anything else, for a device twice or one that the backend is not for, and for a backend
// that neither `own` nor Lockstep has.
std::vector<DeviceBackendName> parse_backend_config(std::string_view text, const BackendSources& own,
                                                    const Caller& caller = {});
// What is called so there. Throws InvalidArgument.
BackendSource find_backend(const std::string& name, const BackendSources& own, const Caller& caller = {});

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::BackendSource;
using tensor::is_backend_available;
using tensor::is_mpi_available;
using tensor::is_nccl_available;
using tensor::JoinGroups;
using tensor::own_backend;
}  // namespace lockstep

// Starts the sides of `lockstep bench all_reduce` and the like: ours, gloo's and MPI's ranks.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/base/status.h"
#include "tools/bench/collective_options.h"
#include "tools/bench/collective_side.h"
#include "tools/lockstep/command.h"

namespace lockstep::bench {

// What all sides of one run share. Outlives them.
struct BenchSetting {
  const CollectiveOptions& options;
  const tools::CommandContext& context;
  std::filesystem::path scratch = {};  // a folder of this run's own
  TwoHosts* hosts = nullptr;
  Interruption& interruption;
};

// `name` is "lockstep", "tensor", "gloo" or "mpi". kUnsupported with what to install if something is missing.
Result<std::unique_ptr<CollectiveSide>> start_side(const BenchSetting& setting, const std::string& name);

}  // namespace lockstep::bench

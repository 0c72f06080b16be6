// Starts the sides of a comparison: ranks of ours, and those of others that do the same.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/topology.h"
#include "lockstep/base/types.h"
#include "tools/bench/bench_side.h"
#include "tools/lockstep/command.h"

namespace lockstep::bench {

// What all sides of one run share. Outlives them.
struct BenchSetting {
  const tools::CommandContext& context;
  Interruption& interruption;
  std::filesystem::path scratch = {};  // a folder of this run's own
  TwoHosts* hosts = nullptr;
  WorldSize world = WorldSize{1};
  int nproc = 1;    // on each host
  int threads = 1;  // of each rank, for computing
  base::Binding binding = base::Binding::kNone;
  std::string python = {};  // whose torch is measured; empty: the one that is found
};

// Both return kUnsupported with what to install if something is missing.
// Of `lockstep bench all_reduce` and the like: "lockstep", "tensor", "gloo" or "mpi".
Result<std::unique_ptr<BenchSide>> start_side(const BenchSetting& setting, const std::string& name);
// Of `lockstep bench ddp`: "lockstep", "plain", "torch" or "torch_tuned".
Result<std::unique_ptr<BenchSide>> start_training_side(const BenchSetting& setting, const std::string& name);

using StartSide = Result<std::unique_ptr<BenchSide>> (*)(const BenchSetting& setting,
                                                         const std::string& name);
// Ours first, then those that it is compared with.
Result<BenchSides> start_sides(const BenchSetting& setting, const std::vector<std::string>& against,
                               StartSide start);

}  // namespace lockstep::bench

// From the job's agreed setting to what each rank of this host is started with.
//
// Thread safety: pure functions, but for make_folder().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/local_setting.h"
#include "lockstep/launch/prefix.h"
#include "lockstep/launch/worker_group.h"

namespace lockstep::launch {

struct PlanInput {
  const RunOptions& options;
  const Environment& environment;
  const LocalSetting& setting;
  std::string scratch = {};  // the folder of error files, where there is no --log-dir
  Streams coloured = {};     // which streams of the launcher take colours
  int null_fd = -1;          // /dev/null
  int secret_fd = -1;        // -1: none
};
// The ranks of this host, as `round` places them.
std::vector<WorkerPlan> plan_workers(const PlanInput& input, const Round& round);

// The files of one rank in one attempt.
//   <base>/attempt_<epoch>/<rank>/{stdout.log,stderr.log,error.json,torch_error.json}
struct RankFiles {
  std::string out_log = {}, error_log = {};  // empty: that stream has no log file
  std::string error_file = {}, torch_error_file = {};
};
RankFiles rank_files(const std::string& base, std::uint64_t epoch, const RankPlace& place,
                     const RunOptions& options);
// With all folders above it.
Status make_folder(const std::string& path);

// Who sees a rank's stream, and what stands before its lines.
RankOutput::Plan plan_output(Stream stream, const RankPlace& place, const PlanInput& input,
                             const PrefixTemplate& prefix, const RankFiles& files);

}  // namespace lockstep::launch

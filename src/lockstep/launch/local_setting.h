// What one host contributes to a job: its program, its ranks' cores and threads, its folders and its secret.
//
// Thread safety: a value; made once, before the first attempt.
#pragma once

#include <sys/resource.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/secret.h"
#include "lockstep/launch/options.h"
#include "lockstep/launch/program.h"

namespace lockstep::launch {

struct LocalSetting {
  Program program = {};
  int nproc = 1;
  std::string host = {};
  std::vector<std::vector<int>> cpus = {};  // by local rank; empty sets: not bound
  std::optional<int> omp_num_threads = {};  // empty: the user has said it
  std::optional<Secret> secret = {};        // empty: an insecure job of several hosts
  rlimit open_files = {};                   // as the launcher found it; the ranks get it back
};

// How many ranks `count` means here. kInvalid if there is nothing to count (no GPU).
Result<int> count_processes(const ProcessCount& count, const Environment& environment);
// The devices of the driver: /dev/nvidia0, /dev/nvidia1, ...
int count_gpu_devices();
// From CUDA_VISIBLE_DEVICES if it is set, else from the devices of the driver.
int count_gpus(const Environment& environment);

// The secret of the job: from --secret-file, from LOCKSTEP_SECRET_FILE, or, on one host, a fresh one. Several
// hosts without any are refused (kNoSecret) with the line to add, unless insecure is said. --insecure also
// leaves out the variable.
Result<std::optional<Secret>> choose_secret(const RunOptions& options, const Environment& environment);

// Everything but the program, which has exit codes of its own.
Result<LocalSetting> make_local_setting(const RunOptions& options, const Environment& environment);

// Raises the soft limit of open files where the ranks' pipes, and their connections to the store, need it.
// kNoDescriptors if the hard limit is too low.
Status reserve_descriptors(int nproc, int nnodes);

}  // namespace lockstep::launch

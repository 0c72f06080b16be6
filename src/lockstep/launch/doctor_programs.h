// The doctor's probes of other software: torch, GPUs, MPI. Nothing of them is linked: programs are asked.
// judge_* are pure.
#pragma once

#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/launch/doctor.h"
#include "lockstep/launch/run_program.h"

namespace lockstep::launch {

// `answer` is what the interpreter printed when asked, or why it could not be asked.
Finding judge_torch(const std::string& python, const Result<ProgramOutput>& answer);
Finding check_torch(const std::string& python, const Deadline& deadline);

// `devices` counts /dev/nvidia0, /dev/nvidia1, ...; `answer` is nvidia-smi's.
Finding judge_gpu(int devices, const Result<ProgramOutput>& answer);
Finding check_gpu(const Deadline& deadline);

Finding judge_mpi(const Result<ProgramOutput>& answer);
Finding check_mpi(const Deadline& deadline);

}  // namespace lockstep::launch

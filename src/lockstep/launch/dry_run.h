// `lockstep run --dry-run`: what each rank of this host would get. Nothing is started, bound or made.
#pragma once

#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/launch/local_setting.h"

namespace lockstep::launch {

// The variables that a rank has beyond what it inherits, its CPUs, its log files and its command. What is
// only known at the start (ports, descriptors, random names) is shown in angle brackets. Of several hosts,
// all are taken to have as many ranks as this one.
std::string dry_run_text(const RunOptions& options, const Environment& environment,
                         const LocalSetting& setting);

}  // namespace lockstep::launch

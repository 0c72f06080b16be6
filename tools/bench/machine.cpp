#include "tools/bench/machine.h"

#include <sys/utsname.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"

namespace lockstep::bench {
namespace {

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return std::string(base::trim(line.substr(line.find(':') + 1)));
  }
  return {};
}

}  // namespace

nlohmann::json machine_json() {
  utsname system{};
  uname(&system);
  return {{"host", base::host_name()},
          {"cores", base::usable_cores()},
          {"processor", processor_name()},
          {"system",
           cat(static_cast<const char*>(system.sysname), " ", static_cast<const char*>(system.release))},
          {"architecture", static_cast<const char*>(system.machine)}};
}

}  // namespace lockstep::bench

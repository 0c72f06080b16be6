#include "tools/bench/collective_sides.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/launch/run_program.h"

namespace lockstep::bench {
namespace {

using Extra = std::vector<std::pair<std::string, std::string>>;

// One thread for each rank of every side.
launch::Variables environment_of(const BenchSetting& setting, Extra extra) {
  extra.emplace_back("OMP_NUM_THREADS", "1");
  return launch::worker_environment(setting.context.environment->all, extra, {});
}

Status has_helper(const BenchSetting& setting, const std::string& name, const std::string& advice) {
  const std::filesystem::path path = setting.context.libexec() / name;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return {};
  return Status::unsupported(cat("the helper ", path.string(), " is not there; ", advice));
}

// By rank; the hosts are one machine.
Result<std::vector<std::vector<int>>> cpus_of(const BenchSetting& setting) {
  LOCKSTEP_ASSIGN(const base::Topology topology, base::read_topology());
  return base::plan_binding(topology, setting.options.world(), setting.options.binding);
}

// A process for each rank, which is told the socket, where to meet, its rank and the number of ranks.
Status add_ranks(const BenchSetting& setting, const std::vector<std::string>& program,
                 const launch::Variables& environment, SideOptions& side) {
  LOCKSTEP_ASSIGN(const auto cpus, cpus_of(setting));
  for (int rank = 0; rank < side.ranks; ++rank) {
    SideProcess process{.argv = program,
                        .environment = environment,
                        .host = rank / setting.options.nproc,
                        .cpus = cpus[static_cast<std::size_t>(rank)]};
    for (const std::string& word :
         {side.socket, (setting.scratch / (side.name + ".meet")).string(), cat(rank), cat(side.ranks)}) {
      process.argv.push_back(word);
    }
    side.processes.push_back(std::move(process));
  }
  return {};
}

Status add_ours(const BenchSetting& setting, const std::string& helper, const std::string& advice,
                SideOptions& side) {
  LOCKSTEP_TRY(has_helper(setting, helper, advice));
  LOCKSTEP_TRY(
      add_ranks(setting, {(setting.context.libexec() / helper).string()}, environment_of(setting, {}), side));
  if (setting.hosts != nullptr) {
    for (SideProcess& process : side.processes) process.argv.emplace_back(TwoHosts::kWire);
  }
  return {};
}

// The interpreter that was given, else the one that the build has recorded, else python3.
Result<std::string> python_with_torch(const BenchSetting& setting) {
  std::string python = setting.options.python;
  if (python.empty()) {
    std::ifstream recorded(setting.context.libexec() / "torch_python");
    std::getline(recorded, python);
  }
  if (python.empty()) python = "python3";
  // Looked for and not imported, which takes seconds.
  const auto found = launch::run_program(
      {python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"},
      Clock::steady().in(std::chrono::minutes(1)));
  if (found.ok() && found->succeeded()) return python;
  return Status::unsupported(cat("--against gloo needs a Python with torch, and ", base::quoted(python),
                                 found.ok() ? " has none" : " cannot be run", "; name one with --python"));
}

Status add_gloo(const BenchSetting& setting, SideOptions& side) {
  LOCKSTEP_TRY(has_helper(setting, "gloo_collective_peer.py", "build or install Lockstep again"));
  LOCKSTEP_ASSIGN(const std::string python, python_with_torch(setting));
  // By name, so that nobody is asked for the host's address.
  const std::string interface = setting.hosts != nullptr ? TwoHosts::kWire : "lo";
  return add_ranks(
      setting, {python, "-W", "ignore", (setting.context.libexec() / "gloo_collective_peer.py").string()},
      environment_of(setting, {{"GLOO_SOCKET_IFNAME", interface}, {"TORCH_CPP_LOG_LEVEL", "ERROR"}}), side);
}

Status add_mpi(const BenchSetting& setting, SideOptions& side) {
  LOCKSTEP_TRY(has_helper(setting, "mpi_collective_peer",
                          "install libopenmpi-dev and openmpi-bin, and build Lockstep again"));
  const auto mpirun =
      launch::run_program({"mpirun", "--version"}, Clock::steady().in(std::chrono::minutes(1)));
  if (!mpirun.ok() || !mpirun->succeeded()) {
    return Status::unsupported("--against mpi needs mpirun in PATH; install openmpi-bin");
  }
  // Not bound where there are more ranks than cores, as the other sides.
  LOCKSTEP_ASSIGN(const auto cpus, cpus_of(setting));
  std::vector<std::string> words = {"mpirun", "-n", cat(side.ranks), "--bind-to",
                                    cpus.front().empty() ? "none" : "core"};
  for (const char* word :
       {"--stdin", "none", "--oversubscribe", "--quiet", "--mca", "btl_base_warn_component_unused", "0"}) {
    words.emplace_back(word);
  }
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.push_back((setting.context.libexec() / "mpi_collective_peer").string());
  words.push_back(side.socket);
  side.processes.push_back({.argv = words, .environment = environment_of(setting, {})});
  return {};
}

}  // namespace

Result<std::unique_ptr<CollectiveSide>> start_side(const BenchSetting& setting, const std::string& name) {
  SideOptions side{.name = name,
                   .socket = (setting.scratch / (name + ".socket")).string(),
                   .ranks = setting.options.world().value,
                   .hosts = setting.hosts};
  if (name == "gloo") {
    LOCKSTEP_TRY(add_gloo(setting, side));
  } else if (name == "mpi") {
    LOCKSTEP_TRY(add_mpi(setting, side));
  } else if (name == "tensor") {
    LOCKSTEP_TRY(add_ours(setting, "tensor_collective_peer", "build Lockstep with libtorch", side));
  } else {
    LOCKSTEP_TRY(add_ours(setting, "lockstep_collective_peer", "build or install Lockstep again", side));
  }
  return CollectiveSide::start(side, setting.interruption, Clock::steady().in(std::chrono::minutes(3)));
}

}  // namespace lockstep::bench

#include "tools/bench/bench_sides.h"

#include <unistd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/launch/run_program.h"
#include "tools/bench/output.h"
#include "tools/bench/torch_python.h"

namespace lockstep::bench {
namespace {

using Extra = std::vector<std::pair<std::string, std::string>>;

// As many threads for each rank of every side.
launch::Variables environment_of(const BenchSetting& setting, Extra extra) {
  extra.emplace_back("OMP_NUM_THREADS", cat(setting.threads));
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
  return base::plan_binding(topology, setting.world, setting.binding);
}

// A process for each rank, which is told the socket, where to meet, its rank and the number of ranks.
Status add_ranks(const BenchSetting& setting, const std::vector<std::string>& program,
                 const launch::Variables& environment, SideOptions& side) {
  LOCKSTEP_ASSIGN(const auto cpus, cpus_of(setting));
  for (int rank = 0; rank < side.ranks; ++rank) {
    SideProcess process{.argv = program,
                        .environment = environment,
                        .host = rank / setting.nproc,
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

// Ranks of torch.distributed on gloo: a script of ours, and what it is told beside where to meet.
Status add_torch(const BenchSetting& setting, const std::string& script, SideOptions& side) {
  LOCKSTEP_TRY(has_helper(setting, script, "build or install Lockstep again"));
  LOCKSTEP_ASSIGN(const std::string python,
                  python_with_torch(setting.context, setting.python, side.name == "gloo" ? "gloo" : "torch"));
  // By name, so that nobody is asked for the host's address.
  const std::string interface = setting.hosts != nullptr ? TwoHosts::kWire : "lo";
  const Extra extra = {{"GLOO_SOCKET_IFNAME", interface},
                       {"TORCH_CPP_LOG_LEVEL", "ERROR"},
                       {"TORCHINDUCTOR_CACHE_DIR", (setting.scratch / "inductor").string()}};
  return add_ranks(setting, {python, "-W", "ignore", (setting.context.libexec() / script).string()},
                   environment_of(setting, extra), side);
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

SideOptions side_named(const BenchSetting& setting, const std::string& name) {
  return {.name = name,
          .socket = (setting.scratch / (name + ".socket")).string(),
          .ranks = setting.world.value,
          .hosts = setting.hosts};
}

Result<std::unique_ptr<BenchSide>> started(const BenchSetting& setting, const SideOptions& side) {
  return BenchSide::start(side, setting.interruption, Clock::steady().in(std::chrono::minutes(3)));
}

}  // namespace

Result<std::unique_ptr<BenchSide>> start_side(const BenchSetting& setting, const std::string& name) {
  SideOptions side = side_named(setting, name);
  if (name == "gloo") {
    LOCKSTEP_TRY(add_torch(setting, "gloo_collective_peer.py", side));
  } else if (name == "mpi") {
    LOCKSTEP_TRY(add_mpi(setting, side));
  } else if (name == "tensor") {
    LOCKSTEP_TRY(add_ours(setting, "tensor_collective_peer", "build Lockstep with libtorch", side));
  } else {
    LOCKSTEP_TRY(add_ours(setting, "lockstep_collective_peer", "build or install Lockstep again", side));
  }
  return started(setting, side);
}

Result<std::unique_ptr<BenchSide>> start_training_side(const BenchSetting& setting, const std::string& name) {
  SideOptions side = side_named(setting, name);
  if (name.starts_with("torch")) {
    LOCKSTEP_TRY(add_torch(setting, "torch_training_peer.py", side));
  } else {
    LOCKSTEP_TRY(add_ours(setting, "training_peer", "build Lockstep with libtorch", side));
  }
  for (SideProcess& process : side.processes) process.argv.push_back(name);
  return started(setting, side);
}

Result<BenchSides> start_sides(const BenchSetting& setting, const std::vector<std::string>& against,
                               StartSide start) {
  std::vector<std::string> names = {"lockstep"};
  names.insert(names.end(), against.begin(), against.end());
  BenchSides sides;
  for (const std::string& name : names) {
    show_progress(cat("starting ", setting.world, " ranks of ", name));
    LOCKSTEP_ASSIGN(auto side, start(setting, name));
    sides.push_back(std::move(side));
  }
  show_progress("");
  return sides;
}

}  // namespace lockstep::bench

#include "lockstep/launch/local_setting.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/store/interface_choice.h"

namespace lockstep::launch {
namespace {

// Two pipes, two log files and a moment's error pipe for each rank, and what the launcher itself has open;
// for each rank of the job, whose store it may serve, and each host, as many connections as the store allows.
constexpr int kDescriptorsPerRank = 4;
constexpr int kConnectionsPerRank = 2;
constexpr int kOwnDescriptors = 64;

Result<std::vector<std::vector<int>>> bind_ranks(base::Binding binding, int nproc) {
  if (binding == base::Binding::kNone) return std::vector<std::vector<int>>(static_cast<std::size_t>(nproc));
  LOCKSTEP_ASSIGN(const base::Topology topology, base::read_topology());
  return base::plan_binding(topology, WorldSize{nproc}, binding);
}

bool is_set(const RunOptions& options, const Environment& environment, std::string_view name) {
  const auto found = environment.all.find(name);
  return (found != environment.all.end() && !found->second.empty()) ||
         std::any_of(options.env.begin(), options.env.end(),
                     [name](const auto& pair) { return pair.first == name; });
}

Status check_local_rank(std::string_view option, int local_rank, int nproc) {
  if (local_rank < nproc) return {};
  return Status::invalid(cat(option, " names local rank ", local_rank, ", and this host has ",
                             nproc == 1 ? "rank 0 only" : cat("ranks 0 to ", nproc - 1)));
}

// Every option that names ranks of this host names some that there are.
Status check_local_ranks(const RunOptions& options, int nproc) {
  for (const int local_rank : options.local_ranks_filter) {
    LOCKSTEP_TRY(check_local_rank("--local-ranks-filter", local_rank, nproc));
  }
  for (const auto& [local_rank, streams] : options.redirects.by_local_rank) {
    LOCKSTEP_TRY(check_local_rank("--redirects", local_rank, nproc));
  }
  for (const auto& [local_rank, streams] : options.tee.by_local_rank) {
    LOCKSTEP_TRY(check_local_rank("--tee", local_rank, nproc));
  }
  return {};
}

}  // namespace

int count_gpu_devices() {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/dev", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    constexpr std::string_view kDevice = "nvidia";
    if (name.starts_with(kDevice) && base::parse_integer<int>(name.substr(kDevice.size()))) ++count;
  }
  return count;
}

int count_gpus(const Environment& environment) {
  if (const auto visible = environment.all.find("CUDA_VISIBLE_DEVICES"); visible != environment.all.end()) {
    int count = 0;
    for (const std::string& device : base::split(visible->second, ',')) {
      const std::string_view name = base::trim(device);
      if (name.empty() || name.front() == '-') break;  // CUDA ignores what follows an invalid one
      ++count;
    }
    return count;
  }
  return count_gpu_devices();
}

Result<int> count_processes(const ProcessCount& count, const Environment& environment) {
  using Kind = ProcessCount::Kind;
  if (count.kind == Kind::kNumber) return count.number;
  if (count.kind != Kind::kCpu) {
    const int gpus = count_gpus(environment);
    if (gpus > 0) return gpus;
    if (count.kind == Kind::kGpu) {
      return Status::invalid(
          "--nproc gpu finds no GPU here (no /dev/nvidia0, or CUDA_VISIBLE_DEVICES hides all)");
    }
  }
  return base::usable_cores();
}

// What every rank would refuse is refused once, before any of them is started.
Status check_variables_of_ranks(const RunOptions& options, const Environment& environment) {
  Variables given = environment.all;
  for (const auto& [name, value] : options.env) given[name] = value;
  LOCKSTEP_ASSIGN(const Environment theirs, Environment::parse(std::move(given)));
  if (theirs.interfaces.empty()) return {};
  return store::own_addresses(theirs.interfaces, std::nullopt).status();
}

Result<std::optional<Secret>> choose_secret(const RunOptions& options, const Environment& environment) {
  const bool one_host = options.nnodes == 1;
  const std::string path =
      !options.secret_file.empty() ? options.secret_file : environment.secret_file.value_or("");
  if (!path.empty() && !options.insecure) {
    LOCKSTEP_ASSIGN(Secret secret, Secret::from_file(path));
    return std::optional(std::move(secret));
  }
  if (one_host) return std::optional(Secret::generate());  // costs nothing, and keeps other users out
  if (options.insecure || environment.insecure) return std::optional<Secret>();
  return Status::invalid(
      "a job on several hosts needs a secret that all of them share: make one with 'lockstep secret "
      "job.secret', "
      "copy it to every host and add --secret-file job.secret (or say --insecure on a network that you "
      "trust)",
      {.failure = Failure::kNoSecret});
}

Status reserve_descriptors(int nproc, int nnodes) {
  const auto clients = static_cast<rlim_t>(nproc) * static_cast<rlim_t>(nnodes);  // if all hosts have as many
  const auto needed =
      static_cast<rlim_t>(nproc) * kDescriptorsPerRank + clients * kConnectionsPerRank + kOwnDescriptors;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Status::from_errno("the limit of open files cannot be read", errno);
  }
  if (limit.rlim_cur >= needed) return {};
  if (limit.rlim_max < needed) {
    return Status::invalid(
        cat(nproc, " ranks need ", needed, " open files in the launcher, and the limit is ", limit.rlim_max,
            "; raise it (ulimit -Hn) or start fewer ranks"),
        {.failure = Failure::kNoDescriptors});
  }
  limit.rlim_cur = needed;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Status::from_errno("the limit of open files cannot be raised", errno);
  }
  return {};
}

Result<LocalSetting> make_local_setting(const RunOptions& options, const Environment& environment) {
  LocalSetting setting;
  LOCKSTEP_TRY(check_variables_of_ranks(options, environment));
  LOCKSTEP_ASSIGN(setting.nproc, count_processes(options.nproc, environment));
  LOCKSTEP_TRY(check_local_ranks(options, setting.nproc));
  setting.host = base::host_name();
  LOCKSTEP_ASSIGN(setting.cpus, bind_ranks(options.cpu_binding, setting.nproc));
  if (!is_set(options, environment, "OMP_NUM_THREADS")) {
    setting.omp_num_threads = std::max(1, base::usable_cores() / setting.nproc);
  }
  LOCKSTEP_ASSIGN(setting.secret, choose_secret(options, environment));
  if (getrlimit(RLIMIT_NOFILE, &setting.open_files) != 0) {
    return Status::from_errno("the limit of open files cannot be read", errno);
  }
  return setting;
}

}  // namespace lockstep::launch

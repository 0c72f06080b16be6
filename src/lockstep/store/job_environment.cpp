#include "lockstep/store/job_environment.h"

#include "lockstep/base/text.h"
#include "lockstep/store/slurm_nodelist.h"

namespace lockstep::store {
namespace {

using base::Endpoint;

// What a scheduler tells. `*_variable` name where a number came from, for messages.
struct Scheduler {
  JobSource source = JobSource::kNone;
  std::optional<int> rank, size, local_rank, local_size;
  std::string_view rank_variable, size_variable;
  std::optional<std::string> first_host;  // where rank 0 runs; empty text: this host
  std::string_view host_variable;         // what to set if first_host is not known
  std::string job_id;                     // empty if it has none
};

// Below the ephemeral ports, and the same on every rank: jobs on one host rarely meet on one port.
std::uint16_t port_of_job(std::string_view job_id) {
  if (job_id.empty()) return kDefaultStorePort;
  std::uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return static_cast<std::uint16_t>(20000 + hash % 10000);
}

std::optional<std::string> here_if_one_host(std::optional<int> local_size, std::optional<int> size) {
  if (local_size && size && *local_size == *size) return "";
  return std::nullopt;
}

Scheduler open_mpi(const Environment::OpenMpi& mpi) {
  return {.source = JobSource::kOpenMpi,
          .rank = mpi.rank,
          .size = mpi.size,
          .local_rank = mpi.local_rank,
          .local_size = mpi.local_size,
          .rank_variable = "OMPI_COMM_WORLD_RANK",
          .size_variable = "OMPI_COMM_WORLD_SIZE",
          .first_host = here_if_one_host(mpi.local_size, mpi.size),
          .host_variable = "MASTER_ADDR",
          .job_id = mpi.job ? cat("openmpi-", *mpi.job) : ""};
}

Scheduler pmi(const Environment::Pmi& pmi) {
  return {.source = JobSource::kPmi,
          .rank = pmi.rank,
          .size = pmi.size,
          .local_rank = pmi.local_rank,
          .local_size = pmi.local_size,
          .rank_variable = "PMI_RANK",
          .size_variable = "PMI_SIZE",
          .first_host = here_if_one_host(pmi.local_size, pmi.size),
          .host_variable = "MASTER_ADDR",
          .job_id = ""};
}

Result<Scheduler> slurm(const Environment::Slurm& slurm) {
  Scheduler out{.source = JobSource::kSlurm,
                .rank = slurm.procid,
                .size = slurm.ntasks,
                .local_rank = slurm.localid,
                .local_size = {},
                .rank_variable = "SLURM_PROCID",
                .size_variable = "SLURM_NTASKS",
                .first_host = {},
                .host_variable = "SLURM_JOB_NODELIST",
                .job_id = ""};
  if (slurm.nodelist) {
    LOCKSTEP_ASSIGN(const std::vector<std::string> hosts, expand_nodelist(*slurm.nodelist));
    out.first_host = hosts.size() == 1 ? "" : hosts.front();
    if (hosts.size() == 1) out.local_size = slurm.ntasks;
  }
  if (slurm.tasks_per_node && slurm.nodeid && !out.local_size) {
    LOCKSTEP_ASSIGN(const std::vector<int> counts, expand_tasks_per_node(*slurm.tasks_per_node));
    const auto node = static_cast<std::size_t>(*slurm.nodeid);
    if (node < counts.size()) out.local_size = counts[node];
  }
  if (slurm.job_id) out.job_id = cat("slurm-", *slurm.job_id, ".", slurm.step_id.value_or("0"));
  return out;
}

Scheduler kubernetes(const Environment::Kubernetes& kubernetes) {
  return {.source = JobSource::kKubernetes,
          .rank = kubernetes.completion_index,
          .size = {},
          .local_rank = {},
          .local_size = {},
          .rank_variable = "JOB_COMPLETION_INDEX",
          .size_variable = "WORLD_SIZE",
          .first_host = {},
          .host_variable = "MASTER_ADDR",
          .job_id = ""};
}

// The innermost one: mpirun may run inside a Slurm allocation and inherits its variables, and srun sets PMI's
// beside its own.
Result<Scheduler> scheduler_of(const Environment& env) {
  if (env.open_mpi.rank && env.open_mpi.size) return open_mpi(env.open_mpi);
  const bool has_slurm = env.slurm.procid && env.slurm.ntasks;
  const bool has_pmi = env.pmi.rank && env.pmi.size;
  if (has_slurm && (!has_pmi || (env.pmi.rank == env.slurm.procid && env.pmi.size == env.slurm.ntasks)))
    return slurm(env.slurm);
  if (has_pmi) return pmi(env.pmi);
  if (env.kubernetes.completion_index) return kubernetes(env.kubernetes);
  // A rank above 0 is one of several, and how many is missing. Rank 0 may be a shell of its own: salloc,
  // sbatch.
  if (env.open_mpi.rank.value_or(0) > 0) return open_mpi(env.open_mpi);
  if (env.slurm.procid.value_or(0) > 0) return slurm(env.slurm);
  if (env.pmi.rank.value_or(0) > 0) return pmi(env.pmi);
  return Scheduler{};
}

Status agree(std::string_view name, std::optional<int> value, std::string_view other_name,
             std::optional<int> other) {
  if (!value || !other || *value == *other) return {};
  return Status::invalid(cat("The environment contradicts itself: ", name, "=", *value, ", but ", other_name,
                             "=", *other, ". Unset one of them."));
}

// The port that rank 0 serves our store on. Under torchrun the agent serves torch's store at MASTER_PORT.
Result<std::uint16_t> port_to_serve(const Environment& env, const Scheduler& scheduler) {
  if (env.store_port) return *env.store_port;
  if (!env.master_port) return port_of_job(scheduler.job_id);
  if (!env.torchelastic_agent_store) return *env.master_port;
  if (*env.master_port == 65535) {
    return Status::invalid(
        "torchrun's agent serves MASTER_PORT=65535 and there is no port after it for the store of this job. "
        "Choose one: export LOCKSTEP_PORT=29400");
  }
  return static_cast<std::uint16_t>(*env.master_port + 1);
}

// MASTER_ADDR may have IPv6 in brackets, as in a URL.
std::string without_brackets(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

bool is_loopback(const std::string& host) {
  const auto address = base::SocketAddress::parse(host, 0);
  return address.ok() && address->is_loopback();
}

StorePlace::Hosts hosts_of(const JobEnvironment& job) {
  if (!job.local_size || !job.world_size) return StorePlace::Hosts::kUnknown;
  return job.local_size == job.world_size ? StorePlace::Hosts::kOne : StorePlace::Hosts::kSeveral;
}

// Where the store is, or nothing if the environment does not say.
Result<std::optional<StorePlace>> store_place(const Environment& env, const Scheduler& scheduler,
                                              const JobEnvironment& job) {
  using Place = std::optional<StorePlace>;
  const StorePlace::Hosts hosts = hosts_of(job);
  if (env.store_addr) {
    auto endpoint = base::parse_endpoint(*env.store_addr);
    if (!endpoint.ok()) return endpoint.status().with_prefix("LOCKSTEP_STORE: ");
    return Place({std::move(endpoint).value(), StorePlace::Server::kElsewhere, hosts});
  }
  if (scheduler.source == JobSource::kNone && (!env.master_addr || !env.master_port)) return Place();
  if (!env.master_addr && !scheduler.first_host) return Place();
  std::string host = env.master_addr ? without_brackets(*env.master_addr) : *scheduler.first_host;
  if (hosts == StorePlace::Hosts::kOne && !is_loopback(host)) host = "127.0.0.1";
  LOCKSTEP_ASSIGN(const std::uint16_t port, port_to_serve(env, scheduler));
  return Place({Endpoint{std::move(host), port}, StorePlace::Server::kRankZero, hosts});
}

bool complete(const Environment& env) {
  return env.rank && env.world_size && (env.store_addr || (env.master_addr && env.master_port));
}

JobSource source_of_variables(const Environment& env) {
  if (env.store_addr) return JobSource::kLauncher;
  return env.torchelastic_run_id ? JobSource::kTorchrun : JobSource::kVariables;
}

void list_variables(const Environment& env, const Scheduler& scheduler, JobEnvironment& job) {
  const auto note = [&job](std::string_view name, bool set, bool needed) {
    if (set) job.found.emplace_back(name);
    if (!set && needed) job.missing.emplace_back(name);
  };
  const bool scheduled = scheduler.source != JobSource::kNone;
  if (scheduled) note(scheduler.rank_variable, true, true);
  note("LOCKSTEP_STORE", env.store_addr.has_value(), false);
  note("RANK", env.rank.has_value(), !job.rank);
  if (scheduled) job.size_variable = scheduler.size_variable;
  note("WORLD_SIZE", env.world_size.has_value(), false);
  if (!job.world_size) note(job.size_variable, false, true);
  note("MASTER_ADDR", env.master_addr.has_value(),
       !job.store && (!scheduled || scheduler.host_variable == "MASTER_ADDR"));
  note("MASTER_PORT", env.master_port.has_value(), !job.store && !scheduled);
  if (!job.store && scheduler.source == JobSource::kSlurm) job.missing.emplace_back(scheduler.host_variable);
}

Status check_local(const JobEnvironment& job) {
  if (job.local_rank && job.local_size && !job.local_size->contains(*job.local_rank)) {
    return Status::invalid(cat("The environment contradicts itself: the local rank is ", *job.local_rank,
                               " of only ", *job.local_size,
                               " ranks on this host (LOCAL_RANK, LOCAL_WORLD_SIZE)."));
  }
  if (job.local_size && job.world_size && job.local_size->value > job.world_size->value) {
    return Status::invalid(cat("The environment contradicts itself: ", *job.local_size,
                               " ranks on this host in a world of ", *job.world_size,
                               " (LOCAL_WORLD_SIZE, WORLD_SIZE)."));
  }
  return {};
}

template <typename Strong>
std::optional<Strong> strong(std::optional<int> first, std::optional<int> second = {}) {
  if (first) return Strong{*first};
  if (second) return Strong{*second};
  return std::nullopt;
}

}  // namespace

std::string_view job_source_name(JobSource source) {
  switch (source) {
    case JobSource::kNone:
      return "nothing";
    case JobSource::kVariables:
      return "environment variables";
    case JobSource::kLauncher:
      return "the launcher";
    case JobSource::kTorchrun:
      return "torchrun";
    case JobSource::kOpenMpi:
      return "Open MPI";
    case JobSource::kSlurm:
      return "Slurm";
    case JobSource::kPmi:
      return "PMI";
    case JobSource::kKubernetes:
      return "Kubernetes";
  }
  return "unknown";
}

Result<JobEnvironment> job_environment(const Environment& env) {
  Scheduler scheduler;
  if (!complete(env)) {
    LOCKSTEP_ASSIGN(scheduler, scheduler_of(env));
  }
  const bool scheduled = scheduler.source != JobSource::kNone;
  if (scheduled) {
    LOCKSTEP_TRY(agree("RANK", env.rank, scheduler.rank_variable, scheduler.rank));
    LOCKSTEP_TRY(agree("WORLD_SIZE", env.world_size, scheduler.size_variable, scheduler.size));
  }
  JobEnvironment job;
  job.rank = strong<Rank>(env.rank, scheduler.rank);
  job.world_size = strong<WorldSize>(env.world_size, scheduler.size);
  job.local_rank = strong<Rank>(env.local_rank, scheduler.local_rank);
  job.local_size = strong<WorldSize>(env.local_world_size, scheduler.local_size);
  job.epoch = env.epoch.value_or(static_cast<std::uint64_t>(env.torchelastic_restart_count.value_or(0)));
  if (!scheduler.job_id.empty()) job.job_id = scheduler.job_id;
  if (env.torchelastic_run_id) job.job_id = *env.torchelastic_run_id;
  if (env.job_id) job.job_id = *env.job_id;
  LOCKSTEP_TRY(check_local(job));
  LOCKSTEP_ASSIGN(job.store, store_place(env, scheduler, job));
  list_variables(env, scheduler, job);
  if (job.found.empty()) {
    job.missing.clear();
  } else {
    job.source = scheduled ? scheduler.source : source_of_variables(env);
  }
  return job;
}

Status missing_variables(const JobEnvironment& job, const std::vector<std::string>& missing) {
  const auto listed = [](const std::vector<std::string>& names) {
    return cat(base::join(names, ", "), names.size() == 1 ? " is" : " are");
  };
  const std::string_view advice =
      job.source == JobSource::kKubernetes
          ? "In a Kubernetes indexed job set WORLD_SIZE to its completions and MASTER_ADDR to the name of "
            "pod 0."
          : "Set them on every rank, start the ranks with `lockstep run`, or unset all of them to run alone.";
  return Status::invalid(cat(listed(job.found), " set, but ", listed(missing), " not. ", advice),
                         {.failure = Failure::kMissingVariable});
}

}  // namespace lockstep::store

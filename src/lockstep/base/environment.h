// The environment, read once into a struct and passed on. Nothing else in Lockstep calls getenv.
//
// A variable that is set but does not parse is an error that names it, its value and what was expected; an
// empty one counts as not set. Which of these describe a job together is decided by store/rendezvous, not
// here. Thread safety: a value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/debug_level.h"
#include "lockstep/base/log.h"
#include "lockstep/base/status.h"

namespace lockstep::base {

struct Environment {
  // torchrun's, which our launcher sets too.
  std::optional<int> rank;                             // RANK
  std::optional<int> world_size;                       // WORLD_SIZE
  std::optional<int> local_rank;                       // LOCAL_RANK
  std::optional<int> local_world_size;                 // LOCAL_WORLD_SIZE
  std::optional<std::string> master_addr;              // MASTER_ADDR
  std::optional<std::uint16_t> master_port;            // MASTER_PORT
  std::optional<std::string> torchelastic_run_id;      // TORCHELASTIC_RUN_ID
  bool torchelastic_agent_store = false;               // TORCHELASTIC_USE_AGENT_STORE
  std::optional<int> torchelastic_restart_count;       // TORCHELASTIC_RESTART_COUNT
  std::optional<std::string> torchelastic_error_file;  // TORCHELASTIC_ERROR_FILE

  // Our launcher's.
  std::optional<std::string> store_addr;  // LOCKSTEP_STORE: host:port of the job's store, which others serve
  std::optional<int> store_fd;            // LOCKSTEP_STORE_FD: its listening socket, for the rank that serves
  std::optional<std::string> job_id;      // LOCKSTEP_JOB_ID
  std::optional<std::uint64_t> epoch;     // LOCKSTEP_EPOCH
  std::optional<int> secret_fd;           // LOCKSTEP_SECRET_FD
  std::optional<std::string> secret_file;  // LOCKSTEP_SECRET_FILE
  std::optional<std::string> error_file;   // LOCKSTEP_ERROR_FILE

  // The user's.
  std::optional<std::uint16_t> store_port;  // LOCKSTEP_PORT: where rank 0 serves the store
  bool insecure = false;                    // LOCKSTEP_INSECURE
  std::vector<std::string> interfaces;      // LOCKSTEP_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME
  std::optional<Duration> timeout;          // LOCKSTEP_TIMEOUT, for joining
  LogOptions log;                           // LOCKSTEP_LOG
  std::optional<DebugLevel> debug;          // LOCKSTEP_DEBUG, else TORCH_DISTRIBUTED_DEBUG

  // Schedulers.
  struct Slurm {
    std::optional<int> procid, ntasks, localid;  // SLURM_PROCID, SLURM_NTASKS (SLURM_NPROCS), SLURM_LOCALID
    std::optional<int> nodeid;                   // SLURM_NODEID
    std::optional<std::string> tasks_per_node;   // SLURM_STEP_TASKS_PER_NODE, else SLURM_TASKS_PER_NODE
    std::optional<std::string> nodelist;  // SLURM_STEP_NODELIST, else SLURM_JOB_NODELIST, else SLURM_NODELIST
    std::optional<std::string> job_id, step_id;  // SLURM_JOB_ID, SLURM_STEP_ID
  } slurm;
  struct OpenMpi {
    std::optional<int> rank, size, local_rank, local_size;  // OMPI_COMM_WORLD_*
    std::optional<std::string>
        job;  // PMIX_NAMESPACE, else OMPI_MCA_ess_base_jobid, else OMPI_MCA_orte_ess_jobid
  } open_mpi;
  struct Pmi {
    std::optional<int> rank, size;              // PMI_RANK, PMI_SIZE
    std::optional<int> local_rank, local_size;  // MPI_LOCALRANKID, MPI_LOCALNRANKS
  } pmi;
  struct Kubernetes {
    std::optional<int> completion_index;      // JOB_COMPLETION_INDEX
    std::optional<std::string> service_host;  // KUBERNETES_SERVICE_HOST
  } kubernetes;

  // Every variable as found, for the launcher's children and for reports.
  std::map<std::string, std::string, std::less<>> all;

  // The process's own. Called once, early: another thread must not change the environment meanwhile.
  static Result<Environment> read();
  static Result<Environment> parse(std::map<std::string, std::string, std::less<>> variables);
};

}  // namespace lockstep::base

namespace lockstep {
using base::Environment;
}

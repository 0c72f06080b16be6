// What the environment says by itself about the job: who this rank is, how many there are, where they meet.
//
// Understood, the first that is complete decides:
//   RANK, WORLD_SIZE and the store's place: our launcher (LOCKSTEP_STORE), torchrun, or set by hand
//   Open MPI (OMPI_COMM_WORLD_*), Slurm (SLURM_PROCID ...), MPICH and other PMI (PMI_RANK ...),
//   Kubernetes indexed jobs (JOB_COMPLETION_INDEX)
// A scheduler fills in what RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT leave open; where both speak and
// disagree it is an error. docs/rendezvous.md has the table.
//
// Thread safety: values and pure functions; no name is looked up and no socket opened.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/net.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::store {

// torch's default, for schedulers that give each job its own network or nothing to derive a port from.
constexpr std::uint16_t kDefaultStorePort = 29500;

enum class JobSource : std::uint8_t {
  kNone,       // no variable of a job is set: a world of one
  kVariables,  // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT by hand
  kLauncher,   // LOCKSTEP_STORE
  kTorchrun,
  kOpenMpi,
  kSlurm,
  kPmi,
  kKubernetes,
};
// "Slurm", "the launcher".
std::string_view job_source_name(JobSource source);

struct StorePlace {
  base::Endpoint endpoint;
  // Rank 0 binds it, or someone else serves it already (the launcher's socket, `lockstep store`).
  enum class Server : bool { kRankZero, kElsewhere } server = Server::kRankZero;
  // Whether every rank runs on this host, as far as the environment says.
  enum class Hosts : std::uint8_t { kUnknown, kOne, kSeveral } hosts = Hosts::kUnknown;

  bool operator==(const StorePlace&) const = default;
};

struct JobEnvironment {
  JobSource source = JobSource::kNone;
  std::optional<Rank> rank;
  std::optional<WorldSize> world_size;
  std::optional<Rank> local_rank;
  std::optional<WorldSize> local_size;
  std::optional<StorePlace> store;
  std::string job_id = "default";
  std::uint64_t epoch = 0;
  // For env://: the job's variables that are set, and those that are needed and are not.
  std::vector<std::string> found;
  std::vector<std::string> missing;
  std::string size_variable = "WORLD_SIZE";  // its name in `missing`
};

// kInvalid for what contradicts itself; an incomplete environment is not an error here but `missing`.
Result<JobEnvironment> job_environment(const Environment& env);

// Of a job of which some variables are set. kMissingVariable: "RANK and WORLD_SIZE are set, but MASTER_ADDR
// and MASTER_PORT are not. ..."
Status missing_variables(const JobEnvironment& job, const std::vector<std::string>& missing);

}  // namespace lockstep::store

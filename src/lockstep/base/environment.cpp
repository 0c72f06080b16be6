#include "lockstep/base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

// Reads one variable after the other and remembers the first error.
class Parser {
 public:
  explicit Parser(const Variables& variables) : variables_(variables) {}

  const Status& status() const { return status_; }

  // The first of `names` that is set and not empty.
  std::optional<std::string> text(std::initializer_list<std::string_view> names) {
    const auto found = find(names);
    if (!found) return std::nullopt;
    return std::string(found->value);
  }

  std::optional<int> count(std::initializer_list<std::string_view> names, int least) {
    return number<int>(names, least, std::numeric_limits<int>::max());
  }
  std::optional<std::uint16_t> port(std::initializer_list<std::string_view> names) {
    return number<std::uint16_t>(names, 1, 65535);
  }
  std::optional<std::uint64_t> epoch(std::initializer_list<std::string_view> names) {
    return number<std::uint64_t>(names, 0, std::numeric_limits<std::uint64_t>::max());
  }

  bool flag(std::string_view name) {
    const auto found = find({name});
    if (!found) return false;
    const auto value = parse_bool(found->value);
    if (!value) fail(*found, "1 or 0, true or false, yes or no, on or off");
    return value.value_or(false);
  }

  std::optional<Duration> duration(std::string_view name) {
    const auto found = find({name});
    if (!found) return std::nullopt;
    const auto value = parse_duration(found->value);
    if (!value || *value <= Duration::zero()) {
      fail(*found, "a time above zero, such as 30, 500ms, 30s or 5min");
      return std::nullopt;
    }
    return value;
  }

  // A comma list; spaces around a name are dropped.
  std::vector<std::string> names(std::initializer_list<std::string_view> variables) {
    const auto found = find(variables);
    std::vector<std::string> out;
    if (!found) return out;
    for (const std::string& part : split(found->value, ',')) {
      const std::string_view name = trim(part);
      if (name.empty()) {
        fail(*found, "interface names separated by commas, such as eth0,eth1");
        return {};
      }
      out.emplace_back(name);
    }
    return out;
  }

  LogOptions log(std::string_view name) {
    const auto found = find({name});
    if (!found) return {};
    auto options = parse_log_options(found->value);
    if (options.ok()) return std::move(options).value();
    fail(*found, cat("a level, and levels by module, such as info or warn,store=debug (",
                     options.status().message(), ")"));
    return {};
  }

  std::optional<DebugLevel> debug_level(std::initializer_list<std::string_view> names) {
    const auto found = find(names);
    if (!found) return std::nullopt;
    const auto level = parse_debug_level(found->value);
    if (!level) fail(*found, "off, info or detail");
    return level;
  }

 private:
  struct Found {
    std::string_view name;
    std::string_view value;
  };

  std::optional<Found> find(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      const auto entry = variables_.find(name);
      if (entry != variables_.end() && !entry->second.empty()) return Found{entry->first, entry->second};
    }
    return std::nullopt;
  }

  template <typename T>
  std::optional<T> number(std::initializer_list<std::string_view> names, T least, T most) {
    const auto found = find(names);
    if (!found) return std::nullopt;
    const auto value = parse_integer<T>(found->value);
    if (value && *value >= least && *value <= most) return value;
    fail(*found, cat("a whole number from ", least, " to ", most));
    return std::nullopt;
  }

  void fail(const Found& found, std::string_view expected) {
    if (!status_.ok()) return;
    status_ = Status::invalid(cat("The environment variable ", found.name, "=", quoted(found.value),
                                  " does not parse: expected ", expected, "."));
  }

  const Variables& variables_;
  Status status_;
};

Environment::Slurm parse_slurm(Parser& parser) {
  return {.procid = parser.count({"SLURM_PROCID"}, 0),
          .ntasks = parser.count({"SLURM_NTASKS", "SLURM_NPROCS"}, 1),
          .localid = parser.count({"SLURM_LOCALID"}, 0),
          .nodeid = parser.count({"SLURM_NODEID"}, 0),
          .tasks_per_node = parser.text({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}),
          .nodelist = parser.text({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}),
          .job_id = parser.text({"SLURM_JOB_ID"}),
          .step_id = parser.text({"SLURM_STEP_ID"})};
}

Environment::OpenMpi parse_open_mpi(Parser& parser) {
  return {.rank = parser.count({"OMPI_COMM_WORLD_RANK"}, 0),
          .size = parser.count({"OMPI_COMM_WORLD_SIZE"}, 1),
          .local_rank = parser.count({"OMPI_COMM_WORLD_LOCAL_RANK"}, 0),
          .local_size = parser.count({"OMPI_COMM_WORLD_LOCAL_SIZE"}, 1),
          .job = parser.text({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"})};
}

Environment::Pmi parse_pmi(Parser& parser) {
  return {.rank = parser.count({"PMI_RANK"}, 0),
          .size = parser.count({"PMI_SIZE"}, 1),
          .local_rank = parser.count({"MPI_LOCALRANKID"}, 0),
          .local_size = parser.count({"MPI_LOCALNRANKS"}, 1)};
}

}  // namespace

Result<Environment> Environment::parse(Variables variables) {
  Parser parser(variables);
  Environment out;
  out.rank = parser.count({"RANK"}, 0);
  out.world_size = parser.count({"WORLD_SIZE"}, 1);
  out.local_rank = parser.count({"LOCAL_RANK"}, 0);
  out.local_world_size = parser.count({"LOCAL_WORLD_SIZE"}, 1);
  out.master_addr = parser.text({"MASTER_ADDR"});
  out.master_port = parser.port({"MASTER_PORT"});
  out.torchelastic_run_id = parser.text({"TORCHELASTIC_RUN_ID"});
  out.torchelastic_agent_store = parser.flag("TORCHELASTIC_USE_AGENT_STORE");
  out.torchelastic_restart_count = parser.count({"TORCHELASTIC_RESTART_COUNT"}, 0);
  out.torchelastic_error_file = parser.text({"TORCHELASTIC_ERROR_FILE"});

  out.store_addr = parser.text({"LOCKSTEP_STORE"});
  out.store_fd = parser.count({"LOCKSTEP_STORE_FD"}, 0);
  out.job_id = parser.text({"LOCKSTEP_JOB_ID"});
  out.epoch = parser.epoch({"LOCKSTEP_EPOCH"});
  out.secret_fd = parser.count({"LOCKSTEP_SECRET_FD"}, 0);
  out.secret_file = parser.text({"LOCKSTEP_SECRET_FILE"});
  out.error_file = parser.text({"LOCKSTEP_ERROR_FILE"});

  out.store_port = parser.port({"LOCKSTEP_PORT"});
  out.insecure = parser.flag("LOCKSTEP_INSECURE");
  out.interfaces = parser.names({"LOCKSTEP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"});
  out.timeout = parser.duration("LOCKSTEP_TIMEOUT");
  out.log = parser.log("LOCKSTEP_LOG");
  out.debug = parser.debug_level({"LOCKSTEP_DEBUG", "TORCH_DISTRIBUTED_DEBUG"});
  if (out.rank) out.log.rank = Rank{*out.rank};

  out.slurm = parse_slurm(parser);
  out.open_mpi = parse_open_mpi(parser);
  out.pmi = parse_pmi(parser);
  out.kubernetes = {.completion_index = parser.count({"JOB_COMPLETION_INDEX"}, 0),
                    .service_host = parser.text({"KUBERNETES_SERVICE_HOST"})};
  LOCKSTEP_TRY(parser.status());
  out.all = std::move(variables);
  return out;
}

Result<Environment> Environment::read() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    // As getenv does: the first of several wins.
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return parse(std::move(variables));
}

}  // namespace lockstep::base

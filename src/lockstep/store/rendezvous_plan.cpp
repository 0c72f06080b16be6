#include "lockstep/store/rendezvous_plan.h"

#include "lockstep/base/net.h"
#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

bool is_builtin_scheme(std::string_view scheme) {
  return scheme == "env" || scheme == "tcp" || scheme == "file";
}

// Also where a world of one does without the place: with a second rank it would not.
Status check_place(const RendezvousUrl& url) {
  if (url.scheme == "file" && !url.place.starts_with('/')) {
    return Status::invalid(cat("file:// needs an absolute path, such as file:///tmp/job; it was given ",
                               base::quoted(url.place), "."));
  }
  if (url.scheme != "tcp") return {};
  const Status status = base::parse_endpoint(url.place).status();
  return status.ok() ? status : status.with_prefix(cat("The rendezvous URL ", base::quoted(url.text), ": "));
}

Result<RendezvousUrl> url_of(const RendezvousOptions& options) {
  if (options.url && options.store) {
    return Status::invalid(cat("The rendezvous was given both the URL ", base::quoted(*options.url),
                               " and a store; give one of them."));
  }
  if (options.store) {
    RendezvousUrl url;
    url.text = url.scheme = kGivenStore;
    return url;
  }
  LOCKSTEP_ASSIGN(RendezvousUrl url, parse_rendezvous_url(options.url.value_or("env://")));
  if (is_builtin_scheme(url.scheme)) {
    if (!url.query.empty()) {
      return Status::invalid(cat("The rendezvous URL ", base::quoted(url.text), " has the unknown key ",
                                 base::quoted(url.query.begin()->first), "; known are rank and world_size."));
    }
    if (url.scheme == "env" && !url.place.empty()) {
      return Status::invalid(cat("The rendezvous URL ", base::quoted(url.text),
                                 " names a place, but env:// finds it in the environment."));
    }
    LOCKSTEP_TRY(check_place(url));
    return url;
  }
  if (options.schemes.contains(url.scheme)) return url;
  std::vector<std::string> known = {"env", "tcp", "file"};
  for (const auto& [name, scheme] : options.schemes) known.push_back(name);
  return Status::invalid(cat("The rendezvous URL ", base::quoted(url.text),
                             " has an unknown scheme; known are ", base::join(known), "."));
}

Status given_twice(std::string_view name, int argument, int in_url, const RendezvousUrl& url) {
  return Status::invalid(cat(name, " is given twice: ", argument, " as an argument and ", in_url, " in ",
                             base::quoted(url.text), "."));
}

Result<Said> said_by_caller(const RendezvousOptions& options, const RendezvousUrl& url) {
  if (options.rank && url.rank) return given_twice("rank", options.rank->value, url.rank->value, url);
  if (options.world_size && url.world_size)
    return given_twice("world_size", options.world_size->value, url.world_size->value, url);
  Said said{options.rank ? options.rank : url.rank, options.world_size ? options.world_size : url.world_size};
  if (said.rank && said.rank->value < 0) return Status::invalid(cat("Rank ", *said.rank, " is below 0."));
  if (said.world_size && said.world_size->value < 1)
    return Status::invalid(cat("A world of ", *said.world_size, " ranks cannot be made."));
  return said;
}

// For env://: what the environment leaves out and the caller does not say either.
Status check_complete(const JobEnvironment& job, const Said& said) {
  std::vector<std::string> missing = job.missing;
  if (job.source == JobSource::kNone) missing = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  if (said.rank) std::erase(missing, "RANK");
  if (said.world_size) std::erase(missing, job.size_variable);
  if (missing.empty()) return {};
  if (!job.found.empty()) return missing_variables(job, missing);
  return Status::invalid(cat(said.rank && said.world_size ? "A rank and a world size are"
                             : said.rank                  ? "A rank is"
                                                          : "A world size is",
                             " given, but ", base::join(missing, ", "),
                             " are not set. Set them on every rank, start the ranks with "
                             "`lockstep run`, or give nothing to run alone."),
                         {.failure = Failure::kMissingVariable});
}

}  // namespace

bool Plan::is_builtin() const { return is_builtin_scheme(url.scheme); }

Result<Plan> make_plan(const RendezvousOptions& options, const Environment& env) {
  Plan plan;
  LOCKSTEP_ASSIGN(plan.url, url_of(options));
  LOCKSTEP_ASSIGN(plan.job, job_environment(env));
  LOCKSTEP_ASSIGN(plan.said, said_by_caller(options, plan.url));
  plan.timeout = options.timeout.value_or(env.timeout.value_or(kDefaultTimeout));
  if (plan.timeout <= Duration::zero())
    return Status::invalid("The timeout of the rendezvous must be above zero.");
  plan.job_id = options.job_id.value_or(plan.job.job_id);
  plan.sharing = options.secret_sharing;
  plan.insecure = options.insecure || env.insecure;
  plan.interfaces = options.interfaces.empty() ? env.interfaces : options.interfaces;
  LOCKSTEP_ASSIGN(plan.secret, find_secret(options.secret, env));
  return plan;
}

Result<Who> identify(const Plan& plan) {
  const Said& said = plan.said;
  const bool env = plan.url.scheme == "env";
  const bool alone_by_caller = said.world_size == WorldSize{1} && said.rank.value_or(Rank{0}) == Rank{0};
  const bool nothing_said = !said.rank && !said.world_size && plan.job.source == JobSource::kNone;
  if (plan.is_builtin() && (alone_by_caller || (env && nothing_said)))
    return Who{Rank{0}, WorldSize{1}, true};
  if (env) LOCKSTEP_TRY(check_complete(plan.job, said));
  const auto rank = said.rank ? said.rank : plan.job.rank;
  const auto world_size = said.world_size ? said.world_size : plan.job.world_size;
  if (!rank || !world_size) {
    return Status::invalid(
        cat("The ", !rank ? "rank" : "world size", " of this process is not known for ",
            base::quoted(plan.url.text), ": give it as an argument, in the URL (?rank=R&world_size=N) or by ",
            !rank ? "RANK" : "WORLD_SIZE", "."),
        {.failure = Failure::kMissingVariable});
  }
  return Who{*rank, *world_size, plan.is_builtin() && *world_size == WorldSize{1} && *rank == Rank{0}};
}

}  // namespace lockstep::store

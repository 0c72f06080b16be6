// What rendezvous() decides before it opens anything: where to meet, and who this rank is. Pure.
//
// Thread safety: values and pure functions; only the secret's file is read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/store/job_environment.h"
#include "lockstep/store/rendezvous.h"
#include "lockstep/store/rendezvous_url.h"

namespace lockstep::store {

// The scheme of a plan whose store the caller has given.
constexpr std::string_view kGivenStore = "store";

// What the caller says of this rank, by arguments and URL.
struct Said {
  std::optional<Rank> rank;
  std::optional<WorldSize> world_size;
};

struct Plan {
  RendezvousUrl url;
  JobEnvironment job;
  Said said;
  std::string job_id;
  std::optional<Secret> secret;  // given to this rank
  SecretSharing sharing = SecretSharing::kOneHost;
  bool insecure = false;
  std::vector<std::string> interfaces;
  Duration timeout{};

  // env, tcp or file.
  bool is_builtin() const;
};
Result<Plan> make_plan(const RendezvousOptions& options, const Environment& env);

struct Who {
  Rank rank;
  WorldSize world_size;
  // A world of one that needs no store but its own memory.
  bool alone = false;
};
// From what was said and from the environment; the error names what is missing. A rank beyond its world is
// not an error here: the others are to hear of it.
Result<Who> identify(const Plan& plan);

}  // namespace lockstep::store

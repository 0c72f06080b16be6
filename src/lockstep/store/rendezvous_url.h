// The URL that says where ranks meet: "env://", "tcp://host:port?rank=0&world_size=2", "file:///path".
//
//   url = scheme "://" place ["?" key "=" value *("&" key "=" value)]
//
// The place is taken as written; nothing is percent-decoded. What it means is up to the scheme.
// Thread safety: a value, and a pure function.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::store {

struct RendezvousUrl {
  std::string text;    // the whole, for messages
  std::string scheme;  // lower case
  std::string place;   // between "://" and "?"
  std::optional<Rank> rank;
  std::optional<WorldSize> world_size;
  // Every other key of the query, for a scheme that understands it.
  std::map<std::string, std::string, std::less<>> query;
};

// A key that is given twice, a rank that is no number and a world size below 1 are errors.
Result<RendezvousUrl> parse_rendezvous_url(std::string_view url);

}  // namespace lockstep::store

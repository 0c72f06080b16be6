#include "lockstep/store/rendezvous_url.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

using base::quoted;

constexpr std::size_t kMaxUrlSize = 4096;

Status bad_url(std::string_view url, std::string_view what) {
  return Status::invalid(cat("The rendezvous URL ", quoted(url), " does not parse: ", what,
                             ". Expected env://, tcp://host:port?rank=R&world_size=N or file:///path."));
}

bool is_scheme(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '+' || c == '-' || c == '.';
         });
}

Status parse_query(std::string_view query, RendezvousUrl& url) {
  for (const std::string& part : base::split(query, '&')) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0)
      return bad_url(url.text, cat(quoted(part), " is not key=value"));
    const std::string key = part.substr(0, equals);
    if (!url.query.emplace(key, part.substr(equals + 1)).second)
      return bad_url(url.text, cat(quoted(key), " is given twice"));
  }
  return {};
}

// Takes `key` out of the query.
Result<std::optional<int>> take_number(RendezvousUrl& url, std::string_view key, int least) {
  const auto entry = url.query.find(key);
  if (entry == url.query.end()) return std::optional<int>();
  const auto value = base::parse_integer<int>(entry->second);
  if (!value || *value < least) {
    return bad_url(url.text, cat(key, "=", quoted(entry->second), " is not a whole number from ", least,
                                 " to ", std::numeric_limits<int>::max()));
  }
  url.query.erase(entry);
  return value;
}

}  // namespace

Result<RendezvousUrl> parse_rendezvous_url(std::string_view text) {
  if (text.size() > kMaxUrlSize) return bad_url(text, cat("it is longer than ", kMaxUrlSize, " characters"));
  if (text.find('\0') != std::string_view::npos) return bad_url(text, "it contains a zero byte");
  RendezvousUrl url;
  url.text = text;
  const std::size_t colon = text.find("://");
  if (colon == std::string_view::npos) return bad_url(text, "it has no ://");
  url.scheme = text.substr(0, colon);
  if (!is_scheme(url.scheme)) return bad_url(text, "its scheme is not a name");
  std::transform(url.scheme.begin(), url.scheme.end(), url.scheme.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });

  const std::string_view rest = text.substr(colon + 3);
  const std::size_t question = rest.find('?');
  url.place = rest.substr(0, question);
  if (question != std::string_view::npos) LOCKSTEP_TRY(parse_query(rest.substr(question + 1), url));
  LOCKSTEP_ASSIGN(const std::optional<int> rank, take_number(url, "rank", 0));
  if (rank) url.rank = Rank{*rank};
  LOCKSTEP_ASSIGN(const std::optional<int> size, take_number(url, "world_size", 1));
  if (size) url.world_size = WorldSize{*size};
  return url;
}

}  // namespace lockstep::store

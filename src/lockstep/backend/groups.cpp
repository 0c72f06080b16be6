#include "lockstep/backend/groups.h"

#include <algorithm>

#include "lockstep/backend/operations.h"

namespace lockstep::backend {

Result<std::unique_ptr<Backend>> Groups::split(Backend& parent, const SplitBy& by,
                                               const GroupOptions& options) {
  // What a rank says: whether it has a colour, which, and its key.
  constexpr std::size_t kWords = 3;
  const std::vector<std::int64_t> own = {by.color ? 1 : 0, by.color.value_or(0), by.key};
  std::vector<std::int64_t> said(kWords * static_cast<std::size_t>(parent.size().value));
  LOCKSTEP_TRY(all_gather(parent, std::span(own), std::span(said)));
  if (!by.color) return std::unique_ptr<Backend>();
  struct Place {
    std::int64_t key;
    int rank;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<Place> places;
  for (int i = 0; i < parent.size().value; ++i) {
    const auto words = std::span(said).subspan(kWords * static_cast<std::size_t>(i), kWords);
    if (words[0] == 1 && words[1] == *by.color) places.push_back({.key = words[2], .rank = i});
  }
  std::sort(places.begin(), places.end());
  std::vector<Rank> members;
  members.reserve(places.size());
  for (const Place& place : places) members.push_back(parent.world_rank(Rank{place.rank}));
  return new_group(members, options);
}

}  // namespace lockstep::backend

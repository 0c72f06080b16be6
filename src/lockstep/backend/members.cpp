#include "lockstep/backend/members.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {

Status check_members(const std::vector<Rank>& members, Rank rank, WorldSize size) {
  if (std::find(members.begin(), members.end(), rank) == members.end())
    return Status::invalid(
        cat("rank ", rank, " makes a group that it is not a member of; its members alone make it"),
        {.rank = rank});
  std::vector<Rank> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (twice || !size.contains(sorted.front()) || !size.contains(sorted.back()))
    return Status::invalid(cat("the members of a group are different ranks below ", size), {.rank = rank});
  return {};
}

std::uint64_t group_id(std::string_view name, const std::vector<Rank>& members) {
  std::string whole(name);
  for (const Rank member : members) whole += cat('/', member);
  const base::Digest digest = base::sha256(bytes_of(whole));
  std::uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return number;
}

std::string GroupNames::next(const std::vector<Rank>& members) {
  const MutexLock lock(mutex_);
  const int count = ++made_[members];
  std::vector<Rank> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  return cat("ranks ", base::ranks_text(sorted), " #", count);
}

}  // namespace lockstep::backend

// What can go wrong while ranks become a world, each as one sentence that names everyone concerned.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/store/member.h"

namespace lockstep::store::join_errors {

// Ok if both can be in one world; else kVersionMismatch, kWorldSizeMismatch, or kNoSecret where only one of
// them was given the job's secret.
Status compare(const MemberRecord& one, const MemberRecord& other);

Status rank_beyond_world(const MemberRecord& record);
Status duplicate(const Member& first, const Member& second);
Status died_while_joining(const Member& member);
// After the join, when the ranks make their world.
Status died_in_set_up(const Member& member);
Status missing(const std::vector<Rank>& missing, const std::vector<Rank>& present, WorldSize size,
               Duration after);
Status stale_epoch(const Member& member, std::uint64_t epoch, std::uint64_t newest);
Status superseded(const Member& by, std::uint64_t old_epoch, std::uint64_t new_epoch);
Status foreign_key(std::string_view key);
// kStoreLost: it was that of an earlier world.
Status store_ends(std::string_view store);

// For one who comes when a world runs already; the world goes on.
Status taken_in_running_world(const Member& holder, const Member& newcomer, const Members& members);
Status world_is_running(const MemberRecord& newcomer, const Members& members);
Status earlier_world_remains(const Member& newcomer, const std::vector<Member>& remaining, Duration after);

}  // namespace lockstep::store::join_errors

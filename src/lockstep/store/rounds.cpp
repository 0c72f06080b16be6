#include "lockstep/store/rounds.h"

#include <algorithm>
#include <thread>

#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

constexpr Duration kRoundPoll = std::chrono::milliseconds(10);
// No record of anybody.
const ByteView kNobody = bytes_of("nobody");

}  // namespace

Result<std::set<Rank>> ranks_with_slots(Store& store, const RoundKeys& keys, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const std::vector<std::string> all, store.list_keys(deadline));
  std::set<Rank> out;
  for (const std::string& key : all) {
    if (const auto rank = keys.rank_of_slot(key)) out.insert(*rank);
  }
  return out;
}

Result<bool> anyone_may_live(Store& store, const RoundKeys& keys,
                             const std::function<bool(const Member&)>& is_gone, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const std::set<Rank> ranks, ranks_with_slots(store, keys, deadline));
  for (const Rank rank : ranks) {
    // It may have been given back just now; this asks without waiting.
    LOCKSTEP_ASSIGN(const Buffer record, store.compare_set(keys.slot(rank), kNobody, kNobody, deadline));
    if (std::ranges::equal(record, kNobody)) continue;
    LOCKSTEP_ASSIGN(const MemberRecord holder, parse_member(record));
    if (!is_gone(holder.member)) return true;
  }
  return false;
}

Status close_round(Store& store, const RoundKeys& keys, const Deadline& deadline) {
  LOCKSTEP_TRY(store.set(keys.verdict(), write_verdict(RoundClosed{}), deadline));
  LOCKSTEP_TRY(
      store
          .compare_set(keys.head(), bytes_of(keys.head_value()), bytes_of(keys.next().head_value()), deadline)
          .status());
  LOCKSTEP_TRY(store.set(keys.closed(), {}, deadline));
  LOCKSTEP_ASSIGN(const std::vector<std::string> all, store.list_keys(deadline));
  for (const std::string& key : all) {
    if (keys.is_garbage_after_close(key)) LOCKSTEP_TRY(store.delete_key(key, deadline).status());
  }
  return {};
}

Status end_store(Store& store, const RoundKeys& keys, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const Buffer newest, store.get(keys.head(), deadline));
  LOCKSTEP_TRY(store.set(keys.head(), bytes_of(RoundKeys::kEnded), deadline));
  const auto head = RoundKeys::parse_head(text_of(newest));
  if (!head || (head->epoch == keys.epoch() && head->round == keys.round())) return {};
  const RoundKeys open = keys.at(head->epoch, head->round);
  LOCKSTEP_TRY(store.compare_set(open.verdict(), {}, write_verdict(RoundClosed{}), deadline).status());
  // Those who had claimed a slot there read the verdict and give it back.
  while (!deadline.expired()) {
    LOCKSTEP_ASSIGN(const std::set<Rank> slots, ranks_with_slots(store, open, deadline));
    if (slots.empty()) break;
    std::this_thread::sleep_for(deadline.clock().patience(kRoundPoll));
  }
  return {};
}

}  // namespace lockstep::store

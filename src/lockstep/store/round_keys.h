// The store's keys of one round of a rendezvous. Grammar: docs/wire/rendezvous.md.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/types.h"

namespace lockstep::store {

// Among the keys of a world: why it could not be made, as base::write_status gives it.
inline constexpr std::string_view kSetUpFailed = "set_up/failed";

class RoundKeys {
 public:
  RoundKeys(std::string_view job_id, std::uint64_t epoch, std::uint64_t round);

  std::uint64_t epoch() const { return epoch_; }
  std::uint64_t round() const { return round_; }
  RoundKeys at(std::uint64_t epoch, std::uint64_t round) const;
  RoundKeys next() const { return at(epoch_, round_ + 1); }

  // Says which round is the newest; one for all rounds of the job.
  std::string head() const { return job_ + "head"; }
  std::string head_value() const;
  // The head of a store that is about to end with the rank that serves it: no round begins there any more.
  static constexpr std::string_view kEnded = "ended";
  // What a head says.
  struct Head {
    std::uint64_t epoch = 0;
    std::uint64_t round = 0;
  };
  static std::optional<Head> parse_head(std::string_view value);

  const std::string& prefix() const { return prefix_; }
  std::string founder() const { return prefix_ + "founder"; }
  std::string slot(Rank rank) const;
  // The rank whose slot `key` is.
  std::optional<Rank> rank_of_slot(std::string_view key) const;
  std::string arrived() const { return prefix_ + "arrived"; }
  std::string verdict() const { return prefix_ + "verdict"; }
  // When a rank on that host heard that the round has failed, on the clock of process_start_time().
  std::string heard(std::string_view boot_id) const;
  std::string seen() const { return prefix_ + "seen"; }
  std::string all_seen() const { return prefix_ + "all_seen"; }
  std::string made() const { return prefix_ + "made"; }
  std::string all_made() const { return prefix_ + "all_made"; }
  std::string left() const { return prefix_ + "left"; }
  std::string closed() const { return prefix_ + "closed"; }
  std::string secret() const { return prefix_ + "secret"; }
  // The prefix, without its slash, of the keys that the members use after the join.
  std::string world() const { return prefix_ + "world"; }

  // Why that world could not be made: kSetUpFailed, seen from outside of its namespace.
  std::string set_up_failed() const;

  // True for a key that nobody needs once this round is closed: those of this round but its two tombstones,
  // and everything of the job's earlier rounds.
  bool is_garbage_after_close(std::string_view key) const;
  // True for what stays of a job when all its rounds are closed: its head and the tombstones.
  static bool is_tombstone(std::string_view key);

 private:
  std::string job_;  // the prefix of all rounds of the job
  std::uint64_t epoch_;
  std::uint64_t round_;
  std::string prefix_;
};

}  // namespace lockstep::store

#include "lockstep/store/round_keys.h"

#include <span>
#include <tuple>

#include "lockstep/base/handshake.h"
#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

constexpr std::string_view kRoot = "rendezvous/";

// A job id may be any text of any size; half of its hash tells jobs apart and keeps keys short.
std::string job_prefix(std::string_view job_id) {
  const base::JobHash hash = base::job_hash(job_id);
  return cat(kRoot, base::hex(std::span(hash).first(8)), "/");
}

}  // namespace

RoundKeys::RoundKeys(std::string_view job_id, std::uint64_t epoch, std::uint64_t round)
    : job_(job_prefix(job_id)), epoch_(epoch), round_(round), prefix_(cat(job_, epoch, ".", round, "/")) {}

RoundKeys RoundKeys::at(std::uint64_t epoch, std::uint64_t round) const {
  RoundKeys out = *this;
  out.epoch_ = epoch;
  out.round_ = round;
  out.prefix_ = cat(job_, epoch, ".", round, "/");
  return out;
}

std::string RoundKeys::head_value() const { return cat(epoch_, ".", round_); }

std::optional<RoundKeys::Head> RoundKeys::parse_head(std::string_view value) {
  const std::size_t dot = value.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto epoch = base::parse_integer<std::uint64_t>(value.substr(0, dot));
  const auto round = base::parse_integer<std::uint64_t>(value.substr(dot + 1));
  if (!epoch || !round) return std::nullopt;
  return Head{*epoch, *round};
}

std::string RoundKeys::slot(Rank rank) const { return cat(prefix_, "member/", rank); }

std::string RoundKeys::heard(std::string_view boot_id) const { return cat(prefix_, "heard/", boot_id); }

std::string RoundKeys::set_up_failed() const { return cat(world(), "/", kSetUpFailed); }

std::optional<Rank> RoundKeys::rank_of_slot(std::string_view key) const {
  const std::string start = prefix_ + "member/";
  if (!key.starts_with(start)) return std::nullopt;
  const auto rank = base::parse_integer<int>(key.substr(start.size()));
  if (!rank || *rank < 0) return std::nullopt;
  return Rank{*rank};
}

bool RoundKeys::is_garbage_after_close(std::string_view key) const {
  if (key.starts_with(prefix_)) return key != verdict() && key != closed();
  if (!key.starts_with(job_)) return false;
  const std::string_view rest = key.substr(job_.size());
  const std::size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return false;
  const auto other = parse_head(rest.substr(0, slash));
  return other && std::tie(other->epoch, other->round) < std::tie(epoch_, round_);
}

bool RoundKeys::is_tombstone(std::string_view key) {
  return key.starts_with(kRoot) &&
         (key.ends_with("/head") || key.ends_with("/verdict") || key.ends_with("/closed"));
}

}  // namespace lockstep::store

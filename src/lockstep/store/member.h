// What each rank tells the others when it joins, and the verdict on a join, as bytes. Grammar:
// docs/wire/rendezvous.md.
//
// Thread safety: values and pure functions. Parsers check every length and count against its limit and
// against what is left before anything is made of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/net.h"
#include "lockstep/base/process.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::store {

// A table of this many members, each on its own host, still fits into one value of a store.
constexpr int kMaxWorldSize = 32768;
constexpr std::size_t kMaxMemberAddresses = 8;

// Tells one join from another, also of the same process.
using Nonce = std::array<std::byte, 16>;

// How a member came to its addresses: by the route to the master, or its user named the interfaces.
enum class AddressChoice : std::uint8_t { kRouted = 0, kNamed = 1 };

struct Member {
  Rank rank;
  int pid = 0;
  std::uint64_t start_time = 0;  // of the process, so that a pid that was used again is not taken for it
  Nonce nonce{};
  base::HostIdentity host;
  AddressChoice choice = AddressChoice::kRouted;
  std::vector<base::SocketAddress> addresses;  // port 0; at most kMaxMemberAddresses

  bool operator==(const Member&) const = default;
  // "rank 2 (host node7, pid 4711)"
  std::string text() const;
};

// A member and what it believes of the job, to be compared with the others' belief.
enum class SecretFrom : std::uint8_t { kNowhere = 0, kGiven = 1 };
struct MemberRecord {
  std::uint16_t version = 0;  // kWireVersion of its library
  WorldSize world_size;
  SecretFrom secret = SecretFrom::kNowhere;
  Member member;

  bool operator==(const MemberRecord&) const = default;
};

Buffer write_member(const MemberRecord& record);
// A record of another version gives version, world size, rank, pid and host name; the rest stays empty.
Result<MemberRecord> parse_member(ByteView bytes);

// The members of a world, by rank.
using Members = std::vector<Member>;
// The round is over and its keys are gone: look again for the newest one.
struct RoundClosed {
  bool operator==(const RoundClosed&) const = default;
};
// How a join ended: with a world, with the error that all ranks report, or it is history.
using JoinVerdict = std::variant<Members, Status, RoundClosed>;

Buffer write_verdict(const Members& members);
Buffer write_verdict(const Status& failure);
Buffer write_verdict(RoundClosed closed);
Result<JoinVerdict> parse_verdict(ByteView bytes);

}  // namespace lockstep::store

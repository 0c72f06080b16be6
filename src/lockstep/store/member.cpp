#include "lockstep/store/member.h"

#include <algorithm>
#include <map>

#include "lockstep/base/handshake.h"
#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

using base::ByteReader;
using base::ByteWriter;
using base::HostIdentity;
using base::SocketAddress;

constexpr std::uint32_t kRecordMagic = 0x524d534c;   // "LSMR"
constexpr std::uint32_t kVerdictMagic = 0x5644534c;  // "LSDV"
constexpr std::size_t kMaxHostName = 255;
constexpr std::size_t kMaxBootId = 64;
constexpr std::size_t kMaxAddressText = 64;
constexpr std::size_t kMaxMessage = 64U << 10;

enum class Kind : std::uint8_t { kWorld = 1, kFailure = 2, kClosed = 3 };

Status corrupt_entry(std::string_view what) {
  return Status::invalid(
      cat("The store holds ", what, " that does not parse: another program writes to the same keys."),
      {.failure = Failure::kCorruptFrame});
}

std::string_view shortened(std::string_view text, std::size_t limit) { return text.substr(0, limit); }

// Where a member runs; members of one host mostly share it, so a table names each place once.
struct Place {
  HostIdentity host;
  AddressChoice choice = AddressChoice::kRouted;
  std::vector<SocketAddress> addresses;
};

// All but the host's name.
void write_place(ByteWriter& out, const Member& member) {
  out.sized(shortened(member.host.boot_id, kMaxBootId));
  out.integer(member.host.net_namespace);
  out.integer(member.host.ipc_namespace);
  out.integer(member.host.pid_namespace);
  out.integer(static_cast<std::uint8_t>(member.choice));
  const std::size_t count = std::min(member.addresses.size(), kMaxMemberAddresses);
  out.integer(static_cast<std::uint8_t>(count));
  for (std::size_t i = 0; i < count; ++i) out.sized(shortened(member.addresses[i].host(), kMaxAddressText));
}

// False if the bytes are wrong.
bool read_place(ByteReader& in, Place& place) {
  place.host.boot_id = text_of(in.sized(kMaxBootId));
  place.host.net_namespace = in.integer<std::uint64_t>();
  place.host.ipc_namespace = in.integer<std::uint64_t>();
  place.host.pid_namespace = in.integer<std::uint64_t>();
  const auto choice = in.integer<std::uint8_t>();
  const auto count = in.integer<std::uint8_t>();
  if (!in.ok() || count > kMaxMemberAddresses) return false;
  if (choice > static_cast<std::uint8_t>(AddressChoice::kNamed)) return false;
  place.choice = static_cast<AddressChoice>(choice);
  for (std::size_t i = 0; i < count; ++i) {
    const auto address = SocketAddress::parse(text_of(in.sized(kMaxAddressText)), 0);
    if (!in.ok() || !address.ok()) return false;
    place.addresses.push_back(*address);
  }
  return true;
}

void put_member(Member& member, const Place& place) {
  member.host = place.host;
  member.choice = place.choice;
  member.addresses = place.addresses;
}

Nonce read_nonce(ByteReader& in) {
  Nonce nonce{};
  const ByteView bytes = in.take(nonce.size());
  std::copy(bytes.begin(), bytes.end(), nonce.begin());
  return nonce;
}

bool valid_world(WorldSize size) { return size.value >= 1 && size.value <= kMaxWorldSize; }

ByteWriter start_verdict(Buffer& out, Kind kind) {
  ByteWriter writer(out);
  writer.integer(kVerdictMagic);
  writer.integer(base::kWireVersion);
  writer.integer(static_cast<std::uint8_t>(kind));
  return writer;
}

Result<JoinVerdict> parse_world(ByteReader in) {
  const auto place_count = in.integer<std::uint32_t>();
  if (!in.ok() || place_count > kMaxWorldSize) return corrupt_entry("a table of members");
  std::vector<Place> places;
  for (std::uint32_t i = 0; i < place_count; ++i) {
    Place place;
    place.host.name = text_of(in.sized(kMaxHostName));
    if (!read_place(in, place)) return corrupt_entry("a table of members");
    places.push_back(std::move(place));
  }
  const auto size = in.integer<std::int32_t>();
  if (!in.ok() || !valid_world(WorldSize{size})) return corrupt_entry("a table of members");
  Members members;
  for (int rank = 0; rank < size; ++rank) {
    const auto place = in.integer<std::uint32_t>();
    Member member;
    member.rank = Rank{rank};
    member.pid = in.integer<std::int32_t>();
    member.start_time = in.integer<std::uint64_t>();
    member.nonce = read_nonce(in);
    if (!in.ok() || place >= places.size()) return corrupt_entry("a table of members");
    put_member(member, places[place]);
    members.push_back(std::move(member));
  }
  if (!in.complete()) return corrupt_entry("a table of members");
  return JoinVerdict(std::move(members));
}

std::optional<Rank> optional_rank(std::int32_t value) {
  if (value < 0) return std::nullopt;
  return Rank{value};
}

Result<JoinVerdict> parse_failure(ByteReader in) {
  const auto code = in.integer<std::uint8_t>();
  Cause cause;
  const auto failure = base::failure_from_name(text_of(in.sized(kMaxHostName)));
  cause.peer = optional_rank(in.integer<std::int32_t>());
  const auto pid = in.integer<std::int32_t>();
  if (pid > 0) cause.pid = pid;
  cause.host = text_of(in.sized(kMaxHostName));
  const auto missing = in.integer<std::uint32_t>();
  if (!in.ok() || missing > in.left() / sizeof(std::int32_t)) return corrupt_entry("a verdict");
  for (std::uint32_t i = 0; i < missing; ++i) cause.missing.emplace_back(in.integer<std::int32_t>());
  std::string message(text_of(in.sized(kMaxMessage)));
  const bool known =
      code > static_cast<std::uint8_t>(Code::kOk) && code <= static_cast<std::uint8_t>(Code::kInternal);
  if (!in.complete() || !known || !failure) return corrupt_entry("a verdict");
  cause.failure = *failure;
  return JoinVerdict(Status(static_cast<Code>(code), std::move(message), std::move(cause)));
}

}  // namespace

std::string Member::text() const { return cat("rank ", rank, " (host ", host.name, ", pid ", pid, ")"); }

Buffer write_member(const MemberRecord& record) {
  Buffer bytes;
  ByteWriter out(bytes);
  // The same in every version, up to the host name.
  out.integer(kRecordMagic);
  out.integer(record.version);
  out.integer(static_cast<std::int32_t>(record.world_size.value));
  out.integer(static_cast<std::int32_t>(record.member.rank.value));
  out.integer(static_cast<std::int32_t>(record.member.pid));
  out.sized(shortened(record.member.host.name, kMaxHostName));
  out.integer(static_cast<std::uint8_t>(record.secret));
  out.integer(record.member.start_time);
  out.raw(record.member.nonce);
  write_place(out, record.member);
  return bytes;
}

Result<MemberRecord> parse_member(ByteView bytes) {
  ByteReader in(bytes);
  MemberRecord record;
  Member& member = record.member;
  const auto magic = in.integer<std::uint32_t>();
  record.version = in.integer<std::uint16_t>();
  record.world_size = WorldSize{in.integer<std::int32_t>()};
  member.rank = Rank{in.integer<std::int32_t>()};
  member.pid = in.integer<std::int32_t>();
  member.host.name = text_of(in.sized(kMaxHostName));
  if (!in.ok() || magic != kRecordMagic) return corrupt_entry("a member's record");
  if (record.version != base::kWireVersion) return record;
  const auto secret = in.integer<std::uint8_t>();
  member.start_time = in.integer<std::uint64_t>();
  member.nonce = read_nonce(in);
  Place place;
  place.host = member.host;
  const bool placed = read_place(in, place);
  const bool sane = secret <= static_cast<std::uint8_t>(SecretFrom::kGiven) &&
                    valid_world(record.world_size) && record.world_size.contains(member.rank);
  if (!placed || !sane || !in.complete()) return corrupt_entry("a member's record");
  record.secret = static_cast<SecretFrom>(secret);
  put_member(member, place);
  return record;
}

Buffer write_verdict(const Members& members) {
  Buffer bytes;
  ByteWriter out = start_verdict(bytes, Kind::kWorld);
  // Each place once, in the order of the first rank there.
  std::map<Buffer, std::uint32_t> index;
  std::vector<Buffer> places;
  std::vector<std::uint32_t> place_of;
  for (const Member& member : members) {
    Buffer place;
    ByteWriter writer(place);
    writer.sized(shortened(member.host.name, kMaxHostName));
    write_place(writer, member);
    const auto [entry, fresh] = index.emplace(place, static_cast<std::uint32_t>(places.size()));
    if (fresh) places.push_back(std::move(place));
    place_of.push_back(entry->second);
  }
  out.integer(static_cast<std::uint32_t>(places.size()));
  for (const Buffer& place : places) out.raw(place);
  out.integer(static_cast<std::int32_t>(members.size()));
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    out.integer(place_of[rank]);
    out.integer(static_cast<std::int32_t>(members[rank].pid));
    out.integer(members[rank].start_time);
    out.raw(members[rank].nonce);
  }
  return bytes;
}

Buffer write_verdict(const Status& failure) {
  Buffer bytes;
  ByteWriter out = start_verdict(bytes, Kind::kFailure);
  const Cause& cause = failure.cause();
  out.integer(static_cast<std::uint8_t>(failure.code()));
  out.sized(base::failure_name(cause.failure));
  out.integer(static_cast<std::int32_t>(cause.peer ? cause.peer->value : -1));
  out.integer(static_cast<std::int32_t>(cause.pid.value_or(0)));
  out.sized(shortened(cause.host, kMaxHostName));
  out.integer(static_cast<std::uint32_t>(cause.missing.size()));
  for (const Rank rank : cause.missing) out.integer(static_cast<std::int32_t>(rank.value));
  out.sized(shortened(failure.message(), kMaxMessage));
  return bytes;
}

Buffer write_verdict(RoundClosed) {
  Buffer bytes;
  start_verdict(bytes, Kind::kClosed);
  return bytes;
}

Result<JoinVerdict> parse_verdict(ByteView bytes) {
  ByteReader in(bytes);
  const auto magic = in.integer<std::uint32_t>();
  const auto version = in.integer<std::uint16_t>();
  const auto kind = in.integer<std::uint8_t>();
  if (!in.ok() || magic != kVerdictMagic) return corrupt_entry("a verdict");
  if (version != base::kWireVersion) {
    return Status::unsupported(
        cat("The ranks of this job run different versions of Lockstep: the verdict on "
            "their join has wire version ",
            version, ", this rank has ", base::kWireVersion, ". Install the same version everywhere."),
        {.failure = Failure::kVersionMismatch});
  }
  switch (static_cast<Kind>(kind)) {
    case Kind::kWorld:
      return parse_world(in);
    case Kind::kFailure:
      return parse_failure(in);
    case Kind::kClosed:
      if (in.complete()) return JoinVerdict(RoundClosed{});
      break;
  }
  return corrupt_entry("a verdict");
}

}  // namespace lockstep::store

#include "lockstep/transport/introduction.h"

#include "lockstep/base/handshake.h"
#include "lockstep/base/text.h"

namespace lockstep::transport {
namespace {

std::string rank_text(std::optional<Rank> rank) {
  return rank ? cat("rank ", *rank) : "a process without a rank";
}

}  // namespace

std::string_view protection_name(Protection protection) {
  return protection == Protection::kSealed ? "sealed" : "integrity";
}

Buffer introduction_bytes(const Introduction& introduction) {
  Buffer out;
  base::ByteWriter writer(out);
  writer.integer(static_cast<std::uint8_t>(introduction.protection));
  writer.integer(introduction.rank ? static_cast<std::uint32_t>(introduction.rank->value) : base::kNoRank);
  writer.integer(static_cast<std::uint32_t>(introduction.world.value));
  return out;
}

Result<Introduction> parse_introduction(ByteView bytes) {
  base::ByteReader reader(bytes);
  const auto protection = reader.integer<std::uint8_t>();
  const auto rank = reader.integer<std::uint32_t>();
  const auto world = reader.integer<std::uint32_t>();
  constexpr std::uint32_t kLargest = 0x7fffffff;
  const bool known = protection == static_cast<std::uint8_t>(Protection::kSealed) ||
                     protection == static_cast<std::uint8_t>(Protection::kIntegrity);
  const bool in_world = rank == base::kNoRank || rank < world;
  if (!reader.complete() || !known || world < 1 || world > kLargest || !in_world) {
    return Status::disconnected("what it says of itself cannot be understood",
                                {.failure = Failure::kCorruptFrame});
  }
  Introduction introduction{.protection = static_cast<Protection>(protection),
                            .world = WorldSize(static_cast<int>(world))};
  if (rank != base::kNoRank) introduction.rank = Rank(static_cast<int>(rank));
  return introduction;
}

Status judge_introduction(const Introduction& own, const Introduction& other, std::optional<Rank> expected) {
  if (own.world != other.world) {
    return Status::invalid(
        cat("it is ", rank_text(other.rank), " of a world of ", other.world, " and this side is ",
            rank_text(own.rank), " of a world of ", own.world, "; start all ranks with the same world size"),
        {.failure = Failure::kWorldSizeMismatch});
  }
  if (own.protection != other.protection) {
    return Status::invalid(
        cat("its records are protected by `", protection_name(other.protection),
            "` and those of this side by `", protection_name(own.protection), "`; set the same on all ranks"),
        {.failure = Failure::kVersionMismatch});
  }
  if (expected && other.rank != expected) {
    return Status::disconnected(cat("it is ", rank_text(other.rank), " and should be rank ", *expected,
                                    "; the address is out of date"),
                                {.failure = Failure::kRejected});
  }
  return {};
}

}  // namespace lockstep::transport

// What a socket at a Door is for: a link of a group, or the news that a group has failed, which are answered
// by the news that are known there, or by that the rank has left the group. Grammar: docs/wire/links.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/base/status.h"

namespace lockstep::transport::link {

enum class ErrandKind : std::uint16_t { kLink = 0, kNews = 1, kHasLeft = 2 };

struct Errand {
  ErrandKind kind = ErrandKind::kLink;
  std::uint64_t group = 0;
  std::uint16_t stream = 0;  // of news: the size of the status that follows
  bool operator==(const Errand&) const = default;
};

constexpr std::size_t kErrandSize = 20;
std::array<std::byte, kErrandSize> write_errand(const Errand& errand);
Result<Errand> parse_errand(std::span<const std::byte, kErrandSize> bytes);

}  // namespace lockstep::transport::link

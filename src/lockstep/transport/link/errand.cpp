#include "lockstep/transport/link/errand.h"

#include <algorithm>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/base/status_bytes.h"

namespace lockstep::transport::link {
namespace {

constexpr std::uint32_t kErrandMagic = 0x4c4c4b4c;  // "LKLL"
constexpr std::size_t kChecked = kErrandSize - 4;

}  // namespace

std::array<std::byte, kErrandSize> write_errand(const Errand& errand) {
  Buffer bytes;
  base::ByteWriter out(bytes);
  out.integer(kErrandMagic);
  out.integer(errand.group);
  out.integer(errand.stream);
  out.integer(static_cast<std::uint16_t>(errand.kind));
  out.integer(base::crc32c(bytes));
  std::array<std::byte, kErrandSize> raw{};
  std::copy(bytes.begin(), bytes.end(), raw.begin());
  return raw;
}

Result<Errand> parse_errand(std::span<const std::byte, kErrandSize> bytes) {
  base::ByteReader in(bytes);
  const auto magic = in.integer<std::uint32_t>();
  Errand errand;
  errand.group = in.integer<std::uint64_t>();
  errand.stream = in.integer<std::uint16_t>();
  const auto kind = in.integer<std::uint16_t>();
  const auto crc = in.integer<std::uint32_t>();
  const bool fits =
      kind == static_cast<std::uint16_t>(ErrandKind::kLink) ||
      kind == static_cast<std::uint16_t>(ErrandKind::kHasLeft) ||
      (kind == static_cast<std::uint16_t>(ErrandKind::kNews) && errand.stream <= base::kMaxStatusSize);
  if (magic != kErrandMagic || !fits || crc != base::crc32c(bytes.first<kChecked>())) {
    return Status::disconnected("it does not say what it comes for", {.failure = Failure::kCorruptFrame});
  }
  errand.kind = static_cast<ErrandKind>(kind);
  return errand;
}

}  // namespace lockstep::transport::link

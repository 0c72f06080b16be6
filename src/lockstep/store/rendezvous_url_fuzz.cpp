// Whatever parses comes back from its parts; nothing crashes.
#include "lockstep/store/rendezvous_url.h"

#include <cstddef>
#include <cstdint>

#include "lockstep/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto url = lockstep::store::parse_rendezvous_url(text);
  if (!url.ok()) return 0;
  LOCKSTEP_CHECK(url->text == text, "the whole is kept");
  LOCKSTEP_CHECK(!url->rank || url->rank->value >= 0, "a rank is not negative");
  LOCKSTEP_CHECK(!url->world_size || url->world_size->value >= 1, "a world has a rank");
  LOCKSTEP_CHECK(text.find(url->place) != std::string_view::npos, "the place is taken as written");
  return 0;
}

// Any text is an endpoint that prints and reads back as itself, or an error.
#include "lockstep/base/bytes.h"
#include "lockstep/base/check.h"
#include "lockstep/base/net.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::base;
  const std::string_view text = text_of(std::as_bytes(std::span(data, size)));
  for (const std::optional<std::uint16_t> default_port : {std::optional<std::uint16_t>(), {29500}}) {
    const auto endpoint = parse_endpoint(text, default_port);
    if (!endpoint.ok()) continue;
    const auto again = parse_endpoint(endpoint->text());
    LOCKSTEP_CHECK(again.ok() && *again == *endpoint, "an endpoint reads back as itself");
  }
  const auto address = SocketAddress::parse(text, 80);
  if (address.ok()) {
    const auto again = SocketAddress::parse(address->host(), 80);
    LOCKSTEP_CHECK(again.ok() && *again == *address, "an address reads back as itself");
  }
  return 0;
}

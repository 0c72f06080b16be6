#include "lockstep/object/envelope.h"
#include "lockstep/object/object_test_support.h"

// An envelope that is read is written back as it was; a value that is read is one that can be sent.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using namespace lockstep::object;
  const ByteView bytes = std::as_bytes(std::span(data, size));
  const auto envelope = parse_envelope(bytes);
  if (!envelope) return 0;
  if (!std::ranges::equal(write_envelope(*envelope), bytes)) __builtin_trap();
  Document document(envelope->value, {});
  const Rich value = Codec<Rich>::read(document.root());
  if (!document.ok()) return 0;
  Writer out;
  Codec<Rich>::write(out, value);
  if (!out.readable()) __builtin_trap();
  return 0;
}

// Feeds the input to the parser of requests and, if it is one, to a tenant, as a client with the secret
// could. What was parsed is written again the same.
#include <cstddef>
#include <cstdint>

#include "lockstep/base/check.h"
#include "lockstep/store/tcp_tenant.h"
#include "lockstep/store/tcp_wire.h"

namespace lockstep::store {
namespace {

class Ignored final : public Answers {
 public:
  void done(std::uint64_t) override {}
  void value(std::uint64_t, ByteView) override {}
  void number(std::uint64_t, std::int64_t) override {}
  void flag(std::uint64_t, bool) override {}
  void list(std::uint64_t, std::span<const ByteView>) override {}
  void error(std::uint64_t, const Status& status) override {
    LOCKSTEP_CHECK(!status.message().empty(), "an error has a text");
  }
};

// The one field that is not kept to the bit: a timeout beyond a year becomes a year.
bool keeps_its_timeout(const Request& request) { return request.timeout < std::chrono::hours(365 * 24); }

void attack(ByteView input) {
  Request request;
  if (!parse_request(input, request).ok()) return;
  LOCKSTEP_CHECK(request_size(request) == input.size(), "the size of a request is that of its bytes");
  Buffer written;
  write_request(request, written);
  LOCKSTEP_CHECK(
      !keeps_its_timeout(request) || std::equal(written.begin(), written.end(), input.begin(), input.end()),
      "a request is written as it was read");
  static const TenantOptions options{.job_id = "fuzz", .max_memory = Bytes::mib(64)};
  Tenant tenant(options, Clock::steady());
  Ignored client;
  // Twice: the second finds what the first has left, or waits beside it.
  tenant.execute(request, client);
  tenant.execute(request, client);
  tenant.expire();
  tenant.forget(client);
  LOCKSTEP_CHECK(!tenant.next_deadline().has_value(), "nobody waits for a client that has gone");
}

}  // namespace
}  // namespace lockstep::store

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::store::attack(std::as_bytes(std::span(data, size)));
  return 0;
}

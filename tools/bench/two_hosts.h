// Two hosts on one machine: two network namespaces with a wire between them.
//
// They have no names: they end with the last process in them and with this object, so that nothing is left
// even after SIGKILL. Needs root, and ip and tc in PATH. Thread safety: the thread that made it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::bench {

class TwoHosts {
 public:
  // The network interface of either host at the wire.
  static constexpr const char* kWire = "wire0";

  // `bits_per_second` bounds each direction of the wire, by a token bucket. The new hosts use the cubic
  // congestion control where the kernel has it: the default of some machines halves a veth's rate.
  static Result<TwoHosts> make(std::optional<std::uint64_t> bits_per_second, const Deadline& deadline);

  // Until its end this thread, and the processes that it starts, are on that host.
  class Visit {
   public:
    Visit(Visit&& other) noexcept : home_(std::exchange(other.home_, -1)) {}
    Visit& operator=(Visit&&) = delete;
    ~Visit();

   private:
    friend class TwoHosts;
    explicit Visit(int home) : home_(home) {}
    int home_;
  };
  Result<Visit> enter(int host) const;

 private:
  TwoHosts() = default;
  Status add_hosts();
  Status add_wire(const Deadline& deadline);
  Status set_up(int host, std::optional<std::uint64_t> bits_per_second, const Deadline& deadline);

  UniqueFd home_;
  std::array<UniqueFd, 2> spaces_;
};

// "1gbit", "100mbit": bits per second, as tc writes it. Pure.
std::optional<std::uint64_t> parse_rate(std::string_view text);

}  // namespace lockstep::bench

// What the two ends of a connection must have been built with alike, beside the wire version: the numbers of
// the types and operations that travel, and the limits that one side keeps to and the other checks. Both say
// a hash of it in the handshake. Who changes one of these where it is used changes it here: the layers assert
// that they agree.
//
// Thread safety: constants.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::base {

// By their numbers: collective/dtype.h.
constexpr std::string_view kWireTypes[] = {
    "bool",   "uint8",   "int8",     "int16",   "int32",   "int64",     "uint16",     "uint32",
    "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8"};
constexpr std::string_view kWireOps[] = {"sum",  "avg", "product", "min",       "max",
                                         "band", "bor", "bxor",    "premul_sum"};

struct WireLimits {
  std::uint64_t world = 32768;  // store/member.h
  std::uint64_t key = 1024;     // this and the next three: store/store.h, tcp_wire.h
  std::uint64_t value = 8U << 20;
  std::uint64_t keys_per_call = 128U << 10;
  std::uint64_t message = 32U << 20;
};
constexpr WireLimits kWireLimits = {};

// FNV-1a of all of the above: names with a zero behind each, then the limits, little-endian.
constexpr std::uint32_t hash_of_wire_table() {
  std::uint32_t hash = 2166136261U;
  const auto add = [&hash](std::uint8_t byte) { hash = (hash ^ byte) * 16777619U; };
  const auto add_names = [&add](const auto& names) {
    for (const std::string_view name : names) {
      for (const char letter : name) add(static_cast<std::uint8_t>(letter));
      add(0);
    }
  };
  add_names(kWireTypes);
  add_names(kWireOps);
  for (const std::uint64_t limit : {kWireLimits.world, kWireLimits.key, kWireLimits.value,
                                    kWireLimits.keys_per_call, kWireLimits.message}) {
    for (int shift = 0; shift < 64; shift += 8) add(static_cast<std::uint8_t>(limit >> shift));
  }
  return hash;
}
constexpr std::uint32_t kWireTable = hash_of_wire_table();

}  // namespace lockstep::base

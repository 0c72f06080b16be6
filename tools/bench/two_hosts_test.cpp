#include "tools/bench/two_hosts.h"

#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

TEST(ParseRate, IsWrittenAsTcWritesIt) {
  EXPECT_EQ(parse_rate("1gbit"), 1'000'000'000U);
  EXPECT_EQ(parse_rate("100mbit"), 100'000'000U);
  EXPECT_EQ(parse_rate("64kbit"), 64'000U);
}

TEST(ParseRate, AnythingElseIsRefused) {
  for (const char* text : {"", "gbit", "1", "0gbit", "-1gbit", "1.5gbit", "1 gbit", "1gb", "9999999gbit"}) {
    EXPECT_EQ(parse_rate(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep::bench

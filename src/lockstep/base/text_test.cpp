#include "lockstep/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::base {
namespace {

using std::chrono::nanoseconds;
using ::testing::ElementsAre;

TEST(Text, CatReadsAsAPersonWould) {
  EXPECT_EQ(cat("rank ", Rank{2}, " of ", WorldSize{8}, ": ", true, ' ', -5, ' ', 0.25),
            "rank 2 of 8: true -5 0.25");
  EXPECT_EQ(cat(std::uint8_t{7}, std::int64_t{-9223372036854775807LL - 1}), "7-9223372036854775808");
}

TEST(Text, BytesUseTheUnitThatFits) {
  const std::pair<std::uint64_t, const char*> kCases[] = {
      {0, "0 B"},
      {1023, "1023 B"},
      {1024, "1.0 KiB"},
      {1536, "1.5 KiB"},
      {25U << 20, "25.0 MiB"},
      {(1U << 20) - 1, "1.0 MiB"},
      {UINT64_MAX, "16.0 EiB"},
  };
  for (const auto& [bytes, text] : kCases) EXPECT_EQ(cat(Bytes{bytes}), text);
}

TEST(Text, DurationsUseTheUnitThatFits) {
  const std::pair<std::int64_t, const char*> kCases[] = {
      {0, "0 ns"},
      {850, "850 ns"},
      {1200, "1.2 us"},
      {2'500'000, "2.5 ms"},
      {30'000'000'000, "30.0 s"},
      {1'800'000'000'000, "30 min"},
      {7'200'000'000'000, "2 h"},
      {-1500, "-1.5 us"},
  };
  for (const auto& [nanos, text] : kCases) EXPECT_EQ(cat(nanoseconds(nanos)), text);
}

TEST(Text, SplitJoinAndTrim) {
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_EQ(join({"a", "b"}), "a, b");
  EXPECT_EQ(join({}), "");
  EXPECT_EQ(trim("\t a b \n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(Text, RanksAreListedAsRanges) {
  const auto text = [](std::vector<int> ranks) {
    std::vector<Rank> list;
    for (const int rank : ranks) list.emplace_back(rank);
    return ranks_text(list);
  };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({3}), "3");
  EXPECT_EQ(text({3, 4}), "3, 4");
  EXPECT_EQ(text({0, 1, 2, 4, 6, 7, 8}), "0-2, 4, 6-8");
}

TEST(Text, ParseIntegerTakesAllOrNothing) {
  EXPECT_EQ(parse_integer<int>("42"), 42);
  EXPECT_EQ(parse_integer<int>("-1"), -1);
  for (const char* bad : {"", " 1", "1 ", "1x", "0x10", "99999999999", "+1", "1.0"}) {
    EXPECT_EQ(parse_integer<int>(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(parse_integer<std::uint16_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_integer<std::uint16_t>("65536"), std::nullopt);
}

TEST(Text, ParseBytes) {
  const std::pair<const char*, std::uint64_t> kCases[] = {
      {"0", 0},       {"4096", 4096},         {"64KiB", 65536},  {"25 MiB", 25U << 20},
      {"1.5k", 1536}, {"1GB", 1'000'000'000}, {"2G", 2ULL << 30}};
  for (const auto& [text, bytes] : kCases) EXPECT_EQ(parse_bytes(text), Bytes{bytes}) << text;
  for (const char* bad : {"", "-1", "KiB", "1 apple", "0.3", "1e3", "99999999TiB", "nan", "inf", "0x10"}) {
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  }
}

TEST(Text, ParseDuration) {
  const std::pair<const char*, std::int64_t> kCases[] = {
      {"30", 30'000'000'000},     {"1.5s", 1'500'000'000},   {"250ms", 250'000'000},
      {"5 min", 300'000'000'000}, {"1h", 3'600'000'000'000}, {"0", 0}};
  for (const auto& [text, nanos] : kCases) EXPECT_EQ(parse_duration(text), nanoseconds(nanos)) << text;
  for (const char* bad : {"", "-1", "s", "1 fortnight", "inf", "99999999999h"}) {
    EXPECT_EQ(parse_duration(bad), std::nullopt) << bad;
  }
}

TEST(Text, ParseBool) {
  for (const char* yes : {"1", "true", "YES", "On"}) EXPECT_EQ(parse_bool(yes), true) << yes;
  for (const char* no : {"0", "False", "no", "off"}) EXPECT_EQ(parse_bool(no), false) << no;
  for (const char* bad : {"", "2", "y", "enable"}) EXPECT_EQ(parse_bool(bad), std::nullopt) << bad;
}

TEST(Text, QuotedShowsNoControlCharacterAndIsBounded) {
  EXPECT_EQ(quoted("a\"b\\c\n\x7f\xff"), R"("a\"b\\c\x0a\x7f\xff")");
  EXPECT_EQ(quoted("abcdef", 3), "\"abc...\"");
}

}  // namespace
}  // namespace lockstep::base

#include "lockstep/launch/line_assembler.h"

#include <gmock/gmock.h>

#include <random>
#include <vector>

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Lines {
 public:
  explicit Lines(std::size_t limit = kMaxLine) : assembler_(limit) {}
  Lines& feed(std::string_view bytes) {
    assembler_.feed(bytes, [this](std::string_view line) { lines.emplace_back(line); });
    return *this;
  }
  Lines& finish() {
    assembler_.finish([this](std::string_view line) { lines.emplace_back(line); });
    return *this;
  }
  std::vector<std::string> lines;

 private:
  LineAssembler assembler_;
};

TEST(LineAssembler, JoinsPiecesAndSplitsAtNewlines) {
  EXPECT_THAT(Lines().feed("ab").feed("c\nde\n\nf").lines, ElementsAre("abc", "de", ""));
}

TEST(LineAssembler, ShowsAnUnterminatedLineAtTheEnd) {
  EXPECT_THAT(Lines().feed("a\nb").finish().lines, ElementsAre("a", "b"));
  EXPECT_THAT(Lines().feed("a\n").finish().lines, ElementsAre("a"));
  EXPECT_THAT(Lines().finish().lines, IsEmpty());
}

TEST(LineAssembler, KeepsTheLastStateOfAProgressBar) {
  EXPECT_THAT(Lines().feed("\r 10%").feed("\r 20%").feed("\r100%\ndone\r\n").lines,
              ElementsAre("100%", "done"));
}

TEST(LineAssembler, AProgressBarThatNeverEndsIsShownNowAndThen) {
  Lines lines(160);
  for (int i = 0; i < 6; ++i) lines.feed("\r" + std::to_string(i) + "%  ");
  EXPECT_FALSE(lines.lines.empty());
  EXPECT_EQ(lines.lines.front(), "0%  ");
}

TEST(LineAssembler, CutsALineAboveItsLimit) {
  EXPECT_THAT(Lines(4).feed("abcdefghij\nk\n").lines, ElementsAre("abcd", "efgh", "ij", "k"));
}

TEST(LineAssembler, NeverCutsACharacterInTwo) {
  EXPECT_THAT(Lines(4).feed("abc\xc3\xa4xyz\n").lines, ElementsAre("abc", "\xc3\xa4xy", "z"));
  EXPECT_THAT(Lines(4).feed("a\xf0\x9f\x98\x80z\n").lines, ElementsAre("a", "\xf0\x9f\x98\x80", "z"));
}

TEST(LineAssembler, LosesNoByteOfGarbageHoweverItIsSliced) {
  std::mt19937 random(7);
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += static_cast<char>(random() % 256);
  std::erase(text, '\r');
  for (const std::size_t limit : {5U, 64U, 8192U}) {
    Lines lines(limit);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 300;
      lines.feed(std::string_view(text).substr(at, size));
      at += size;
    }
    std::string joined;
    for (const std::string& line : lines.finish().lines) {
      EXPECT_LE(line.size(), limit);
      joined += line;
    }
    std::string expected = text;
    std::erase(expected, '\n');
    EXPECT_EQ(joined, expected);
  }
}

}  // namespace
}  // namespace lockstep::launch

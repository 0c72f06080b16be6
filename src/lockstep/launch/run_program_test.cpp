#include "lockstep/launch/run_program.h"

#include <sys/wait.h>

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::lockstep::testing::StatusIs;
using ::testing::HasSubstr;

std::vector<std::string> shell(const std::string& script) { return {"sh", "-c", script}; }
Deadline soon() { return Clock::steady().in(30s); }

TEST(RunProgram, GivesBothStreamsAndTheStatus) {
  ASSERT_OK_AND_ASSIGN(const ProgramOutput output,
                       run_program(shell("echo one; echo two >&2; exit 3"), soon()));
  EXPECT_EQ(output.text, "one\ntwo\n");
  EXPECT_EQ(output.first_line(), "one");
  EXPECT_EQ(WEXITSTATUS(output.wait_status), 3);
  EXPECT_FALSE(output.succeeded());
}

TEST(RunProgram, GivesNoInput) {
  ASSERT_OK_AND_ASSIGN(const ProgramOutput output, run_program({"cat"}, soon()));
  EXPECT_TRUE(output.succeeded());
  EXPECT_EQ(output.text, "");
}

TEST(RunProgram, KeepsTheStartOfALongOutput) {
  ASSERT_OK_AND_ASSIGN(const ProgramOutput output,
                       run_program(shell("yes lockstep | head -c 1000000"), soon(), Bytes{1000}));
  EXPECT_EQ(output.text.size(), 1000U);
  EXPECT_TRUE(output.succeeded());
}

TEST(RunProgram, NamesAProgramThatIsNotThere) {
  EXPECT_THAT(run_program({"no-such-program"}, soon()),
              StatusIs(Code::kUnsupported, HasSubstr("no-such-program")));
}

TEST(RunProgram, KillsAtTheDeadlineWhateverTheProgramDoes) {
  EXPECT_THAT(run_program({"sleep", "1000"}, Clock::steady().in(50ms)),
              StatusIs(Code::kTimeout, HasSubstr("'sleep' did not end in time")));
  EXPECT_THAT(run_program(shell("trap '' TERM INT HUP; exec >&- 2>&-; while :; do sleep 1; done"),
                          Clock::steady().in(50ms)),
              StatusIs(Code::kTimeout));
}

TEST(RunProgram, DoesNotWaitForAGrandchildThatKeepsThePipe) {
  ASSERT_OK_AND_ASSIGN(const ProgramOutput output, run_program(shell("sleep 1000 & echo done"), soon()));
  EXPECT_TRUE(output.succeeded());
  EXPECT_EQ(output.text, "done\n");
}

}  // namespace
}  // namespace lockstep::launch

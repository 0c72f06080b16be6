#include "tools/lockstep/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tools/lockstep/completion.h"

namespace lockstep::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// A small command line of the same shape as the real one.
class CommandLine : public ::testing::Test {
 protected:
  CommandLine() {
    CLI::App* run = app_.add_subcommand("run", "Start ranks");
    run->prefix_command();
    run->add_option("--nproc", nproc_, "Ranks on this host")->type_name("N")->required();
    run->add_option("--cpu-binding", binding_, "Bind ranks")->check(CLI::IsMember({"none", "cores", "numa"}));
    run->add_flag("--dry-run", dry_run_, "Only print");
    on_run(*run, context_, [this] { return result_; });
    CLI::App* bench = app_.add_subcommand("bench", "Measure");
    CLI::App* store = bench->add_subcommand("store", "Measure the store");
    store->add_option("--clients", nproc_, "How many");
    on_run(*store, context_, [this] { return result_; });
    bench->add_subcommand("hidden", "Not shown")->group("");
  }

  int run(std::vector<std::string> arguments) {
    out_.str("");
    err_.str("");
    return run_command_line(app_, context_, std::move(arguments), out_, err_);
  }
  std::vector<std::string> completions(const std::vector<std::string>& words) const {
    std::vector<std::string> out;
    for (const Candidate& candidate : complete(app_, words)) out.push_back(candidate.word);
    return out;
  }

  CLI::App app_{"A test", "lockstep"};
  CommandContext context_{.environment = Environment::parse({})};
  Result<int> result_ = 0;
  int nproc_ = 0;
  std::string binding_;
  bool dry_run_ = false;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(CommandLine, GivesTheStatusOfTheBody) {
  result_ = 17;
  EXPECT_EQ(run({"run", "--nproc", "4"}), 17);
  EXPECT_EQ(nproc_, 4);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandLine, PrintsAnErrorOnceAndHintsWhenTheCallIsWrong) {
  result_ = Status::invalid("--nproc is -1 but must be at least 1");
  EXPECT_EQ(run({"run", "--nproc", "-1"}), kExitUsage);
  EXPECT_EQ(err_.str(), "lockstep run: --nproc is -1 but must be at least 1.\nTry 'lockstep run --help'.\n");
  result_ = Status::disconnected("the store is gone.");
  EXPECT_EQ(run({"bench", "store"}), kExitFailure);
  EXPECT_EQ(err_.str(), "lockstep bench store: the store is gone.\n");
}

TEST_F(CommandLine, AloneOrAGroupAlonePrintsHelp) {
  EXPECT_EQ(run({}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("Start ranks"));
  EXPECT_EQ(run({"bench"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("Measure the store"));
  EXPECT_EQ(run({"run", "--help"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("lockstep run"));
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandLine, SuggestsTheNearestCommandAndOption) {
  EXPECT_EQ(run({"rnu", "--nproc", "4"}), kExitUsage);
  EXPECT_THAT(err_.str(), StartsWith("lockstep: there is no command \"rnu\"; did you mean 'run'?\n"));
  EXPECT_EQ(run({"bench", "stroe"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean 'store'?"));
  EXPECT_EQ(run({"bench", "store", "--client=3"}), kExitUsage);
  EXPECT_THAT(err_.str(),
              StartsWith("lockstep bench store: there is no option \"--client\"; did you mean '--clients'?"));
  EXPECT_EQ(run({"frobnicate"}), kExitUsage);
  EXPECT_EQ(
      err_.str(),
      "lockstep: there is no command \"frobnicate\"; there are run and bench.\nTry 'lockstep --help'.\n");
}

TEST_F(CommandLine, AMissingOrBadValueIsOneSentence) {
  EXPECT_EQ(run({"run"}), kExitUsage);
  EXPECT_EQ(err_.str(), "lockstep run: --nproc is required.\nTry 'lockstep run --help'.\n");
  EXPECT_EQ(run({"run", "--nproc", "many"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("many"));
  EXPECT_EQ(run({"run", "--nproc"}), kExitUsage);
  EXPECT_EQ(err_.str(), "lockstep run: --nproc needs a value: N.\nTry 'lockstep run --help'.\n");
  EXPECT_EQ(run({"run", "--nproc", "4", "--cpu-binding", "sockets"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("sockets"));
}

TEST_F(CommandLine, AnEmptyValueComesToNoBodyUnlessItMay) {
  CLI::App* secret = app_.add_subcommand("secret", "Make a secret");
  CLI::Option* file = secret->add_option("FILE", binding_, "Where")->required();
  on_run(*secret, context_, [this] { return result_; });
  EXPECT_EQ(run({"secret", ""}), kExitUsage);
  EXPECT_EQ(err_.str(), "lockstep secret: FILE is empty: give it a value.\nTry 'lockstep secret --help'.\n");
  context_.may_be_empty.push_back(file);
  EXPECT_EQ(run({"secret", ""}), kExitOk);
}

TEST_F(CommandLine, AnOptionGivenTwiceIsNamed) {
  EXPECT_EQ(run({"run", "--nproc", "4", "--nproc", "5"}), kExitUsage);
  EXPECT_EQ(err_.str(), "lockstep run: --nproc is given 2 times.\nTry 'lockstep run --help'.\n");
}

TEST_F(CommandLine, TheProgramAndAllBehindItIsTheUsers) {
  EXPECT_EQ(run({"run", "--nproc", "4", "./train", "--nproc", "--", "bench"}), kExitOk) << err_.str();
  EXPECT_THAT(context_.program, ElementsAre("./train", "--nproc", "--", "bench"));
  EXPECT_EQ(nproc_, 4);
  EXPECT_EQ(run({"run", "--nproc=4", "bench", "store"}), kExitOk) << err_.str();
  EXPECT_THAT(context_.program, ElementsAre("bench", "store"));
}

TEST_F(CommandLine, TwoDashesMayStandBeforeTheProgram) {
  EXPECT_EQ(run({"run", "--nproc", "4", "--", "./train", "--", "-x"}), kExitOk) << err_.str();
  EXPECT_THAT(context_.program, ElementsAre("./train", "--", "-x"));
  EXPECT_EQ(run({"run", "--nproc", "4", "--", "-x"}), kExitOk) << err_.str();
  EXPECT_THAT(context_.program, ElementsAre("-x"));
  EXPECT_THAT(completions({"run", "--", "--n"}), IsEmpty());
}

TEST_F(CommandLine, AMistypedOptionIsNamedBeforeTheOneItLeavesUnset) {
  app_.add_subcommand("secret", "Make a secret")->add_option("--file", binding_, "Where")->required();
  EXPECT_EQ(run({"secret", "--fiel", "x"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("there is no option \"--fiel\"; did you mean '--file'?"));
}

TEST_F(CommandLine, CompletesCommandsOptionsAndChoices) {
  EXPECT_THAT(completions({""}), ElementsAre("run", "bench"));
  EXPECT_THAT(completions({"r"}), ElementsAre("run"));
  EXPECT_THAT(completions({"bench", ""}), ElementsAre("store"));
  EXPECT_THAT(completions({"run", "--c"}), ElementsAre("--cpu-binding"));
  EXPECT_THAT(completions({"run", "--"}), ElementsAre("--help", "--nproc", "--cpu-binding", "--dry-run"));
  EXPECT_THAT(completions({"run", "--cpu-binding", ""}), ElementsAre("none", "cores", "numa"));
  EXPECT_THAT(completions({"run", "--cpu-binding", "n"}), ElementsAre("none", "numa"));
  EXPECT_THAT(completions({"run", "--cpu-binding", "=", "c"}), ElementsAre("cores"));
  EXPECT_THAT(completions({"run", "--cpu-binding", "="}), ElementsAre("none", "cores", "numa"));
  EXPECT_THAT(completions({"run", "--dry-run", "--n"}), ElementsAre("--nproc"));
}

TEST_F(CommandLine, LeavesValuesAndTheProgramToTheShell) {
  EXPECT_THAT(completions({"run", "--nproc", ""}), IsEmpty());
  EXPECT_THAT(completions({"run", "--nproc", "4", ""}), IsEmpty());
  EXPECT_THAT(completions({"run", "--nproc", "4", "./train", "--"}), IsEmpty());
  EXPECT_THAT(completions({"nonsense", "--q"}), IsEmpty());
  EXPECT_THAT(completions({}), IsEmpty());
}

TEST(NearestName, IsGivenOnlyWhenItIsNear) {
  EXPECT_EQ(nearest_name("docter", {"run", "doctor", "store"}), "doctor");
  EXPECT_EQ(nearest_name("stroe", {"run", "doctor", "store"}), "store");
  EXPECT_EQ(nearest_name("xyz", {"run", "doctor", "store"}), "");
  EXPECT_EQ(nearest_name("", {"run"}), "");
  EXPECT_EQ(nearest_name("run", {}), "");
}

TEST(Helpers, AreFoundBesideTheCommand) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "lockstep_helpers_test";
  std::filesystem::create_directories(root / "libexec" / "lockstep");
  std::ofstream(root / "libexec" / "lockstep" / "there").put('\n');
  const CommandContext context{.environment = Environment::parse({}),
                               .executable = root / "bin" / "lockstep"};
  EXPECT_EQ(context.libexec(), root / "libexec" / "lockstep");
  const Result<std::filesystem::path> there = context.helper("there");
  const Result<std::filesystem::path> missing = context.helper("missing");
  std::filesystem::remove_all(root);
  ASSERT_TRUE(there.ok());
  EXPECT_EQ(*there, root / "libexec" / "lockstep" / "there");
  EXPECT_EQ(missing.status().code(), Code::kUnsupported);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("LOCKSTEP_TORCH"));
}

}  // namespace
}  // namespace lockstep::tools

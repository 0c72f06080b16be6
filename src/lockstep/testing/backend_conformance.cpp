#include "lockstep/testing/backend_conformance.h"

#include <gtest/gtest.h>

#include <iostream>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/backend/operations.h"
#include "lockstep/base/text.h"
#include "lockstep/testing/backend_conformance_cases.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {
namespace {

constexpr Duration kPatience = std::chrono::minutes(1);

struct Setting {
  Groups& groups;
  SupportTable& table;
};

class CaseTest final : public ::testing::Test {
 public:
  CaseTest(Setting setting, const BackendCase& what) : setting_(setting), case_(what) {}
  void TestBody() override {
    case_.body(setting_.groups, setting_.table);
    if (!case_.promise.empty()) setting_.table.add(case_.promise, true);
    ASSERT_OK(barrier(setting_.groups.group()));
  }

 private:
  const Setting setting_;
  const BackendCase& case_;
};

void add_tests(const std::vector<BackendCase>& cases, Setting setting) {
  for (const BackendCase& one : cases) {
    ::testing::RegisterTest(one.suite.c_str(), one.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [setting, &one]() -> ::testing::Test* { return new CaseTest(setting, one); });
  }
}

// The word after `name`.
std::optional<std::string> option(std::string_view name, const std::vector<std::string>& arguments) {
  for (std::size_t i = 1; i + 1 < arguments.size(); ++i)
    if (arguments[i] == name) return arguments[i + 1];
  return std::nullopt;
}

}  // namespace

int run_backend_conformance(int argc, char** argv, const std::string& column, const JoinGroups& join,
                            const std::set<std::string>& lacks) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<std::string> arguments(argv, argv + argc);  // what GoogleTest leaves
  const auto compare_with = option("--table", arguments);
  const auto write_to = option("--write-table", arguments);
  auto groups = join();
  if (!groups.ok()) {
    std::cerr << groups.status().text() << '\n';
    return 1;
  }
  (*groups)->group().set_timeout(kPatience);
  SupportTable table(option("--column", arguments).value_or(column));
  std::vector<BackendCase> cases;
  for (const auto& part : {reduction_cases(), move_cases(), order_cases(), message_cases(), group_cases()})
    cases.insert(cases.end(), part.begin(), part.end());
  for (BackendCase& one : cases) {
    if (one.promise.empty() || !lacks.contains(one.promise)) continue;
    one.body = [promise = std::exchange(one.promise, {})](Groups&, SupportTable& made) {
      made.add(promise, false);
    };
  }
  cases.push_back({"SupportTable", "IsTrue", [&](Groups& all, SupportTable& made) {
                     if (all.rank().value != 0) return;
                     EXPECT_OK(write_to ? made.write(*write_to) : Status());
                     EXPECT_OK(compare_with ? made.compare(*compare_with) : Status());
                   }});
  add_tests(cases, {**groups, table});
  return RUN_ALL_TESTS();
}

}  // namespace lockstep::testing

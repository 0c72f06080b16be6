#include "lockstep/store/slurm_nodelist.h"

#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using ::testing::AllOf;
using testing::FailureIs;
using ::testing::HasSubstr;
using testing::IsOkAnd;
using testing::StatusIs;

TEST(SlurmNodelist, Expands) {
  const std::pair<const char*, std::vector<std::string>> kCases[] = {
      {"node1", {"node1"}},
      {"node1,node2", {"node1", "node2"}},
      {"node[1-3]", {"node1", "node2", "node3"}},
      {"node[01-03]", {"node01", "node02", "node03"}},
      {"node[8-11]", {"node8", "node9", "node10", "node11"}},
      {"node[098-101]", {"node098", "node099", "node100", "node101"}},
      {"node[9,03,10-11]", {"node9", "node03", "node10", "node11"}},
      {"a[1,3],b,c[5-6]", {"a1", "a3", "b", "c5", "c6"}},
      {"node[1-2]-ib", {"node1-ib", "node2-ib"}},
      {"r[0-1]n[1-2]", {"r0n1", "r0n2", "r1n1", "r1n2"}},
      {"r[0-1]n[1,4]x[7]", {"r0n1x7", "r0n4x7", "r1n1x7", "r1n4x7"}},
      {"[1-2]", {"1", "2"}},
      {"r[1-2][3-4]", {"r13", "r14", "r23", "r24"}},
      {"gpu_a.cluster-1.example.org", {"gpu_a.cluster-1.example.org"}},
      {"n[000000000]", {"n000000000"}},
      {"n[5-5]", {"n5"}},
  };
  for (const auto& [list, hosts] : kCases) EXPECT_THAT(expand_nodelist(list), IsOkAnd(hosts)) << list;
}

TEST(SlurmNodelist, SaysWhereAListGoesWrong) {
  struct Case {
    const char* list;
    const char* place;
    const char* what;
  };
  const Case kCases[] = {
      {"", "character 1", "a host name is missing"},
      {",a", "character 1", "a host name is missing"},
      {"a,", "character 3", "a host name is missing"},
      {"a,,b", "character 3", "a host name is missing"},
      {"a[", "character 3", "expected a number"},
      {"a[]", "character 3", "expected a number"},
      {"a[1", "character 4", "expected , or ]"},
      {"a[1-", "character 5", "expected a number"},
      {"a[1,]", "character 5", "expected a number"},
      {"a[1-2-3]", "character 6", "expected , or ]"},
      {"a[[1]]", "character 3", "expected a number"},
      {"a]", "character 2", "cannot have this character"},
      {"a b", "character 2", "cannot have this character"},
      {"a;rm", "character 2", "cannot have this character"},
      {"a[3-1]", "character 6", "the range 3-1 runs backwards"},
      {"a[1234567890]", "character 3", "more than 9 digits"},
      {"a[-1]", "character 3", "expected a number"},
      {"a[1][2][3][4][5][6][7][8][9]", "character 26", "more than 8 brackets"},
  };
  for (const Case& c : kCases) {
    EXPECT_THAT(expand_nodelist(c.list),
                StatusIs(Code::kInvalid, AllOf(HasSubstr(c.place), HasSubstr(c.what))))
        << c.list;
  }
}

TEST(SlurmNodelist, ExpansionIsBounded) {
  EXPECT_THAT(expand_nodelist("n[1-65536]"), IsOkAnd(::testing::SizeIs(65536)));
  EXPECT_THAT(expand_nodelist("n[0-65535],x"), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(expand_nodelist("n[1-65537]"), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(expand_nodelist("n[1-999999999]"), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(expand_nodelist("n[1-999]r[1-999]"), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(expand_nodelist(std::string(256, 'n')), StatusIs(Code::kInvalid, HasSubstr("longer than 255")));
  EXPECT_THAT(expand_nodelist(std::string(253, 'n') + "[100-101]"),
              StatusIs(Code::kInvalid, HasSubstr("longer than 255")));
}

TEST(SlurmTasksPerNode, Expands) {
  using Counts = std::vector<int>;
  const std::pair<const char*, Counts> kCases[] = {
      {"4", {4}}, {"2(x3)", {2, 2, 2}}, {"2(x2),1", {2, 2, 1}}, {"1,2,3(x1)", {1, 2, 3}}};
  for (const auto& [list, counts] : kCases) EXPECT_THAT(expand_tasks_per_node(list), IsOkAnd(counts)) << list;
}

TEST(SlurmTasksPerNode, RefusesWhatIsNoCount) {
  for (const char* list : {"", "x", "2(x)", "2(x0)", "2(x3", "2(3)", "0", "-1", "2,", "2(x3)4", "1(x65537)",
                           "1(x18446744073709551616)"}) {
    EXPECT_THAT(expand_tasks_per_node(list), StatusIs(Code::kInvalid, HasSubstr(base::quoted(list)))) << list;
  }
}

}  // namespace
}  // namespace lockstep::store

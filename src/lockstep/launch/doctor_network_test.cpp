#include "lockstep/launch/doctor_network.h"

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

base::Interface interface(const std::string& name, const std::string& address) {
  base::Interface out{.name = name, .addresses = {}, .up = true, .loopback = name == "lo"};
  if (!address.empty()) out.addresses.push_back(*base::SocketAddress::parse(address, 0));
  return out;
}
std::string fact(const Finding& finding, const char* name) {
  return std::get<std::string>(finding.facts.at(name));
}

TEST(DoctorNetwork, ListsWhatIsUpAndSaysWhatWouldBeChosen) {
  base::Interface down = interface("eth1", "10.0.1.1");
  down.up = false;
  const Finding finding =
      judge_interfaces({interface("lo", "127.0.0.1"), interface("eth0", "10.0.0.7"), down}, {});
  EXPECT_EQ(finding.health, Health::kOk);
  EXPECT_THAT(finding.found, HasSubstr("eth0 (10.0.0.7)"));
  EXPECT_THAT(finding.found, Not(HasSubstr("eth1")));
  EXPECT_EQ(std::get<std::vector<std::string>>(finding.facts.at("names")),
            (std::vector<std::string>{"lo", "eth0"}));
}

TEST(DoctorNetwork, ANamedInterfaceMustBeThereAndUp) {
  const std::vector<base::Interface> all = {interface("lo", "127.0.0.1"), interface("eth0", "10.0.0.7"),
                                            interface("eth1", "")};
  EXPECT_EQ(judge_interfaces(all, {"eth0"}).health, Health::kOk);
  const Finding missing = judge_interfaces(all, {"eth0", "ib0"});
  EXPECT_EQ(missing.health, Health::kUnusable);
  EXPECT_THAT(missing.advice, HasSubstr("ib0"));
  const Finding bare = judge_interfaces(all, {"eth1"});
  EXPECT_EQ(bare.health, Health::kUnusable);
  EXPECT_THAT(bare.advice, HasSubstr("no address"));
}

TEST(DoctorNetwork, WithoutALoopbackNothingWorks) {
  const Finding finding = judge_interfaces({interface("eth0", "10.0.0.7")}, {});
  EXPECT_EQ(finding.health, Health::kUnusable);
  EXPECT_THAT(finding.advice, HasSubstr("lo up"));
}

TEST(DoctorNetwork, TheWayToALocalMasterIsTheLoopback) {
  for (const char* master : {"127.0.0.1", "127.0.0.1:29500", "localhost"}) {
    const Finding finding = check_master(master, {}, Clock::steady().in(30s));
    EXPECT_EQ(finding.health, Health::kOk) << finding.found;
    EXPECT_THAT(fact(finding, "addresses"), HasSubstr("(lo)"));
  }
}

TEST(DoctorNetwork, AMasterThatCannotBeFoundIsUnusable) {
  const Finding unknown = check_master("no-such-host.invalid", {}, Clock::steady().in(30s));
  EXPECT_EQ(unknown.health, Health::kUnusable);
  EXPECT_THAT(unknown.found, HasSubstr("no-such-host.invalid"));
  EXPECT_EQ(check_master("host:port:9", {}, Clock::steady().in(30s)).health, Health::kUnusable);
}

TEST(DoctorNetwork, ANamedInterfaceBeatsTheRoute) {
  EXPECT_EQ(check_master("127.0.0.1", {"lo"}, Clock::steady().in(30s)).health, Health::kOk);
  const Finding finding = check_master("127.0.0.1", {"no_such_if"}, Clock::steady().in(30s));
  EXPECT_EQ(finding.health, Health::kUnusable);
  EXPECT_THAT(finding.found, HasSubstr("no_such_if"));
}

TEST(DoctorNetwork, ALookUpEndsAtItsDeadline) {
  const Finding finding = check_master("localhost", {}, Clock::steady().in(0s));
  EXPECT_EQ(finding.health, Health::kUnusable);
  EXPECT_THAT(finding.found, HasSubstr("did not end in time"));
}

}  // namespace
}  // namespace lockstep::launch

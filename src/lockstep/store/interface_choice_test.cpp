#include "lockstep/store/interface_choice.h"

#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using base::Interface;
using base::SocketAddress;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

SocketAddress address(std::string_view text) { return *SocketAddress::parse(text, 0); }

std::vector<Interface> host() {
  return {{"lo", {address("127.0.0.1"), address("::1")}, true, true},
          {"down0", {address("10.9.9.9")}, false, false},
          {"bare0", {address("fe80::5")}, true, false},
          {"eth0", {address("fe80::1"), address("10.0.0.1"), address("fd00::1")}, true, false},
          {"ib0", {address("fd00:1::1"), address("10.1.0.1")}, true, false}};
}

std::string chosen(const std::vector<Interface>& interfaces, const std::vector<std::string>& names,
                   const char* towards = nullptr) {
  std::optional<SocketAddress> towards_master;
  if (towards != nullptr) towards_master = address(towards).with_port(29500);
  const auto addresses = choose_addresses(interfaces, names, towards_master);
  if (!addresses.ok()) return std::string(addresses.status().message());
  std::string out;
  for (const SocketAddress& one : *addresses) out += (out.empty() ? "" : " ") + one.text();
  return out;
}

TEST(InterfaceChoice, TheRouteToTheMasterDecides) {
  EXPECT_EQ(chosen(host(), {}, "10.1.0.1"), "10.1.0.1:0");
  EXPECT_EQ(chosen(host(), {}, "fd00::1"), "[fd00::1]:0");
  EXPECT_EQ(chosen(host(), {}, "127.0.0.1"), "127.0.0.1:0");
}

TEST(InterfaceChoice, WithoutAMasterTheFirstThatOthersCanReach) {
  EXPECT_EQ(chosen(host(), {}), "10.0.0.1:0");
  EXPECT_EQ(chosen({host()[0]}, {}), "127.0.0.1:0");
  EXPECT_EQ(chosen({}, {}), "127.0.0.1:0");
}

TEST(InterfaceChoice, NamesBeatTheRouteAndKeepTheirOrder) {
  EXPECT_EQ(chosen(host(), {"ib0"}, "10.0.0.1"), "10.1.0.1:0");
  EXPECT_EQ(chosen(host(), {"ib0", "eth0"}, "10.0.0.1"), "10.1.0.1:0 10.0.0.1:0");
  EXPECT_EQ(chosen(host(), {"ib0", "eth0"}, "fd00::1"), "[fd00:1::1]:0 [fd00::1]:0");
  EXPECT_EQ(chosen(host(), {"eth0", "eth0"}), "10.0.0.1:0");
  EXPECT_EQ(chosen(host(), {"lo"}), "127.0.0.1:0");
}

TEST(InterfaceChoice, ANameThatIsNotThereListsThoseThatAre) {
  for (const auto& [name, what] :
       {std::pair{"eth1", "There is no network interface \"eth1\""},
        std::pair{"down0", "\"down0\" (LOCKSTEP_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) is down"},
        std::pair{"bare0", "has no address"}}) {
    EXPECT_THAT(
        choose_addresses(host(), {"eth0", name}, {}),
        StatusIs(Code::kInvalid, AllOf(HasSubstr(what), HasSubstr("lo, down0 (down), bare0, eth0, ib0"))));
  }
}

TEST(InterfaceChoice, ThisHostHasAnAddressTowardsItself) {
  ASSERT_OK_AND_ASSIGN(const auto own, own_addresses({}, address("127.0.0.1").with_port(1)));
  EXPECT_THAT(own, ::testing::ElementsAre(address("127.0.0.1")));
}

}  // namespace
}  // namespace lockstep::store

#include "lockstep/store/rendezvous_url.h"

#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::StatusIs;

TEST(RendezvousUrl, TakesSchemePlaceRankAndWorldSizeApart) {
  struct Case {
    const char* url;
    const char* scheme;
    const char* place;
    int rank;  // -1: not given
    int size;
  };
  const Case kCases[] = {
      {"env://", "env", "", -1, -1},
      {"ENV://", "env", "", -1, -1},
      {"env://?rank=3", "env", "", 3, -1},
      {"tcp://node7:29500", "tcp", "node7:29500", -1, -1},
      {"tcp://10.0.0.1:80?rank=0&world_size=2", "tcp", "10.0.0.1:80", 0, 2},
      {"tcp://10.0.0.1:80?world_size=2&rank=1", "tcp", "10.0.0.1:80", 1, 2},
      {"tcp://[::1]:29500?world_size=4", "tcp", "[::1]:29500", -1, 4},
      {"tcp://[fe80::1%eth0]:1?rank=1", "tcp", "[fe80::1%eth0]:1", 1, -1},
      {"file:///tmp/a b?rank=2&world_size=3", "file", "/tmp/a b", 2, 3},
      {"file:///tmp/x%20y", "file", "/tmp/x%20y", -1, -1},
      {"my+scheme.2://anything/at:all", "my+scheme.2", "anything/at:all", -1, -1},
  };
  for (const Case& c : kCases) {
    ASSERT_OK_AND_ASSIGN(const RendezvousUrl url, parse_rendezvous_url(c.url));
    EXPECT_EQ(url.text, c.url);
    EXPECT_EQ(url.scheme, c.scheme) << c.url;
    EXPECT_EQ(url.place, c.place) << c.url;
    EXPECT_EQ(url.rank ? url.rank->value : -1, c.rank) << c.url;
    EXPECT_EQ(url.world_size ? url.world_size->value : -1, c.size) << c.url;
    EXPECT_THAT(url.query, IsEmpty()) << c.url;
  }
}

TEST(RendezvousUrl, KeepsOtherKeysForTheScheme) {
  ASSERT_OK_AND_ASSIGN(const RendezvousUrl url, parse_rendezvous_url("etcd://h:1?rank=1&ttl=30&name=a=b&e="));
  EXPECT_THAT(url.query, ElementsAre(Pair("e", ""), Pair("name", "a=b"), Pair("ttl", "30")));
  EXPECT_EQ(url.rank, Rank{1});
}

TEST(RendezvousUrl, SaysWhatIsWrong) {
  const std::pair<std::string, const char*> kCases[] = {
      {"", "it has no ://"},
      {"node7:29500", "it has no ://"},
      {"://x", "its scheme is not a name"},
      {"1tcp://x", "its scheme is not a name"},
      {"t cp://x", "its scheme is not a name"},
      {"tcp://x?rank", "\"rank\" is not key=value"},
      {"tcp://x?", "\"\" is not key=value"},
      {"tcp://x?rank=1&", "\"\" is not key=value"},
      {"tcp://x?=1", "is not key=value"},
      {"tcp://x?rank=1&rank=2", "\"rank\" is given twice"},
      {"tcp://x?rank=one", "rank=\"one\" is not a whole number from 0"},
      {"tcp://x?rank=-1", "rank=\"-1\" is not a whole number from 0"},
      {"tcp://x?rank=", "rank=\"\" is not a whole number"},
      {"tcp://x?world_size=0", "world_size=\"0\" is not a whole number from 1"},
      {"tcp://x?world_size=99999999999", "is not a whole number from 1 to 2147483647"},
      {"tcp://" + std::string(5000, 'x'), "longer than 4096"},
      {std::string("file:///a\0b", 11), "a zero byte"},
  };
  for (const auto& [url, what] : kCases) {
    EXPECT_THAT(parse_rendezvous_url(url),
                StatusIs(Code::kInvalid, AllOf(HasSubstr("rendezvous URL"), HasSubstr(what))))
        << url;
  }
}

}  // namespace
}  // namespace lockstep::store

#include "lockstep/backend/native/check_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using lockstep::testing::StatusIs;
using ::testing::HasSubstr;

TEST(CheckOptions, FollowsTheTable) {
  struct Row {
    Bytes staging;
    int streams;
    int neighbours;
    const char* why;  // nothing if they will do
  };
  for (const Row& row :
       {Row{Bytes::mib(1), 1, 8, nullptr}, Row{Bytes::mib(1), 65'535, 8, nullptr},
        Row{Bytes::kib(16), 1, 1, nullptr}, Row{Bytes::kib(16), 1, 16, nullptr},
        Row{Bytes::kib(17), 1, 17, nullptr}, Row{Bytes::mib(1), 1, 1024, nullptr},
        Row{Bytes::mib(1), 0, 2, "streams is 0, but must be 1 to 65535"},
        Row{Bytes::mib(1), -1, 2, "streams is -1,"}, Row{Bytes::mib(1), 65'536, 2, "streams is 65536,"},
        Row{Bytes{0}, 1, 1, "must be 16.0 KiB at least for 1 rank on one host"},
        Row{Bytes{16'383}, 1, 2, "must be 16.0 KiB at least for 2 ranks on one host"},
        Row{Bytes::kib(16), 1, 17, "must be 17.0 KiB at least for 17 ranks"}}) {
    const Status status = check_options({.staging = row.staging, .streams = row.streams}, row.neighbours);
    if (row.why == nullptr) {
      EXPECT_OK(status);
    } else {
      EXPECT_THAT(status, StatusIs(Code::kInvalid, HasSubstr(row.why)));
    }
  }
}

}  // namespace
}  // namespace lockstep::backend

#include "lockstep/launch/spawn_assignment.h"

#include <gtest/gtest.h>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

const Assignment kTrain{.function = "train", .arguments = {"--epochs", "", "3"}};

TEST(SpawnAssignment, ComesBackAsItWas) {
  for (const Assignment& assignment : {kTrain, Assignment{}}) {
    const auto bytes = assignment_to_bytes(assignment);
    ASSERT_TRUE(bytes.ok());
    const auto back = assignment_from_bytes(*bytes);
    ASSERT_TRUE(back.ok()) << back.status().text();
    EXPECT_EQ(*back, assignment);
  }
}

TEST(SpawnAssignment, EveryOtherLengthIsRefused) {
  Buffer bytes = *assignment_to_bytes(kTrain);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(assignment_from_bytes(ByteView(bytes).first(size)).status().code(), Code::kInvalid) << size;
  bytes.push_back(std::byte{0});
  EXPECT_EQ(assignment_from_bytes(bytes).status().code(), Code::kInvalid);
}

TEST(SpawnAssignment, ACountOfMoreThanThereIsAndOtherBytesAreRefused) {
  Buffer bytes = *assignment_to_bytes({.function = "f"});
  bytes[bytes.size() - 1] = std::byte{0xff};
  EXPECT_EQ(assignment_from_bytes(bytes).status().code(), Code::kInvalid);
  bytes = *assignment_to_bytes(kTrain);
  bytes[0] ^= std::byte{1};
  EXPECT_EQ(assignment_from_bytes(bytes).status().code(), Code::kInvalid);
}

TEST(SpawnAssignment, TooMuchIsRefusedByTheSender) {
  EXPECT_EQ(assignment_to_bytes({.arguments = {std::string(kMaxAssignment, 'x')}}).status().code(),
            Code::kInvalid);
}

}  // namespace
}  // namespace lockstep::launch

#include "lockstep/base/descriptor_passing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace lockstep::base {
namespace {

struct Ends {
  UniqueFd one, other;
};
Ends pair_of_sockets() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Ends make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

TEST(DescriptorPassing, BytesAndDescriptorsComeTogether) {
  const Ends sockets = pair_of_sockets();
  Ends pipe = make_pipe();
  const std::array<int, 2> passed = {pipe.one.get(), pipe.other.get()};
  ASSERT_EQ(send_descriptors(sockets.one.get(), bytes_of("hello"), passed), 5);
  pipe = {};
  std::array<std::byte, 8> bytes{};
  std::array<UniqueFd, 2> received;
  ASSERT_EQ(receive_descriptors(sockets.other.get(), bytes, received), 5);
  EXPECT_EQ(text_of(ByteView(bytes).first(5)), "hello");
  ASSERT_TRUE(received[0] && received[1]);
  EXPECT_EQ(::fcntl(received[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ASSERT_EQ(::write(received[1].get(), "x", 1), 1);
  char got = 0;
  EXPECT_EQ(::read(received[0].get(), &got, 1), 1);
  EXPECT_EQ(got, 'x');
}

TEST(DescriptorPassing, BytesAloneBringNoDescriptor) {
  Ends sockets = pair_of_sockets();
  ASSERT_EQ(send_descriptors(sockets.one.get(), bytes_of("a"), {}), 1);
  std::array<std::byte, 8> bytes{};
  std::array<UniqueFd, 1> received;
  EXPECT_EQ(receive_descriptors(sockets.other.get(), bytes, received), 1);
  EXPECT_FALSE(received[0]);
  sockets.one.reset();
  EXPECT_EQ(receive_descriptors(sockets.other.get(), bytes, received), 0) << "the end";
  EXPECT_EQ(send_descriptors(sockets.other.get(), bytes_of("a"), {}), -1) << "and no SIGPIPE";
}

TEST(DescriptorPassing, ADescriptorThatNobodyAskedForIsNotLeftOpen) {
  for (const std::size_t room : {std::size_t{0}, std::size_t{1}}) {
    const Ends sockets = pair_of_sockets();
    Ends pipe = make_pipe();
    const UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const std::array<int, 2> passed = {first.get(), pipe.other.get()};
    ASSERT_EQ(send_descriptors(sockets.one.get(), bytes_of("a"), std::span(passed).last(1 + room)), 1);
    pipe.other.reset();
    std::array<std::byte, 1> bytes{};
    std::array<UniqueFd, 1> received;
    ASSERT_EQ(receive_descriptors(sockets.other.get(), bytes, std::span(received).first(room)), 1);
    EXPECT_EQ(static_cast<bool>(received[0]), room == 1);
    ASSERT_EQ(::fcntl(pipe.one.get(), F_SETFL, O_NONBLOCK), 0);
    char got = 0;
    EXPECT_EQ(::read(pipe.one.get(), &got, 1), 0) << "the last writing end is closed";
  }
}

}  // namespace
}  // namespace lockstep::base

#include "lockstep/base/descriptor_passing.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstring>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::base {
namespace {

// What sendmsg(2) and recvmsg(2) are told; it points into itself.
struct Message {
  Message(std::byte* bytes, std::size_t size, std::size_t descriptors) : part{bytes, size} {
    LOCKSTEP_CHECK(descriptors <= kMaxPassedDescriptors, "so many descriptors do not fit one message");
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (descriptors == 0) return;
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  iovec part;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxPassedDescriptors * sizeof(int))> control{};
  msghdr header{};
};

}  // namespace

ssize_t send_descriptors(int socket, ByteView bytes, std::span<const int> descriptors, int flags) {
  Message message(const_cast<std::byte*>(bytes.data()), bytes.size(), descriptors.size());
  if (cmsghdr* const head = CMSG_FIRSTHDR(&message.header); head != nullptr) {
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message.header, flags | MSG_NOSIGNAL);
}

ssize_t receive_descriptors(int socket, ByteSpan bytes, std::span<UniqueFd> descriptors, int flags) {
  Message message(bytes.data(), bytes.size(), descriptors.size());
  const ssize_t count = ::recvmsg(socket, &message.header, flags | MSG_CMSG_CLOEXEC);
  if (count <= 0) return count;
  const cmsghdr* const head = CMSG_FIRSTHDR(&message.header);
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return count;
  // There may be one more than was asked for, because the room for them is rounded up: it is closed.
  const std::size_t passed = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (std::size_t i = 0; i < passed; ++i) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
    UniqueFd received(descriptor);
    if (i < descriptors.size()) descriptors[i] = std::move(received);
  }
  return count;
}

}  // namespace lockstep::base

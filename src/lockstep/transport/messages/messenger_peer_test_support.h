// A peer of a messenger that the test plays frame by frame.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/messages/frame.h"
#include "lockstep/transport/messages/messages_test_support.h"

namespace lockstep::testing {

using transport::Connection;
using transport::messages::Frame;
using transport::messages::FrameKind;
using transport::messages::kFrameSize;
using transport::messages::Refusal;

// The far end of a connection to a messenger.
class FarEnd {
 public:
  FarEnd(std::unique_ptr<Connection> connection, const Deadline& deadline)
      : connection_(std::move(connection)), deadline_(deadline) {}

  void say(const Frame& frame, ByteView payload = {}) {
    Buffer bytes;
    transport::messages::append_frame(bytes, frame);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    EXPECT_OK(await(send(*connection_, bytes, deadline_)));
  }
  Buffer hear_bytes(std::size_t size) {
    Buffer bytes(size);
    EXPECT_OK(await(recv(*connection_, bytes, deadline_)));
    return bytes;
  }
  Frame hear() { return transport::messages::parse_frame(hear_bytes(kFrameSize)).value(); }
  Connection& connection() { return *connection_; }

 private:
  std::unique_ptr<Connection> connection_;
  Deadline deadline_;
};

// Until a transport has done all that it can do by itself, while nobody else touches its connections.
inline void settle(Transport& transport) {
  // What a turn of its loop leads to is posted for the next one; no chain of these is nearly as long.
  for (int turn = 0; turn < 200; ++turn) transport.loop().run_and_drain([] {});
}

// The messenger is the lower rank, 0; the test plays rank 1.
class HigherPeer : public ::testing::Test {
 protected:
  // Connects to the messenger, which answers.
  FarEnd connect() {
    FarEnd end(await(testing::connect(ranks_.transport(1), {.endpoint = ranks_.endpoint(0), .rank = Rank(0)},
                                      ranks_.soon()))
                   .value(),
               ranks_.soon());
    return end;
  }
  FarEnd accept() {
    return {await(testing::accept(ranks_.listener(1), ranks_.soon())).value(), ranks_.soon()};
  }

  FakeClock clock_;
  Ranks ranks_{2, {.raw = 1, .clock = &clock_}};
  Messenger& messenger_ = ranks_[0];
};

}  // namespace lockstep::testing

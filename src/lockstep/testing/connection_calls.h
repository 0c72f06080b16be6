// Operations of a transport as futures, for tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <memory>

#include "lockstep/base/bytes.h"
#include "lockstep/testing/pattern.h"
#include "lockstep/transport/transport.h"

namespace lockstep::testing {

// What a callback said. A callback that runs twice ends the process.
using StatusFuture = std::future<Status>;
using ConnectionResult = Result<std::unique_ptr<transport::Connection>>;
using ConnectionFuture = std::future<ConnectionResult>;

// Wait at most six minutes of real time: a callback that does not come ends the process with a message.
Status await(StatusFuture future);
ConnectionResult await(ConnectionFuture future);

StatusFuture send(transport::Connection& connection, ByteView bytes, const Deadline& deadline);
StatusFuture recv(transport::Connection& connection, ByteSpan bytes, const Deadline& deadline);
ConnectionFuture connect(transport::Transport& from, const transport::Target& target,
                         const Deadline& deadline);
ConnectionFuture accept(transport::Listener& listener, const Deadline& deadline);

// For what comes at once, on a machine that may do other things.
inline Deadline soon() { return Clock::steady().in(std::chrono::minutes(5)); }

transport::Identity identity_of(int rank, WorldSize world = WorldSize(2));

}  // namespace lockstep::testing

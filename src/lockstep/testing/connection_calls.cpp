#include "lockstep/testing/connection_calls.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::testing {

using transport::Connection;
using transport::Identity;
using transport::Listener;
using transport::Target;
using transport::Transport;

namespace {

// On the real clock, whatever clock the transport has.
constexpr auto kPatience = std::chrono::minutes(6);

template <typename T>
T await_value(std::future<T> future) {
  LOCKSTEP_CHECK(future.wait_for(kPatience) == std::future_status::ready,
                 "a callback has not run for six minutes");
  return future.get();
}

// A callback, and the future of what it is called with.
template <typename T>
std::pair<std::function<void(T)>, std::future<T>> promise() {
  auto made = std::make_shared<std::promise<T>>();
  auto future = made->get_future();
  return {[made](T value) { made->set_value(std::move(value)); }, std::move(future)};
}

}  // namespace

Status await(StatusFuture future) { return await_value(std::move(future)); }
ConnectionResult await(ConnectionFuture future) { return await_value(std::move(future)); }

StatusFuture send(Connection& connection, ByteView bytes, const Deadline& deadline) {
  auto [done, future] = promise<Status>();
  connection.send(bytes, deadline, done);
  return std::move(future);
}

StatusFuture recv(Connection& connection, ByteSpan bytes, const Deadline& deadline) {
  auto [done, future] = promise<Status>();
  connection.recv(bytes, deadline, done);
  return std::move(future);
}

ConnectionFuture connect(Transport& from, const Target& target, const Deadline& deadline) {
  auto [done, future] = promise<ConnectionResult>();
  from.connect(target, deadline, done);
  return std::move(future);
}

ConnectionFuture accept(Listener& listener, const Deadline& deadline) {
  auto [done, future] = promise<ConnectionResult>();
  listener.accept(deadline, done);
  return std::move(future);
}

Identity identity_of(int rank, WorldSize world) {
  return {
      .job_id = "conformance", .epoch = 3, .secret = Secret::insecure(), .rank = Rank(rank), .world = world};
}

}  // namespace lockstep::testing

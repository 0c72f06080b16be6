// Worlds of messengers in one process, over any transport, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/testing/connection_calls.h"
#include "lockstep/transport/faulty/faulty_transport.h"
#include "lockstep/transport/inproc/inproc_transport.h"
#include "lockstep/transport/messages/messenger.h"
#include "lockstep/transport/shm/pipes.h"
#include "lockstep/transport/tcp/tcp_transport.h"

namespace lockstep::testing {

using transport::Identity;
using transport::Transport;
using transport::faulty::Faults;
using transport::inproc::InprocNetwork;
using transport::messages::Messenger;

// Too large to be sent before it is asked for.
inline constexpr std::size_t kLarge = transport::messages::kEagerLimit + 1;

// What the transports of a world are.
struct Medium {
  std::string name = {};
  enum class Kind : std::uint8_t { kInproc, kTcp, kPipes, kResident } kind = Kind::kInproc;
  std::optional<Faults> faults = {};

  static Medium inproc() { return {.name = "Inproc"}; }
  static Medium tcp() { return {.name = "Tcp", .kind = Kind::kTcp}; }
  static Medium pipes() { return {.name = "Pipes", .kind = Kind::kPipes}; }
  // As pipes(), with what is sent in shared memory.
  static Medium resident() { return {.name = "Resident", .kind = Kind::kResident}; }
  static Medium faulty(std::string name, const Faults& faults) {
    return {.name = std::move(name), .faults = faults};
  }

  base::Endpoint bind() const { return {.host = kind == Kind::kTcp ? "127.0.0.1" : "inproc", .port = 0}; }
  std::unique_ptr<Transport> make(InprocNetwork& network, const Identity& identity,
                                  const Clock& clock) const {
    std::unique_ptr<Transport> made;
    if (kind == Kind::kTcp) {
      made = transport::tcp::TcpTransport::create({.identity = identity}, clock).value();
    } else {
      made = transport::inproc::InprocTransport::create(network, identity, clock).value();
    }
    if (!faults) return made;
    return transport::faulty::FaultyTransport::create(std::move(made), *faults).value();
  }
};
inline void PrintTo(const Medium& medium, std::ostream* out) { *out << medium.name; }
inline std::string medium_name(const ::testing::TestParamInfo<Medium>& info) { return info.param.name; }

struct WorldSettings {
  Medium medium = Medium::inproc();
  std::optional<int> only_faulty = {};  // the one rank that has the medium's faults; none: all have
  std::optional<int> raw = {};          // a rank with a listener but no messenger: the test plays it
  const Clock* clock = &Clock::steady();
  Bytes eager_budget = Bytes::mib(1);
  transport::messages::EchoGraces graces = {};
  std::optional<Duration> watch_after = {};
  transport::messages::Received failed = {};
};

using AllPipes = std::vector<std::shared_ptr<transport::shm::Pipes>>;

// Of ranks that are threads of this process.
inline AllPipes make_pipes(int size) {
  std::vector<Rank> members;
  members.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) members.emplace_back(rank);
  AllPipes all;
  auto domains = transport::shm::Domain::of_threads(members, Bytes::mib(256));
  for (auto& domain : *domains) all.push_back(transport::shm::Pipes::make(std::move(domain)).value());
  for (const auto& pipes : all) {
    for (int rank = 0; rank < size; ++rank) {
      const Status met = pipes->meet(Rank(rank), all[static_cast<std::size_t>(rank)]->offset());
      LOCKSTEP_CHECK(met.ok(), met.text());
    }
  }
  return all;
}

// The ranks of a world, each with a transport and a messenger of its own.
class Ranks {
 public:
  explicit Ranks(int size, const WorldSettings& settings = {}) : clock_(*settings.clock) {
    std::vector<base::Endpoint> endpoints;
    for (int rank = 0; rank < size; ++rank) {
      Medium medium = settings.medium;
      if (settings.only_faulty && *settings.only_faulty != rank) medium.faults = {};
      transports_.push_back(medium.make(network_, identity_of(rank, WorldSize(size)), clock_));
      listeners_.push_back(transports_.back()->listen(medium.bind()).value());
      endpoints.push_back(listeners_.back()->endpoint());
    }
    if (settings.medium.kind == Medium::Kind::kResident) domains_.resize(static_cast<std::size_t>(size));
    const bool on_one_host = settings.medium.kind == Medium::Kind::kPipes || !domains_.empty();
    const auto pipes = on_one_host ? make_pipes(size) : AllPipes(size);
    for (std::size_t i = 0; i < domains_.size(); ++i) domains_[i] = pipes[i];
    for (int rank = 0; rank < size; ++rank) {
      if (settings.raw == rank) {
        messengers_.push_back(nullptr);
        continue;
      }
      messengers_.push_back(std::make_unique<Messenger>(
          *transports_[static_cast<std::size_t>(rank)], std::move(listeners_[static_cast<std::size_t>(rank)]),
          transport::messages::MessengerOptions{.rank = Rank(rank),
                                                .endpoints = endpoints,
                                                .graces = settings.graces,
                                                .failed = settings.failed,
                                                .watch_after = settings.watch_after,
                                                .eager_budget = settings.eager_budget,
                                                .pipes = pipes[static_cast<std::size_t>(rank)]}));
      if (!pipes[static_cast<std::size_t>(rank)]) continue;
      attendants_.push_back(transport::messages::Attendant::start(messengers_.back()->progress()).value());
    }
    endpoints_ = std::move(endpoints);
  }

  Messenger& operator[](int rank) { return *messengers_[static_cast<std::size_t>(rank)]; }
  Transport& transport(int rank) { return *transports_[static_cast<std::size_t>(rank)]; }
  transport::Listener& listener(int rank) { return *listeners_[static_cast<std::size_t>(rank)]; }
  const base::Endpoint& endpoint(int rank) { return endpoints_[static_cast<std::size_t>(rank)]; }
  // Bytes to be sent by a rank: those that were given, or a copy in its shared memory.
  ByteView place(int rank, ByteView bytes) {
    if (domains_.empty()) return bytes;
    transport::shm::Heap& heap = domains_[static_cast<std::size_t>(rank)]->domain().heap();
    const auto range = heap.allocate(Bytes{bytes.size() + 1}).value();
    std::ranges::copy(bytes, range.data);
    return {range.data, bytes.size()};
  }
  // Of Medium::resident(): nothing more can be taken from a rank's shared memory.
  void fill_memory(int rank) {
    transport::shm::Heap& heap = domains_[static_cast<std::size_t>(rank)]->domain().heap();
    for (Bytes size = Bytes::mib(128); size >= Bytes::kib(1); size.value /= 2) {
      while (heap.allocate(size).ok()) continue;
    }
  }
  void leave(int rank) { messengers_[static_cast<std::size_t>(rank)].reset(); }
  int size() const { return static_cast<int>(messengers_.size()); }
  Deadline soon() const { return clock_.in(std::chrono::minutes(5)); }
  Deadline in(Duration duration) const { return clock_.in(duration); }

 private:
  const Clock& clock_;
  InprocNetwork network_;
  std::vector<base::Endpoint> endpoints_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<transport::Listener>> listeners_;
  std::vector<std::unique_ptr<Messenger>> messengers_;
  std::vector<std::unique_ptr<transport::messages::Attendant>> attendants_;
  AllPipes domains_;  // where what is sent lies; empty if it does not
};

struct Outcome {
  Status status;
  std::optional<Rank> source = {};
};
using OutcomeFuture = std::future<Outcome>;

inline Outcome await(OutcomeFuture future) {
  LOCKSTEP_CHECK(future.wait_for(std::chrono::minutes(6)) == std::future_status::ready,
                 "a callback has not run for six minutes");
  return future.get();
}

// What a message is matched by, beside its sender.
struct Label {
  std::uint64_t group = 1;
  std::uint64_t tag = 0;
};

inline StatusFuture send(Messenger& messenger, int to, ByteView bytes, const Deadline& deadline,
                         const Label& label = {}) {
  auto promise = std::make_shared<std::promise<Status>>();
  auto future = promise->get_future();
  messenger.send(label.group, Rank(to), label.tag, bytes, deadline,
                 [promise](const Status& status) { promise->set_value(status); });
  return future;
}

inline OutcomeFuture recv(Messenger& messenger, std::optional<int> from, ByteSpan bytes,
                          const Deadline& deadline, const Label& label = {},
                          transport::messages::Senders others = {}) {
  auto promise = std::make_shared<std::promise<Outcome>>();
  auto future = promise->get_future();
  messenger.recv(
      label.group, from ? std::optional(Rank(*from)) : std::nullopt, label.tag, bytes, deadline,
      [promise](const Status& status, std::optional<Rank> source) {
        promise->set_value({.status = status, .source = source});
      },
      std::move(others));
  return future;
}

inline bool is_done(const StatusFuture& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}
inline bool is_done(const OutcomeFuture& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace lockstep::testing

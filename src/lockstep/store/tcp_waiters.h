// The requests of a store's clients that cannot be answered yet, by what they wait for and until when.
//
// A waiter hangs on one key or on one queue: on the first of its keys that is missing, and when that one
// comes, the caller looks for the next. So a key that is set costs a look-up, and wakes only those who wait
// for it. Thread safety: none; lives on the server's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_wire.h"

namespace lockstep::store {

// Where the answers to one client go. Implemented by the server's session, and by tests. An answer must not
// call back into whoever gives it.
class Answers {
 public:
  virtual ~Answers() = default;
  virtual void done(std::uint64_t id) = 0;
  virtual void value(std::uint64_t id, ByteView value) = 0;
  virtual void number(std::uint64_t id, std::int64_t number) = 0;
  virtual void flag(std::uint64_t id, bool flag) = 0;
  virtual void list(std::uint64_t id, std::span<const ByteView> items) = 0;
  virtual void error(std::uint64_t id, const Status& status) = 0;
};

struct Waiter {
  Answers* client = nullptr;
  std::uint64_t id = 0;
  Op op = Op::kGet;
  std::vector<std::string> keys;  // queue_pop: the queue; barrier: the key of the round
  std::int64_t size = 0;          // barrier: how many make a round
  base::TimePoint since;
  base::TimePoint until;
};

class Waiters {
 public:
  // Until `keys[missing]` is set.
  void add_for_key(Waiter waiter, std::size_t missing);
  // Until something is pushed. First come, first served.
  void add_for_queue(Waiter waiter);

  // Those that hang on `key`, in the order in which they came.
  std::vector<Waiter> take_for_key(std::string_view key);
  std::optional<Waiter> take_first_for_queue(std::string_view queue);
  std::vector<Waiter> take_expired(base::TimePoint now);
  std::optional<base::TimePoint> next_deadline() const;

  // The client has given up one request, or has gone.
  void cancel(const Answers& client, std::uint64_t id);
  void forget(const Answers& client);

  bool anyone_for_keys() const { return !by_key_.empty(); }
  std::size_t size() const { return entries_.size(); }
  // About how many bytes the waiters hold.
  std::size_t memory() const { return memory_; }

 private:
  struct Entry;
  using Entries = std::list<Entry>;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using Index = std::unordered_map<std::string, std::vector<Entries::iterator>, Hash, std::equal_to<>>;
  using Deadlines = std::multimap<base::TimePoint, Entries::iterator>;
  // By client, then by request.
  using Requests = std::multimap<std::pair<const Answers*, std::uint64_t>, Entries::iterator>;
  struct Entry {
    Waiter waiter;
    std::size_t memory = 0;
    Index* index = nullptr;  // by_key_ or by_queue_
    std::string_view name;   // what it hangs on there, inside `waiter`
    Deadlines::iterator deadline;
    Requests::iterator request;
  };

  void add(Waiter waiter, Index& index, std::size_t name);
  // Out of every index but that by name.
  Waiter release(Entries::iterator entry);
  void unhang(Entries::iterator entry);

  Entries entries_;
  Index by_key_;
  Index by_queue_;
  Deadlines by_deadline_;
  Requests by_request_;
  std::size_t memory_ = 0;
};

}  // namespace lockstep::store

// A Window is memory of each rank of a group that the other ranks write and read without its help.
//
//   auto window = maker->open_window(members, Bytes::mib(1));      // on every member
//   window->put(Rank{1}, 0, bytes);                                // now they are there
//   window->signal(Rank{1});                                       // rank 1: wait_signal(Rank{0}), then
//   reads
//
// Between ranks of one host put() and get() are one copy, and signal() one store. Between hosts they are
// messages, which a thread of the window answers; then a put returns when it was acknowledged.
//
// Order: what was put before a signal is there for whoever has waited for that signal. Nothing else orders
// two ranks that use the same bytes. Signals are counted: each wait takes one.
// Thread safety: any thread; but the signals of one peer are waited for by one thread at a time.
// Errors: kInvalid for a rank or range that is none. kTimeout with kMissingRanks for a signal that did not
// come: the window lives on. What ends its group (a rank that dies) ends it, and every wait, with an error
// that names the rank.
// Lifetime: opening waits for all members; destruction waits for nobody. The memory of a rank stays until
// its own users and its peers have let go of it.
// Implemented by native/.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/groups.h"
#include "lockstep/backend/world.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

class Window {
 public:
  virtual ~Window() = default;

  // Its own group, of the same members: ends with it.
  virtual Backend& group() = 0;
  // This rank's own part; outlives the window. Zero-filled at first.
  virtual SharedMemory memory() const = 0;
  virtual Bytes size_of(Rank rank) const = 0;

  // Ranks are those of the group; one may be this rank itself. `offset` is in bytes.
  virtual Status put(Rank to, std::uint64_t offset, ByteView bytes, const OpOptions& options = {}) = 0;
  virtual Status get(Rank from, std::uint64_t offset, ByteSpan bytes, const OpOptions& options = {}) = 0;
  virtual Status signal(Rank to, const OpOptions& options = {}) = 0;
  // Until one more signal of `from` has come.
  virtual Status wait_signal(Rank from, const OpOptions& options = {}) = 0;
  // The part of a rank of this host, where it lies; outlives the window. kUnsupported for other hosts.
  virtual Result<SharedMemory> map(Rank rank) const = 0;
};

// A World that has windows is a WindowMaker too.
class WindowMaker {
 public:
  virtual ~WindowMaker() = default;
  // Every member calls it, as new_group(), each with the size of its own part. If one of them has no room,
  // all of them hear it, and no window is made.
  virtual Result<std::unique_ptr<Window>> open_window(const std::vector<Rank>& members, Bytes size,
                                                      const GroupOptions& options = {}) = 0;
};

}  // namespace lockstep::backend

// A Window is a resident tensor on each rank of a group that the other ranks write and read without its help.
//
//   lockstep::Window window({1024}, at::kFloat);          // on every rank of the group
//   window.put(mine, {.dst = 1, .offset = 512});          // now they are there
//   window.signal({.dst = 1});                            // rank 1: wait_signal({.src = 0}), then reads
//   at::Tensor theirs = window.map({.src = 1});           // a rank of this host: its tensor itself
//
// Between ranks of one host put() and get() are one copy, and signal() one store. Between hosts they are
// messages that a thread of the window answers.
//
// Order: what was put before a signal is there for whoever has waited for that signal; nothing else orders
// two ranks that use the same elements. Signals are counted: each wait takes one.
// Peers are global ranks (`dst`, `src`) or ranks in the group (`group_dst`, `group_src`); one may be this
// rank itself. Offsets are in elements of the tensor taken as flat. Tensors need not be contiguous.
//
// Errors: InvalidArgument before anything is written. MissingRanks for a signal that did not come in time:
// the window lives on. PeerDied and the like, naming the rank, when a rank of the group is lost: the window
// is dead. Desync for a signal of a rank that has destroyed its window.
// Lifetime: making it waits for all ranks of the group, which make their groups and windows in one order.
// Destruction waits for nobody. It ends with its world, and then says so. tensor(), and what map() gave, can
// be used as long as they are kept.
// On a rank that is no member of the group every call logs a warning and does nothing.
// Thread safety: any thread; but the signals of one peer are waited for by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::tensor {

class WindowState;

struct WindowOptions {
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};  // of a call that waits; else the group's
};
// `offset` is where the elements are in the peer's tensor.
struct PutOptions {
  std::optional<int> dst = {};
  std::optional<int> group_dst = {};
  std::int64_t offset = 0;
  std::optional<Duration> timeout = {};
};
struct GetOptions {
  std::optional<int> src = {};
  std::optional<int> group_src = {};
  std::int64_t offset = 0;
  std::optional<Duration> timeout = {};
};
struct SignalOptions {
  std::optional<int> dst = {};
  std::optional<int> group_dst = {};
  std::optional<Duration> timeout = {};
};
struct WaitSignalOptions {
  std::optional<int> src = {};
  std::optional<int> group_src = {};
  std::optional<Duration> timeout = {};
};
struct MapOptions {
  std::optional<int> src = {};
  std::optional<int> group_src = {};
};

class Window {
 public:
  // Sizes may differ between ranks; the type is the same on all. OutOfResources, on all ranks, if one of them
  // has no room.
  Window(at::IntArrayRef sizes, at::ScalarType dtype, const WindowOptions& options = {});
  ~Window();
  Window(Window&&) noexcept;
  Window& operator=(Window&&) noexcept;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // This rank's own; zeros at first.
  const at::Tensor& tensor() const { return tensor_; }

  void put(const at::Tensor& tensor, const PutOptions& options) const;
  void get(const at::Tensor& tensor, const GetOptions& options) const;
  void signal(const SignalOptions& options) const;
  // Until one more signal of that rank has come.
  void wait_signal(const WaitSignalOptions& options) const;
  // The peer's tensor itself, flat; what either writes the other sees. A peer on another host is a
  // DistBackendError whose code is kUnsupported: use get() and put().
  at::Tensor map(const MapOptions& options) const;

 private:
  ProcessGroup group_;
  at::Tensor tensor_;
  std::shared_ptr<WindowState> state_;  // shared with the world's list of them, which ends it
};

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::GetOptions;
using tensor::MapOptions;
using tensor::PutOptions;
using tensor::SignalOptions;
using tensor::WaitSignalOptions;
using tensor::Window;
using tensor::WindowOptions;
}  // namespace lockstep

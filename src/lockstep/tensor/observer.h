// Observers see every operation on a group: before it is given to the backend, when its call returns, and
// when it is complete.
//
//   const auto watching = lockstep::observe([](const lockstep::OperationEvent& event) { ... });
//
// They see collectives, messages and barriers, on this rank, of the group that they are registered for; a
// call that is refused as wrong is not seen. Those of a synchronous operation come in the order pre,
// complete, post; the completion of an asynchronous one comes from the thread that completes it, at any time
// after pre.
//
// Without observers an operation reads one number more. Torch's profiler sees operations without any of this:
// as ranges "lockstep::all_reduce", with the shapes of their tensors.
//
// Thread safety: any thread. An observer may be called by several threads at once, and must not call an
// operation of the group from a completion. What it throws is logged and dropped.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::tensor {

class GroupWatch;

enum class OperationPhase : std::uint8_t { kPre, kPost, kComplete };

struct OperationEvent {
  OperationPhase phase = OperationPhase::kPre;
  const char* op = "";  // "all_reduce": the call of the program
  std::string group = {};
  int rank = -1;  // global, of this process
  // Of a collective: its number in the group, if one thread issues them. Of a message: 0 until it is posted,
  // then its own number.
  std::uint64_t sequence = 0;
  std::optional<int> peer = {};                       // of a message: in the group; -1 for anyone
  std::vector<std::vector<std::int64_t>> sizes = {};  // of all tensors of the call
  std::optional<at::ScalarType> dtype = {};           // nothing for a barrier
  Bytes bytes = {};                                   // of all tensors of the call
  bool async_op = false;
  Duration duration = {};  // since kPre; at kComplete of an asynchronous operation, that of its run
  Status status = {};      // of kComplete and kPost: how it has ended, as far as that is known
};

using Observer = std::function<void(const OperationEvent&)>;

// The observer is called as long as this lives; a call that runs when it goes still ends.
class [[nodiscard]] ObserverHandle {
 public:
  ObserverHandle() = default;
  ObserverHandle(std::weak_ptr<GroupWatch> watch, std::uint64_t id) : watch_(std::move(watch)), id_(id) {}
  ~ObserverHandle() { stop(); }
  ObserverHandle(ObserverHandle&& other) noexcept;
  ObserverHandle& operator=(ObserverHandle&& other) noexcept;
  ObserverHandle(const ObserverHandle&) = delete;
  ObserverHandle& operator=(const ObserverHandle&) = delete;

  void stop();

 private:
  std::weak_ptr<GroupWatch> watch_;
  std::uint64_t id_ = 0;
};

// On a rank that is no member of the group it sees nothing.
ObserverHandle observe(Observer observer, const ProcessGroup& group = {});

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::observe;
using tensor::Observer;
using tensor::ObserverHandle;
using tensor::OperationEvent;
using tensor::OperationPhase;
}  // namespace lockstep

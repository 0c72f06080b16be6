// One rank of one side of `lockstep bench all_reduce` and the like, told over a socket what to measure.
//
// The same code drives ours and MPI's; a Side says how ranks meet and how an operation is called:
//
//   struct Side {
//     explicit Side(const std::vector<std::string>& arguments);    // joins; exits with a line if it cannot
//     Rank rank() const;
//     WorldSize size() const;
//     static std::string version();
//     static std::string lacks(CollectiveOp op, DType dtype);      // why it cannot do that; empty if it can
//     Memory allocate(std::size_t bytes, bool resident);
//     struct Prepared;                                             // one operation on its buffers
//     Prepared prepare(const Operation& operation, ByteSpan inputs, ByteSpan outputs);
//     void run(Prepared& prepared);
//     void barrier();
//   };
//
// It answers (command_link.h)
//   run OP DTYPE BYTES MEMORY ITERATIONS BATCHES
//       -> ran VERIFIED CPU_NS START END START END ...
//       -> lacks WHY
// A batch is ITERATIONS operations, each on buffers of its own: all are filled, the ranks meet in a barrier,
// START, the operations, END, they meet again, and every element is verified. START and END are nanoseconds
// of CLOCK_MONOTONIC, which all ranks share; CPU_NS is what the process has used in between, in all batches.
// One more batch, which is not reported, comes first. gloo_collective_peer.py speaks the same.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "tools/bench/collective_case.h"
#include "tools/bench/command_link.h"
#include "tools/bench/pattern.h"

namespace lockstep::bench {

// What all ranks of a side are told to do.
struct Operation {
  CollectiveOp op = CollectiveOp::kBarrier;
  DType dtype = DType::kFloat32;
  Bytes bytes = {};
  bool resident = false;
  int iterations = 1;  // in a batch

  bool operator==(const Operation&) const = default;
};

// Bytes and whoever frees them.
struct Memory {
  ByteSpan bytes = {};
  std::shared_ptr<const void> owner = {};
};

inline Memory plain_memory(std::size_t bytes) {
  constexpr std::size_t kAlignment = 4096;  // as allocators do it for large tensors
  const std::size_t rounded_up = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const raw = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded_up));
  if (raw == nullptr) give_up("no memory");
  return {.bytes = {raw, bytes}, .owner = std::shared_ptr<const void>(raw, std::free)};
}

template <typename Side>
class CollectivePeer {
 public:
  explicit CollectivePeer(const std::vector<std::string>& arguments) : side_(arguments) {}

  std::string hello() const { return "rank " + std::to_string(side_.rank().value) + " " + Side::version(); }

  std::string answer(const std::string& command) {
    std::istringstream in(command);
    std::string verb;
    std::string op;
    std::string dtype;
    std::string memory;
    Operation operation;
    int batches = 0;
    in >> verb >> op >> dtype >> operation.bytes.value >> memory >> operation.iterations >> batches;
    const auto parsed_op = parse_collective_op(op);
    const auto parsed_type = parse_bench_type(dtype);
    if (!in || verb != "run" || !parsed_op || !parsed_type) give_up("unknown command " + command);
    operation.op = *parsed_op;
    operation.dtype = *parsed_type;
    operation.resident = memory == "resident";
    if (const std::string why = Side::lacks(operation.op, operation.dtype); !why.empty()) {
      return "lacks " + why;
    }
    prepare(operation);
    return run(batches);
  }

 private:
  struct Slot {
    ByteSpan inputs;
    ByteSpan outputs;
    typename Side::Prepared prepared;
  };

  // Rounds of one case come one after the other: its buffers are made once.
  void prepare(const Operation& operation) {
    if (operation == operation_ && pattern_) return;
    slots_.clear();
    memory_ = {};
    operation_ = operation;
    shape_ = shape_of(operation.op, operation.bytes, operation.dtype, side_.rank(), side_.size());
    pattern_.emplace(operation.dtype, side_.size(), shape_.block);
    block_bytes_ = shape_.block * collective::size_of(operation.dtype);
    const std::size_t input_bytes = padded(block_bytes_ * static_cast<std::size_t>(shape_.inputs));
    const std::size_t output_bytes = padded(block_bytes_ * static_cast<std::size_t>(shape_.outputs));
    const std::size_t slot_bytes = input_bytes + output_bytes;
    const auto iterations = static_cast<std::size_t>(operation.iterations);
    if (slot_bytes > 0) memory_ = side_.allocate(slot_bytes * iterations, operation.resident);
    for (std::size_t i = 0; i < iterations; ++i) {
      const ByteSpan bytes = slot_bytes > 0 ? memory_.bytes.subspan(i * slot_bytes, slot_bytes) : ByteSpan();
      const ByteSpan inputs = bytes.first(block_bytes_ * static_cast<std::size_t>(shape_.inputs));
      const ByteSpan outputs =
          bytes.subspan(input_bytes, block_bytes_ * static_cast<std::size_t>(shape_.outputs));
      slots_.push_back({inputs, outputs, side_.prepare(operation, inputs, outputs)});
    }
  }

  static std::size_t padded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

  std::string run(int batches) {
    bool verified = true;
    std::int64_t cpu = 0;
    std::string times;
    for (int batch = -1; batch < batches; ++batch) {
      fill();
      side_.barrier();
      const std::int64_t cpu_start = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
      const std::int64_t start = nanoseconds(CLOCK_MONOTONIC);
      for (Slot& slot : slots_) side_.run(slot.prepared);
      const std::int64_t end = nanoseconds(CLOCK_MONOTONIC);
      const std::int64_t cpu_end = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
      side_.barrier();  // whoever is out first would take the core of one that is not
      verified = verify() && verified;
      iteration_ += slots_.size();
      if (batch < 0) continue;
      cpu += cpu_end - cpu_start;
      times += " " + std::to_string(start) + " " + std::to_string(end);
    }
    return "ran " + std::to_string(verified ? 1 : 0) + " " + std::to_string(cpu) + times;
  }

  void fill() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const bool in_place = shape_.inputs == 0;
      const ByteSpan bytes = in_place ? slots_[i].outputs : slots_[i].inputs;
      if (in_place && operation_.op == CollectiveOp::kScatter) continue;
      for (int block = 0; block < (in_place ? shape_.outputs : shape_.inputs); ++block) {
        const ByteView given =
            pattern_->given({.rank = side_.rank(), .block = block, .iteration = iteration_ + i});
        std::memcpy(block_of(bytes, block).data(), given.data(), given.size());
      }
    }
  }

  bool verify() {
    bool right = true;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      for (int block = 0; block < shape_.outputs; ++block) {
        const auto expected =
            pattern_->expected(operation_.op, {.rank = side_.rank(), .block = block}, iteration_ + i);
        if (!expected) continue;
        const ByteSpan got = block_of(slots_[i].outputs, block);
        if (std::memcmp(got.data(), expected->data(), got.size()) == 0) continue;
        if (right) complain(got, *expected, block);
        right = false;
      }
    }
    return right;
  }

  void complain(ByteView got, ByteView expected, int block) {
    std::size_t at = 0;
    while (got[at] == expected[at]) ++at;
    std::cerr << "lockstep bench: rank " << side_.rank().value << " of " << Side::version() << " has a wrong "
              << name_of(operation_.op) << ": element " << at / collective::size_of(operation_.dtype)
              << " of block " << block << std::endl;
  }

  ByteSpan block_of(ByteSpan bytes, int block) const {
    return bytes.subspan(static_cast<std::size_t>(block) * block_bytes_, block_bytes_);
  }

  Side side_;
  Operation operation_;
  Shape shape_;
  std::size_t block_bytes_ = 0;
  std::optional<Pattern> pattern_;
  Memory memory_;
  std::vector<Slot> slots_;
  std::uint64_t iteration_ = 0;  // of all commands; the same on all ranks
};

template <typename Side>
int run_collective_peer(int argc, char** argv) {
  return answer_commands<CollectivePeer<Side>>(argc, argv);
}

}  // namespace lockstep::bench

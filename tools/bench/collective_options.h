// What `lockstep bench all_reduce` and the like are told, read and checked. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/topology.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/dtype.h"
#include "tools/bench/collective_case.h"

namespace lockstep::bench {

// As typed.
struct CollectiveArguments {
  int nproc = 2;
  std::string bytes = "4KiB,1MiB,25MiB";
  std::string dtype = "float32";
  std::string peer_dtype = {};
  std::string memory = "resident";
  std::string against = {};
  std::string api = "core";
  int rounds = 7;
  int hosts = 1;
  std::string rate = {};
  std::string cpu_binding = "none";
  std::string python = {};
  std::string json = {};
  std::string plot = {};
};

struct CollectiveOptions {
  CollectiveOp op = CollectiveOp::kAllReduce;
  int nproc = 2;  // on each host
  int hosts = 1;
  std::optional<std::uint64_t> rate = {};  // between two hosts, bits per second; else what they can
  std::vector<Bytes> bytes = {};           // cut to what the operation can have; {0} for a barrier
  DType dtype = DType::kFloat32;
  DType peer_dtype = DType::kFloat32;     // of gloo and MPI, which get as many elements
  std::vector<std::string> memory = {};   // "resident", "foreign"; {"none"} for a barrier
  std::vector<std::string> against = {};  // "tensor", "gloo", "mpi"
  int rounds = 7;
  base::Binding binding = base::Binding::kNone;  // of the ranks of every side
  std::string python = {};                       // whose torch gloo is; empty: the one that is found
  std::string json = {};                         // where to write; empty: nowhere
  std::string plot = {};

  WorldSize world() const { return WorldSize{nproc * hosts}; }
};

// kInvalid with one sentence that names the option.
Result<CollectiveOptions> read_arguments(CollectiveOp op, const CollectiveArguments& arguments);

}  // namespace lockstep::bench

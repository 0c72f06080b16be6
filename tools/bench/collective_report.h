// What `lockstep bench all_reduce` and the like have measured, and how it is shown. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/base/types.h"
#include "lockstep/collective/dtype.h"
#include "tools/bench/collective_case.h"
#include "tools/bench/comparison.h"
#include "tools/bench/plot.h"

namespace lockstep::bench {

struct CollectiveRow {
  CollectiveOp op = CollectiveOp::kBarrier;
  int nproc = 1;  // on each host
  int hosts = 1;
  Bytes bytes = {};
  DType dtype = DType::kFloat32;
  DType peer_dtype = DType::kFloat32;
  std::string memory = {};
  std::vector<Measured> ours = {};
  std::vector<PeerRounds> peers = {};

  double median_us() const;
  double algbw_gbs() const;  // 10^9 bytes per second
  double busbw_gbs() const;
  double cpu_s() const;
  bool verified() const;
};
// What calls on tensors add to the core's, in a sentence; empty if they were not measured.
std::string added_by_tensors(const CollectiveRow& row);

nlohmann::json json_of(const CollectiveRow& row);

// The table, a line at a time. A row with more ranks than cores has a star.
struct TableStyle {
  std::vector<std::string> peers = {};
  int cores = 1;
};
std::string table_head(const TableStyle& style);
std::string table_line(const TableStyle& style, const CollectiveRow& row);

// Time over bytes; one line for each kind of memory and for each peer.
Plot plot_of(const std::vector<CollectiveRow>& rows);

}  // namespace lockstep::bench

// What `lockstep bench all_reduce` and the like have measured, and how it is shown. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/dtype.h"
#include "tools/bench/collective_case.h"
#include "tools/bench/plot.h"
#include "tools/bench/spread.h"

namespace lockstep::bench {

// One side, one round.
struct Measured {
  double micros = 0;  // of one operation: from the last rank in to the last rank out
  double cpu_s = 0;   // of one operation, all ranks together
  bool verified = false;
};

// What the ranks of a side answered to "run", for so many operations in a batch. The figure is the median
// over the batches; of a ping-pong half of it counts. A barrier is verified here: nobody may leave before all
// have come. kUnsupported with the reason if the side lacks the operation; kInternal for an answer that makes
// no sense.
Result<Measured> read_answers(CollectiveOp op, const std::vector<std::string>& answers, int iterations);

struct PeerRounds {
  std::string name = {};
  std::vector<Measured> rounds = {};  // none if the peer lacks the operation
};

struct CollectiveRow {
  CollectiveOp op = CollectiveOp::kBarrier;
  int nproc = 1;  // on each host
  int hosts = 1;
  Bytes bytes = {};
  DType dtype = DType::kFloat32;
  std::string memory = {};
  std::vector<Measured> ours = {};
  std::vector<PeerRounds> peers = {};

  double median_us() const;
  double algbw_gbs() const;  // 10^9 bytes per second
  double busbw_gbs() const;
  double cpu_s() const;
  bool verified() const;
};
double median_us(const std::vector<Measured>& rounds);
// The peer's time / ours, of one round each: the rounds' median, lowest and highest.
Spread ratio_of(const CollectiveRow& row, const PeerRounds& peer);
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

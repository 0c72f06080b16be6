// What the sides of a comparison have measured, and how that is shown beside each other. Pure.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "tools/bench/spread.h"

namespace lockstep::bench {

// One side, one round.
struct Measured {
  double micros = 0;  // of one operation: from the last rank in to the last rank out
  double cpu_s = 0;   // of one operation, all ranks together
  bool verified = false;
};

// What a batch of a side is.
struct BatchKind {
  int operations = 1;          // that its time is divided by
  bool ends_together = false;  // nobody may leave before all have come, as from a barrier
};

// What the ranks of a side answered to "run": collective_peer.h. The figure is the median over the batches.
// kUnsupported with the reason if the side lacks the operation; kInternal for an answer that makes no sense.
Result<Measured> read_answers(const std::vector<std::string>& answers, const BatchKind& kind);

struct PeerRounds {
  std::string name = {};
  std::vector<Measured> rounds = {};  // none if the peer lacks the operation
};

// Of rounds that are not empty.
double median_us(const std::vector<Measured>& rounds);
double median_cpu_s(const std::vector<Measured>& rounds);
bool all_verified(const std::vector<Measured>& rounds);
// The peer's time / ours, of one round each: the rounds' median, lowest and highest.
Spread ratio_of(const std::vector<Measured>& ours, const PeerRounds& peer);

// By name; without those that lack the operation.
nlohmann::json json_of(const std::vector<Measured>& ours, const std::vector<PeerRounds>& peers);

// A table, a cell at a time: right-aligned, in a column of that width with a space before it.
std::string cell(const std::string& text, std::size_t width);
// Three digits that mean something.
std::string figure(double value);
// The last columns of a table: the peers.
std::string peers_head(const std::vector<std::string>& peers);
std::string peers_cells(const std::vector<Measured>& ours, const std::vector<PeerRounds>& peers);

}  // namespace lockstep::bench

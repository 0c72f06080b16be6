// What `lockstep bench ddp` has measured, and how it is shown. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "tools/bench/comparison.h"
#include "tools/bench/plot.h"

namespace lockstep::bench {

// A model trained from the beginning for a few steps, by all ranks of a side.
struct Training {
  Bytes gradients = {};                          // of one rank
  std::vector<std::string> digests = {};         // by rank: of the weights in the end
  std::vector<std::vector<double>> losses = {};  // by rank and step
};
// What the ranks answered to "train". kInternal for an answer that makes no sense.
Result<Training> read_trained(const std::vector<std::string>& answers);
// Whether all ranks have the same weights, bit by bit.
bool same_weights(const Training& training);
// Whether all ranks have the same losses up to a thousandth, in so many steps.
bool same_losses(const Training& a, const Training& b, std::size_t steps);

// How long gradients travelled in a step, and how much of that backward did not hide: means over ranks and
// steps.
struct Communication {
  double overlap = 0;  // the share that was hidden, from 0 to 1
  double exposed_us = 0;
};
// What the ranks answered to "communication".
Result<Communication> read_communication(const std::vector<std::string>& answers);

struct TrainingRow {
  std::string model = {};
  std::string option = {};
  int nproc = 1;
  int threads = 1;
  int batch = 1;
  Bytes gradients = {};
  Communication communication = {};
  bool trained_right = false;  // replicas equal, and losses as those of the peers
  std::vector<Measured> ours = {};
  std::vector<PeerRounds> peers = {};

  bool verified() const { return trained_right && all_verified(ours); }
};

nlohmann::json json_of(const TrainingRow& row);

// The table, a line at a time. A row with more ranks than cores has a star.
std::string training_head(const std::vector<std::string>& peers);
std::string training_line(const TrainingRow& row, int cores);

// Time of a step over bytes of gradients; a line for ours, one for each peer.
Plot plot_of(std::vector<TrainingRow> rows);

}  // namespace lockstep::bench

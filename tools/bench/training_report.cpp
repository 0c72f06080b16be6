#include "tools/bench/training_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/base/text.h"
#include "tools/bench/output.h"

namespace lockstep::bench {
namespace {

constexpr double kTolerance = 1e-3;

Status no_sense(const std::string& answer) {
  return Status::internal(cat("a rank answered ", base::quoted(answer)));
}

bool near(double a, double b) { return std::abs(a - b) <= kTolerance * std::max(std::abs(a), std::abs(b)); }

}  // namespace

Result<Training> read_trained(const std::vector<std::string>& answers) {
  Training training;
  for (const std::string& answer : answers) {
    if (answer.starts_with("lacks ")) return Status::unsupported(answer.substr(6));
    std::istringstream in(answer);
    std::string verb;
    std::string digest;
    in >> verb >> training.gradients.value >> digest;
    std::vector<double> losses;
    for (double loss = 0; in >> loss;) losses.push_back(loss);
    if (verb != "trained" || losses.empty() || !in.eof()) return no_sense(answer);
    training.digests.push_back(digest);
    training.losses.push_back(std::move(losses));
  }
  return training;
}

bool same_weights(const Training& training) {
  return std::all_of(training.digests.begin(), training.digests.end(),
                     [&](const std::string& digest) { return digest == training.digests.front(); });
}

bool same_losses(const Training& a, const Training& b, std::size_t steps) {
  if (a.losses.size() != b.losses.size()) return false;
  for (std::size_t rank = 0; rank < a.losses.size(); ++rank) {
    const auto& ours = a.losses[rank];
    const auto& theirs = b.losses[rank];
    if (std::min(ours.size(), theirs.size()) < steps) return false;
    for (std::size_t step = 0; step < steps; ++step) {
      if (!near(ours[step], theirs[step])) return false;
    }
  }
  return true;
}

Result<Communication> read_communication(const std::vector<std::string>& answers) {
  Communication mean;
  for (const std::string& answer : answers) {
    std::istringstream in(answer);
    std::string verb;
    Communication one;
    in >> verb >> one.overlap >> one.exposed_us;
    if (!in || verb != "communicated") return no_sense(answer);
    mean.overlap += one.overlap / static_cast<double>(answers.size());
    mean.exposed_us += one.exposed_us / static_cast<double>(answers.size());
  }
  return mean;
}

nlohmann::json json_of(const TrainingRow& row) {
  return {{"op", "ddp"},
          {"model", row.model},
          {"option", row.option},
          {"nproc", row.nproc},
          {"hosts", 1},
          {"threads", row.threads},
          {"batch", row.batch},
          {"bytes", row.gradients.value},
          {"dtype", "float32"},
          {"median_us", median_us(row.ours)},
          {"cpu_s", median_cpu_s(row.ours)},
          {"overlap", row.communication.overlap},
          {"exposed_comm_us", row.communication.exposed_us},
          {"verified", row.verified()},
          {"peers", json_of(row.ours, row.peers)}};
}

std::string training_head(const std::vector<std::string>& peers) {
  return cat(cell("model", 13), cell("option", 31), cell("batch", 7), cell("ranks", 7), cell("bytes", 12),
             cell("us", 11), cell("cpu us", 11), cell("overlap", 9), cell("exposed us", 12), cell("ok", 4),
             peers_head(peers), "\n");
}

std::string training_line(const TrainingRow& row, int cores) {
  return cat(cell(row.model, 13), cell(row.option, 31), cell(cat(row.batch), 7),
             cell(cat(row.nproc, row.nproc > cores ? "*" : ""), 7), cell(cat(row.gradients.value), 12),
             cell(figure(median_us(row.ours)), 11), cell(figure(median_cpu_s(row.ours) * 1e6), 11),
             cell(rounded(row.communication.overlap, 2), 9), cell(figure(row.communication.exposed_us), 12),
             cell(row.verified() ? "yes" : "NO", 4), peers_cells(row.ours, row.peers), "\n");
}

Plot plot_of(std::vector<TrainingRow> rows) {
  Plot plot;
  if (rows.empty()) return plot;
  std::stable_sort(rows.begin(), rows.end(), [](const TrainingRow& a, const TrainingRow& b) {
    return a.gradients.value < b.gradients.value;
  });
  plot.title =
      cat("a step of data parallel training over bytes of gradients, ", rows.front().nproc, " ranks");
  for (const TrainingRow& row : rows) {
    const std::string suffix = row.option == "default" ? "" : cat(", ", row.option);
    const auto bytes = static_cast<double>(row.gradients.value);
    add_point(plot, cat("lockstep", suffix), {.x = bytes, .y = median_us(row.ours)});
    for (const PeerRounds& peer : row.peers)
      add_point(plot, cat(peer.name, suffix), {.x = bytes, .y = median_us(peer.rounds)});
  }
  return plot;
}

}  // namespace lockstep::bench

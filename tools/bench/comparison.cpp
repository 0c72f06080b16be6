#include "tools/bench/comparison.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/base/text.h"
#include "tools/bench/output.h"

namespace lockstep::bench {
namespace {

// One batch over all ranks.
struct Batch {
  std::int64_t last_in = std::numeric_limits<std::int64_t>::min();
  std::int64_t first_out = std::numeric_limits<std::int64_t>::max();
  std::int64_t last_out = std::numeric_limits<std::int64_t>::min();
};

template <typename Value>
double median_of(const std::vector<Measured>& rounds, Value value) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Measured& round : rounds) values.push_back(value(round));
  return range_of(std::move(values)).median;
}

// Of the column with a peer's times: its head is its name and " us".
std::size_t time_width(const std::string& peer) { return std::max<std::size_t>(12, peer.size() + 4); }

}  // namespace

Result<Measured> read_answers(const std::vector<std::string>& answers, const BatchKind& kind) {
  Measured measured{.verified = true};
  std::vector<Batch> batches;
  for (const std::string& answer : answers) {
    if (answer.starts_with("lacks ")) return Status::unsupported(answer.substr(6));
    std::istringstream in(answer);
    std::string verb;
    int verified = 0;
    double cpu_ns = 0;
    in >> verb >> verified >> cpu_ns;
    const std::size_t others = batches.size();  // as many as the ranks before it had
    std::size_t count = 0;
    for (std::int64_t start = 0, end = 0; in >> start >> end; ++count) {
      if (batches.size() <= count) batches.emplace_back();
      Batch& batch = batches[count];
      batch.last_in = std::max(batch.last_in, start);
      batch.first_out = std::min(batch.first_out, end);
      batch.last_out = std::max(batch.last_out, end);
    }
    if (verb != "ran" || count == 0 || (others != 0 && count != others)) {
      return Status::internal(cat("a rank answered ", base::quoted(answer)));
    }
    measured.verified = measured.verified && verified == 1;
    measured.cpu_s += cpu_ns / 1e9 / static_cast<double>(count) / kind.operations;
  }
  std::vector<double> micros;
  for (const Batch& batch : batches) {
    if (kind.ends_together && batch.first_out < batch.last_in) measured.verified = false;
    micros.push_back(static_cast<double>(batch.last_out - batch.last_in) / 1e3 / kind.operations);
  }
  measured.micros = range_of(std::move(micros)).median;
  return measured;
}

double median_us(const std::vector<Measured>& rounds) {
  return median_of(rounds, [](const Measured& m) { return m.micros; });
}
double median_cpu_s(const std::vector<Measured>& rounds) {
  return median_of(rounds, [](const Measured& m) { return m.cpu_s; });
}
bool all_verified(const std::vector<Measured>& rounds) {
  return std::all_of(rounds.begin(), rounds.end(), [](const Measured& m) { return m.verified; });
}

Spread ratio_of(const std::vector<Measured>& ours, const PeerRounds& peer) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < peer.rounds.size(); ++i)
    ratios.push_back(peer.rounds[i].micros / ours[i].micros);
  return range_of(std::move(ratios));
}

nlohmann::json json_of(const std::vector<Measured>& ours, const std::vector<PeerRounds>& peers) {
  nlohmann::json all = nlohmann::json::object();
  for (const PeerRounds& peer : peers) {
    if (peer.rounds.empty()) continue;
    const Spread ratio = ratio_of(ours, peer);
    all[peer.name] = {{"median_us", median_us(peer.rounds)},
                      {"ratio", ratio.median},
                      {"ratio_low", ratio.low},
                      {"ratio_high", ratio.high}};
  }
  return all;
}

std::string cell(const std::string& text, std::size_t width) {
  return std::string(text.size() < width ? width - text.size() : 1, ' ') + text;
}

std::string figure(double value) {
  return rounded(value, value < 1 ? 3 : value < 10 ? 2 : value < 1000 ? 1 : 0);
}

std::string peers_head(const std::vector<std::string>& peers) {
  std::string line;
  for (const std::string& peer : peers)
    line += cat(cell(cat(peer, " us"), time_width(peer)), cell("ratio", 9), cell("low-high", 16));
  return line;
}

std::string peers_cells(const std::vector<Measured>& ours, const std::vector<PeerRounds>& peers) {
  std::string line;
  for (const PeerRounds& peer : peers) {
    if (peer.rounds.empty()) {
      line += cat(cell("-", time_width(peer.name)), cell("-", 9), cell("-", 16));
      continue;
    }
    const Spread ratio = ratio_of(ours, peer);
    line += cat(cell(figure(median_us(peer.rounds)), time_width(peer.name)), cell(figure(ratio.median), 9),
                cell(cat(figure(ratio.low), "-", figure(ratio.high)), 16));
  }
  return line;
}

}  // namespace lockstep::bench

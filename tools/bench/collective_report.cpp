#include "tools/bench/collective_report.h"

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

// Right-aligned, in a column of that width with a space before it.
std::string cell(const std::string& text, std::size_t width) {
  return std::string(text.size() < width ? width - text.size() : 1, ' ') + text;
}

// Three digits that mean something.
std::string figure(double value) {
  return rounded(value, value < 1 ? 3 : value < 10 ? 2 : value < 1000 ? 1 : 0);
}

template <typename Value>
Spread over_rounds(const std::vector<Measured>& rounds, Value value) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Measured& round : rounds) values.push_back(value(round));
  return range_of(std::move(values));
}

}  // namespace

Result<Measured> read_answers(CollectiveOp op, const std::vector<std::string>& answers, int iterations) {
  Measured measured{.verified = true};
  const int steps = iterations * steps_of(op);
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
    measured.cpu_s += cpu_ns / 1e9 / static_cast<double>(count) / steps;
  }
  std::vector<double> micros;
  for (const Batch& batch : batches) {
    if (op == CollectiveOp::kBarrier && batch.first_out < batch.last_in) measured.verified = false;
    micros.push_back(static_cast<double>(batch.last_out - batch.last_in) / 1e3 / steps);
  }
  measured.micros = range_of(std::move(micros)).median;
  return measured;
}

double median_us(const std::vector<Measured>& rounds) {
  return over_rounds(rounds, [](const Measured& m) { return m.micros; }).median;
}

double CollectiveRow::median_us() const { return bench::median_us(ours); }
double CollectiveRow::algbw_gbs() const { return static_cast<double>(bytes.value) / median_us() / 1e3; }
double CollectiveRow::busbw_gbs() const { return algbw_gbs() * bus_factor(op, WorldSize{nproc * hosts}); }
double CollectiveRow::cpu_s() const {
  return over_rounds(ours, [](const Measured& m) { return m.cpu_s; }).median;
}
bool CollectiveRow::verified() const {
  return std::all_of(ours.begin(), ours.end(), [](const Measured& m) { return m.verified; });
}

Spread ratio_of(const CollectiveRow& row, const PeerRounds& peer) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < peer.rounds.size(); ++i) {
    ratios.push_back(peer.rounds[i].micros / row.ours[i].micros);
  }
  return range_of(std::move(ratios));
}

std::string added_by_tensors(const CollectiveRow& row) {
  const auto tensor = std::find_if(row.peers.begin(), row.peers.end(),
                                   [](const auto& peer) { return peer.name == "tensor"; });
  if (tensor == row.peers.end() || tensor->rounds.empty()) return "";
  std::vector<double> added;
  for (std::size_t i = 0; i < tensor->rounds.size(); ++i)
    added.push_back(tensor->rounds[i].micros - row.ours[i].micros);
  const Spread spread = range_of(std::move(added));
  return cat("calls on tensors add ", figure(spread.median), " us (", figure(spread.low), " to ",
             figure(spread.high), ") to ", row.bytes.value, " bytes, ", row.memory);
}

nlohmann::json json_of(const CollectiveRow& row) {
  nlohmann::json peers = nlohmann::json::object();
  for (const PeerRounds& peer : row.peers) {
    if (peer.rounds.empty()) continue;
    const Spread ratio = ratio_of(row, peer);
    peers[peer.name] = {{"median_us", median_us(peer.rounds)},
                        {"ratio", ratio.median},
                        {"ratio_low", ratio.low},
                        {"ratio_high", ratio.high}};
  }
  return {{"op", name_of(row.op)},
          {"nproc", row.nproc},
          {"hosts", row.hosts},
          {"bytes", row.bytes.value},
          {"dtype", row.op == CollectiveOp::kBarrier ? "none" : collective::name_of(row.dtype)},
          {"memory", row.memory},
          {"median_us", row.median_us()},
          {"algbw_gbs", row.algbw_gbs()},
          {"busbw_gbs", row.busbw_gbs()},
          {"cpu_s", row.cpu_s()},
          {"verified", row.verified()},
          {"peers", peers}};
}

std::string table_head(const TableStyle& style) {
  std::string line = cat(cell("bytes", 12), cell("ranks", 7), cell("memory", 10), cell("us", 11),
                         cell("algbw GB/s", 12), cell("busbw GB/s", 12), cell("cpu us", 11), cell("ok", 4));
  for (const std::string& peer : style.peers) {
    line += cat(cell(cat(peer, " us"), 12), cell("ratio", 9), cell("low-high", 16));
  }
  return line + "\n";
}

std::string table_line(const TableStyle& style, const CollectiveRow& row) {
  const int ranks = row.nproc * row.hosts;
  std::string line = cat(cell(cat(row.bytes.value), 12), cell(cat(ranks, ranks > style.cores ? "*" : ""), 7),
                         cell(row.memory, 10), cell(figure(row.median_us()), 11),
                         cell(figure(row.algbw_gbs()), 12), cell(figure(row.busbw_gbs()), 12),
                         cell(figure(row.cpu_s() * 1e6), 11), cell(row.verified() ? "yes" : "NO", 4));
  for (const PeerRounds& peer : row.peers) {
    if (peer.rounds.empty()) {
      line += cat(cell("-", 12), cell("-", 9), cell("-", 16));
      continue;
    }
    const Spread ratio = ratio_of(row, peer);
    line += cat(cell(figure(median_us(peer.rounds)), 12), cell(figure(ratio.median), 9),
                cell(cat(figure(ratio.low), "-", figure(ratio.high)), 16));
  }
  return line + "\n";
}

Plot plot_of(const std::vector<CollectiveRow>& rows) {
  Plot plot;
  if (rows.empty()) return plot;
  const CollectiveRow& first = rows.front();
  plot.title = cat(name_of(first.op), ", ", collective::name_of(first.dtype), ", ", first.nproc * first.hosts,
                   " ranks on ", first.hosts, first.hosts == 1 ? " host" : " hosts");
  const auto add = [&plot](const std::string& name, double bytes, double micros) {
    auto found = std::find_if(plot.lines.begin(), plot.lines.end(),
                              [&name](const PlotLine& line) { return line.name == name; });
    if (found == plot.lines.end()) found = plot.lines.insert(plot.lines.end(), {.name = name});
    // A peer was measured once for each kind of our memory: the first counts.
    if (found->points.empty() || found->points.back().x != bytes) {
      found->points.push_back({.x = bytes, .y = micros});
    }
  };
  for (const CollectiveRow& row : rows) {
    add(cat("lockstep, ", row.memory), static_cast<double>(row.bytes.value), row.median_us());
  }
  for (const CollectiveRow& row : rows) {
    for (const PeerRounds& peer : row.peers) {
      if (!peer.rounds.empty()) {
        add(peer.name, static_cast<double>(row.bytes.value), median_us(peer.rounds));
      }
    }
  }
  return plot;
}

}  // namespace lockstep::bench

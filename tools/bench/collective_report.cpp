#include "tools/bench/collective_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/text.h"

namespace lockstep::bench {

double CollectiveRow::median_us() const { return bench::median_us(ours); }
double CollectiveRow::algbw_gbs() const { return static_cast<double>(bytes.value) / median_us() / 1e3; }
double CollectiveRow::busbw_gbs() const { return algbw_gbs() * bus_factor(op, WorldSize{nproc * hosts}); }
double CollectiveRow::cpu_s() const { return median_cpu_s(ours); }
bool CollectiveRow::verified() const { return all_verified(ours); }

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
  return {{"op", name_of(row.op)},
          {"nproc", row.nproc},
          {"hosts", row.hosts},
          {"bytes", row.bytes.value},
          {"dtype", row.op == CollectiveOp::kBarrier ? "none" : collective::name_of(row.dtype)},
          {"peer_dtype", row.op == CollectiveOp::kBarrier ? "none" : collective::name_of(row.peer_dtype)},
          {"memory", row.memory},
          {"median_us", row.median_us()},
          {"algbw_gbs", row.algbw_gbs()},
          {"busbw_gbs", row.busbw_gbs()},
          {"cpu_s", row.cpu_s()},
          {"verified", row.verified()},
          {"peers", json_of(row.ours, row.peers)}};
}

std::string table_head(const TableStyle& style) {
  return cat(cell("bytes", 12), cell("ranks", 7), cell("memory", 10), cell("us", 11), cell("algbw GB/s", 12),
             cell("busbw GB/s", 12), cell("cpu us", 11), cell("ok", 4), peers_head(style.peers), "\n");
}

std::string table_line(const TableStyle& style, const CollectiveRow& row) {
  const int ranks = row.nproc * row.hosts;
  return cat(cell(cat(row.bytes.value), 12), cell(cat(ranks, ranks > style.cores ? "*" : ""), 7),
             cell(row.memory, 10), cell(figure(row.median_us()), 11), cell(figure(row.algbw_gbs()), 12),
             cell(figure(row.busbw_gbs()), 12), cell(figure(row.cpu_s() * 1e6), 11),
             cell(row.verified() ? "yes" : "NO", 4), peers_cells(row.ours, row.peers), "\n");
}

Plot plot_of(const std::vector<CollectiveRow>& rows) {
  Plot plot;
  if (rows.empty()) return plot;
  const CollectiveRow& first = rows.front();
  plot.title = cat(name_of(first.op), ", ", collective::name_of(first.dtype), ", ", first.nproc * first.hosts,
                   " ranks on ", first.hosts, first.hosts == 1 ? " host" : " hosts");
  for (const CollectiveRow& row : rows) {
    const auto bytes = static_cast<double>(row.bytes.value);
    add_point(plot, cat("lockstep, ", row.memory), {.x = bytes, .y = row.median_us()});
  }
  // A peer was measured once for each kind of our memory: the first counts.
  for (const CollectiveRow& row : rows) {
    const auto bytes = static_cast<double>(row.bytes.value);
    for (const PeerRounds& peer : row.peers) {
      if (!peer.rounds.empty()) add_point(plot, peer.name, {.x = bytes, .y = median_us(peer.rounds)});
    }
  }
  return plot;
}

}  // namespace lockstep::bench

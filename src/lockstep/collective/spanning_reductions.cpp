// The reductions of Spanning: its other calls move bytes, these fold them.
#include <algorithm>
#include <cstring>

#include "lockstep/collective/chain.h"
#include "lockstep/collective/selection.h"
#include "lockstep/collective/slices.h"
#include "lockstep/collective/spanning.h"

namespace lockstep::collective {
namespace {

// Of a swap: fits into a core's cache with what it is folded with.
constexpr std::size_t kSwapChunk = std::size_t{128} << 10;
// Of an exchange: what every rank folds at a time.
constexpr std::size_t kExchangeWindow = std::size_t{256} << 10;

}  // namespace

Fold Spanning::fold_with(std::span<const double> factors) const {
  return {.type = fingerprint_.dtype,
          .op = fingerprint_.reduce_op,
          .ranks = communicator_.size(),
          .factors = factors};
}

Result<std::vector<double>> Spanning::share_factors() {
  std::vector<double> factors(static_cast<std::size_t>(communicator_.size()), 1);
  if (fingerprint_.reduce_op != ReduceOp::kPremulSum) return factors;
  std::vector<ByteSpan> outputs;
  outputs.reserve(factors.size());
  for (double& factor : factors) outputs.push_back(std::as_writable_bytes(std::span(&factor, 1)));
  LOCKSTEP_TRY(all_gather(std::as_bytes(std::span(&factor_, 1)), outputs));
  return factors;
}

void Spanning::fold_blocks(const Buffer& blocks, std::span<const double> factors, ByteSpan to) const {
  std::vector<const std::byte*> sources;
  sources.reserve(static_cast<std::size_t>(communicator_.size()));
  for (int i = 0; i < communicator_.size(); ++i)
    sources.push_back(blocks.data() + static_cast<std::size_t>(i) * to.size());
  std::byte* const result = to.data();
  fold(fold_with(factors), sources, {&result, 1}, to.size() / element_);
}

Status Spanning::all_reduce(ByteSpan data) {
  switch (select_all_reduce(data.size(), layout_)) {
    case SpanningWay::kRaw:
      return all_reduce_raw(data);
    case SpanningWay::kSwap:
      return all_reduce_swap(data);
    case SpanningWay::kChain: {
      const ByteView input = data;
      return Chain(*this, {&input, 1}, {data}, 0).run();
    }
    case SpanningWay::kExchange:
      break;
  }
  return all_reduce_exchange(data);
}

Status Spanning::all_reduce_raw(ByteSpan data) {
  LOCKSTEP_ASSIGN(const std::vector<double> factors, share_factors());
  Buffer blocks(data.size() * static_cast<std::size_t>(communicator_.size()));
  std::vector<ByteSpan> outputs;
  outputs.reserve(static_cast<std::size_t>(communicator_.size()));
  for (int i = 0; i < communicator_.size(); ++i)
    outputs.push_back(ByteSpan(blocks).subspan(static_cast<std::size_t>(i) * data.size(), data.size()));
  LOCKSTEP_TRY(all_gather(data, outputs));
  fold_blocks(blocks, factors, data);
  return {};
}

// A chunk of ours is overwritten by the result only when all of it has gone.
Status Spanning::all_reduce_swap(ByteSpan data) {
  LOCKSTEP_ASSIGN(const std::vector<double> factors, share_factors());
  constexpr std::size_t kAhead = 8;
  const int peer = 1 - own_;
  Buffer ring(std::min(data.size(), kAhead * kSwapChunk));
  const auto place = [&](std::size_t at) {
    return part_of(ByteSpan(ring), at % (kAhead * kSwapChunk), std::min(kSwapChunk, data.size() - at));
  };
  std::vector<Ticket> received;
  std::vector<Ticket> sent;
  const auto post = [&](std::size_t at) -> Status {
    LOCKSTEP_ASSIGN(received.emplace_back(), links_.recv(peer, place(at), deadline_));
    LOCKSTEP_ASSIGN(sent.emplace_back(), links_.send(peer, part_of(data, at, kSwapChunk), deadline_));
    return {};
  };
  std::size_t ahead = 0;
  std::size_t number = 0;
  for (std::size_t at = 0; at == 0 || at < data.size(); at += kSwapChunk, ++number) {
    for (; (ahead == 0 || ahead < data.size()) && ahead < at + kAhead * kSwapChunk; ahead += kSwapChunk)
      LOCKSTEP_TRY(post(ahead));
    LOCKSTEP_TRY(links_.wait(received[number], deadline_));
    LOCKSTEP_TRY(links_.wait(sent[number], deadline_));
    const ByteSpan mine = part_of(data, at, kSwapChunk);
    const std::byte* const theirs = place(at).data();
    const std::byte* const sources[] = {own_ == 0 ? mine.data() : theirs, own_ == 0 ? theirs : mine.data()};
    std::byte* const to = mine.data();
    fold(fold_with(factors), sources, {&to, 1}, mine.size() / element_);
  }
  return {};
}

Status Spanning::all_reduce_exchange(ByteSpan data) {
  LOCKSTEP_ASSIGN(const std::vector<double> factors, share_factors());
  const int n = communicator_.size();
  const std::size_t window = kExchangeWindow / element_ * element_ * static_cast<std::size_t>(n);
  for (std::size_t at = 0; at < data.size(); at += window) {
    const ByteSpan piece = part_of(data, at, window);
    std::vector<ByteView> inputs;
    std::vector<ByteSpan> slices;
    for (int i = 0; i < n; ++i) {
      const Slice slice = slice_of(piece.size() / element_, element_, n, i);
      slices.push_back(piece.subspan(slice.begin * element_, slice.count() * element_));
      inputs.push_back(slices.back());
    }
    const ByteSpan own = slices[static_cast<std::size_t>(own_)];
    Buffer blocks(own.size() * static_cast<std::size_t>(n));
    std::vector<ByteSpan> raw;
    raw.reserve(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i)
      raw.push_back(ByteSpan(blocks).subspan(static_cast<std::size_t>(i) * own.size(), own.size()));
    LOCKSTEP_TRY(all_to_all(inputs, raw));
    fold_blocks(blocks, factors, own);
    const Buffer folded(own.begin(), own.end());
    LOCKSTEP_TRY(all_gather(folded, slices));
  }
  return {};
}

Status Spanning::reduce(ByteView input, ByteSpan output, int root) {
  if (layout_.contiguous()) {
    const int root_host = layout_.host_of[static_cast<std::size_t>(root)];
    return Chain(*this, {&input, 1}, {own_ == root ? output : ByteSpan()}, root_host).run();
  }
  Buffer copy(input.begin(), input.end());
  LOCKSTEP_TRY(all_reduce_exchange(copy));
  if (own_ == root && !copy.empty()) std::memcpy(output.data(), copy.data(), copy.size());
  return {};
}

Status Spanning::reduce_scatter(std::span<const ByteView> inputs, ByteSpan output) {
  std::size_t bytes = 0;
  for (const ByteView part : inputs) bytes += part.size();
  if (select_reduce_scatter(bytes, carry_size(fingerprint_.dtype) / element_, layout_) ==
      SpanningWay::kExchange) {
    return reduce_scatter_exchange(inputs, output);
  }
  for (int host = 0; host < layout_.host_count(); ++host) {
    const std::vector<int>& members = layout_.on_host(host);
    const auto first = static_cast<std::size_t>(members.front());
    Chain::Share share;
    if (host == this->host()) {
      share.bytes = output;
      for (auto i = first; i < static_cast<std::size_t>(own_); ++i) share.at += inputs[i].size();
    }
    LOCKSTEP_TRY(Chain(*this, inputs.subspan(first, members.size()), share, host).run());
  }
  return {};
}

Status Spanning::reduce_scatter_exchange(std::span<const ByteView> inputs, ByteSpan output) {
  LOCKSTEP_ASSIGN(const std::vector<double> factors, share_factors());
  const int n = communicator_.size();
  const std::size_t window = kExchangeWindow / element_ * element_;
  std::size_t largest = 0;
  for (const ByteView part : inputs) largest = std::max(largest, part.size());
  for (std::size_t at = 0; at < largest; at += window) {
    const ByteSpan own = part_of(output, at, window);
    std::vector<ByteView> pieces;
    for (const ByteView part : inputs) pieces.push_back(part_of(part, at, window));
    Buffer blocks(own.size() * static_cast<std::size_t>(n));
    std::vector<ByteSpan> raw;
    raw.reserve(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i)
      raw.push_back(ByteSpan(blocks).subspan(static_cast<std::size_t>(i) * own.size(), own.size()));
    LOCKSTEP_TRY(all_to_all(pieces, raw));
    fold_blocks(blocks, factors, own);
  }
  return {};
}

}  // namespace lockstep::collective

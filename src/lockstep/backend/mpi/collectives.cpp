#include "lockstep/backend/mpi/collectives.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "lockstep/backend/mpi/reduction_types.h"

namespace lockstep::backend::mpi {
namespace {

void copy(ByteSpan to, const std::byte* from) {
  if (!to.empty() && to.data() != from) std::memcpy(to.data(), from, to.size());
}

// Whether they lie one behind the other.
template <typename Buffers>
bool are_adjacent(const Buffers& buffers) {
  for (std::size_t i = 1; i < buffers.size(); ++i) {
    if (buffers[i - 1].data() + buffers[i - 1].size() != buffers[i].data()) return false;
  }
  return true;
}

template <typename Buffers>
std::size_t total_of(const Buffers& buffers) {
  std::size_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size();
  return total;
}

bool fits_in_int(std::size_t number) {
  return number <= static_cast<std::size_t>(std::numeric_limits<int>::max());
}

class Collective {
 public:
  Collective(const Call& call, const Place& place, Transfer& transfer)
      : call_(call), place_(place), transfer_(transfer), n_(static_cast<std::size_t>(place.size)) {}

  Status begin() {
    switch (call_.kind) {
      case OpKind::kBarrier:
      case OpKind::kMonitoredBarrier:
        return status_of(MPI_Ibarrier(place_.collectives, transfer_.next_request()), "MPI_Ibarrier");
      case OpKind::kBroadcast:
        return for_each(call_.outputs.size(), &Collective::broadcast);
      case OpKind::kAllGather:
        return for_each(call_.inputs.size(), &Collective::all_gather);
      case OpKind::kGather:
        return for_each(call_.inputs.size(), &Collective::gather);
      case OpKind::kScatter:
        return for_each(call_.outputs.size(), &Collective::scatter);
      case OpKind::kAllToAll:
        return exchange(call_.inputs, call_.outputs);
      case OpKind::kAllReduce:
        return reduce_each(call_.outputs.size(), &Collective::all_reduce);
      case OpKind::kReduce:
        return reduce_each(call_.inputs.size(), &Collective::reduce);
      case OpKind::kReduceScatter:
        return reduce_each(call_.outputs.size(), &Collective::reduce_scatter);
    }
    return Status::internal("a collective that the mpi backend does not know");
  }

 private:
  bool is_root() const { return place_.rank == call_.root; }

  Status for_each(std::size_t buffers, Status (Collective::*begin_one)(std::size_t)) {
    for (std::size_t b = 0; b < buffers; ++b) LOCKSTEP_TRY((this->*begin_one)(b));
    return {};
  }
  Status reduce_each(std::size_t buffers, Status (Collective::*begin_one)(std::size_t, const Reduction&)) {
    LOCKSTEP_ASSIGN(const Reduction reduction, Reduction::of(call_, place_.size));
    for (std::size_t b = 0; b < buffers; ++b) LOCKSTEP_TRY((this->*begin_one)(b, reduction));
    return {};
  }

  // Calls `begin_piece(offset, count)` for pieces of `count` elements of `width` bytes; the offset is in
  // bytes. Nothing for nothing: all ranks have the same count.
  template <typename BeginPiece>
  static Status in_pieces(std::size_t count, std::size_t width, const BeginPiece& begin_piece) {
    const std::size_t most = kLargestPiece / width;
    for (std::size_t first = 0; first < count; first += most)
      LOCKSTEP_TRY(begin_piece(first * width, static_cast<int>(std::min(most, count - first))));
    return {};
  }

  Status broadcast(std::size_t b) {
    const ByteSpan data = call_.outputs[b];
    std::byte* travels = data.data();
    if (!transfer_.uses_bytes_in_place()) {
      const ByteSpan copied = transfer_.memory(data.size());
      travels = copied.data();
      if (is_root()) {
        copy(copied, data.data());
      } else {
        transfer_.then([data, travels] { copy(data, travels); });
      }
    }
    return in_pieces(data.size(), 1, [&](std::size_t offset, int count) {
      return status_of(MPI_Ibcast(travels + offset, count, MPI_BYTE, call_.root.value, place_.collectives,
                                  transfer_.next_request()),
                       "MPI_Ibcast");
    });
  }

  Status all_reduce(std::size_t b, const Reduction& reduction) {
    const ByteSpan data = call_.outputs[b];
    const std::size_t count = data.size() / reduction.width_of_element();
    std::byte* travels = data.data();
    if (!transfer_.uses_bytes_in_place() || reduction.width() != reduction.width_of_element())
      travels = transfer_.memory(count * reduction.width()).data();
    if (travels != data.data() || reduction.has_before()) reduction.before(data, travels);
    if (travels != data.data() || reduction.has_after())
      transfer_.then([=] { reduction.after(travels, data); });
    return in_pieces(count, reduction.width(), [&](std::size_t offset, int length) {
      return status_of(MPI_Iallreduce(MPI_IN_PLACE, travels + offset, length, reduction.type(),
                                      reduction.op(), place_.collectives, transfer_.next_request()),
                       "MPI_Iallreduce");
    });
  }

  // What travels for elements that are only read.
  const std::byte* travelling(ByteView elements, const Reduction& reduction) {
    if (!reduction.has_before()) return transfer_.readable(elements);
    const ByteSpan memory =
        transfer_.memory(elements.size() / reduction.width_of_element() * reduction.width());
    reduction.before(elements, memory.data());
    return memory.data();
  }
  // Where the result of elements arrives, to be put into `to` afterwards.
  std::byte* arriving(ByteSpan to, const Reduction& reduction) {
    std::byte* const memory =
        transfer_.uses_bytes_in_place() && reduction.width() == reduction.width_of_element()
            ? to.data()
            : transfer_.memory(to.size() / reduction.width_of_element() * reduction.width()).data();
    if (memory != to.data() || reduction.has_after()) transfer_.then([=] { reduction.after(memory, to); });
    return memory;
  }

  Status reduce_to(const std::byte* from, std::byte* to, std::size_t count, int root,
                   const Reduction& reduction) {
    return in_pieces(count, reduction.width(), [&](std::size_t offset, int length) {
      const void* const send = from == to ? MPI_IN_PLACE : from + offset;
      return status_of(MPI_Ireduce(send, to == nullptr ? nullptr : to + offset, length, reduction.type(),
                                   reduction.op(), root, place_.collectives, transfer_.next_request()),
                       "MPI_Ireduce");
    });
  }

  Status reduce(std::size_t b, const Reduction& reduction) {
    const ByteView input = call_.inputs[b];
    const std::size_t count = input.size() / reduction.width_of_element();
    if (!is_root())
      return reduce_to(travelling(input, reduction), nullptr, count, call_.root.value, reduction);
    std::byte* const result = arriving(call_.outputs[b], reduction);
    // In place, because the output may be the input.
    if (reduction.has_before() || result != input.data()) reduction.before(input, result);
    return reduce_to(result, result, count, call_.root.value, reduction);
  }

  Status reduce_scatter(std::size_t b, const Reduction& reduction) {
    const auto parts = call_.inputs.subspan(b * n_, n_);
    const std::size_t element = reduction.width_of_element();
    std::byte* const result = arriving(call_.outputs[b], reduction);
    std::vector<std::size_t> counts;
    counts.reserve(n_);
    for (const ByteView part : parts) counts.push_back(part.size() / element);
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    if (total * reduction.width() > kLargestPiece) {
      for (std::size_t r = 0; r < n_; ++r) {
        const bool mine = static_cast<int>(r) == place_.rank.value;
        LOCKSTEP_TRY(reduce_to(travelling(parts[r], reduction), mine ? result : nullptr, counts[r],
                               static_cast<int>(r), reduction));
      }
      return {};
    }
    const bool in_place = transfer_.uses_bytes_in_place() && !reduction.has_before() && are_adjacent(parts);
    const std::byte* send = parts[0].data();
    if (!in_place) {
      std::byte* packed = transfer_.memory(total * reduction.width()).data();
      send = packed;
      for (std::size_t r = 0; r < n_; ++r) {
        reduction.before(parts[r], packed);
        packed += counts[r] * reduction.width();
      }
    }
    auto& lengths = transfer_.numbers(n_);
    std::transform(counts.begin(), counts.end(), lengths.begin(),
                   [](std::size_t count) { return static_cast<int>(count); });
    return status_of(MPI_Ireduce_scatter(send, result, lengths.data(), reduction.type(), reduction.op(),
                                         place_.collectives, transfer_.next_request()),
                     "MPI_Ireduce_scatter");
  }

  Status all_gather(std::size_t b) {
    const ByteView input = call_.inputs[b];
    const auto parts = call_.outputs.subspan(b * n_, n_);
    const std::size_t total = total_of(parts);
    if (!fits_in_int(total)) {
      const std::vector<ByteView> to_each(n_, input);
      return exchange(to_each, parts);
    }
    std::byte* arrives = parts[0].data();
    if (!transfer_.uses_bytes_in_place() || !are_adjacent(parts)) {
      arrives = transfer_.memory(total).data();
      transfer_.then([parts, arrives] {
        const std::byte* from = arrives;
        for (const ByteSpan part : parts) {
          copy(part, from);
          from += part.size();
        }
      });
    }
    auto& lengths = transfer_.numbers(n_);
    auto& places = transfer_.numbers(n_);
    int place = 0;
    for (std::size_t r = 0; r < n_; ++r) {
      lengths[r] = static_cast<int>(parts[r].size());
      places[r] = place;
      place += lengths[r];
    }
    return status_of(MPI_Iallgatherv(transfer_.readable(input), static_cast<int>(input.size()), MPI_BYTE,
                                     arrives, lengths.data(), places.data(), MPI_BYTE, place_.collectives,
                                     transfer_.next_request()),
                     "MPI_Iallgatherv");
  }

  Status gather(std::size_t b) {
    const ByteView input = call_.inputs[b];
    if (!is_root())
      return transfer_.send({transfer_.readable(input), input.size()}, call_.root.value, place_.tag,
                            place_.messages);
    const auto parts = call_.outputs.subspan(b * n_, n_);
    for (std::size_t r = 0; r < n_; ++r) {
      if (static_cast<int>(r) == place_.rank.value) {
        copy(parts[r], input.data());
      } else {
        receive(parts[r], static_cast<int>(r));
      }
    }
    return {};
  }

  Status scatter(std::size_t b) {
    const ByteSpan output = call_.outputs[b];
    if (!is_root()) {
      receive(output, call_.root.value);
      return {};
    }
    const auto parts = call_.inputs.subspan(b * n_, n_);
    for (std::size_t r = 0; r < n_; ++r) {
      if (static_cast<int>(r) == place_.rank.value) {
        copy(output, parts[r].data());
      } else {
        LOCKSTEP_TRY(transfer_.send({transfer_.readable(parts[r]), parts[r].size()}, static_cast<int>(r),
                                    place_.tag, place_.messages));
      }
    }
    return {};
  }

  // Each rank gets its input, and gives this one its output.
  Status exchange(std::span<const ByteView> inputs, std::span<const ByteSpan> outputs) {
    for (std::size_t r = 0; r < n_; ++r) {
      if (static_cast<int>(r) == place_.rank.value) {
        copy(outputs[r], inputs[r].data());
      } else {
        receive(outputs[r], static_cast<int>(r));
      }
    }
    for (std::size_t r = 0; r < n_; ++r) {
      if (static_cast<int>(r) == place_.rank.value) continue;
      LOCKSTEP_TRY(transfer_.send({transfer_.readable(inputs[r]), inputs[r].size()}, static_cast<int>(r),
                                  place_.tag, place_.messages));
    }
    return {};
  }

  void receive(ByteSpan to, int from) {
    ByteSpan arrives = to;
    if (!transfer_.uses_bytes_in_place()) {
      arrives = transfer_.memory(to.size());
      transfer_.then([to, arrives] { copy(to, arrives.data()); });
    }
    transfer_.receive_checked(arrives, from, place_.tag, place_.messages);
  }

  const Call& call_;
  const Place& place_;
  Transfer& transfer_;
  const std::size_t n_;
};

}  // namespace

Status begin(const Call& call, const Place& place, Transfer& transfer) {
  return Collective(call, place, transfer).begin();
}

}  // namespace lockstep::backend::mpi

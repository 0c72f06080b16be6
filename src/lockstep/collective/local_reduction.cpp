// all_reduce and reduce on one host.
#include <algorithm>
#include <vector>

#include "lockstep/collective/helpers.h"
#include "lockstep/collective/local.h"
#include "lockstep/collective/local_round.h"
#include "lockstep/collective/selection.h"
#include "lockstep/collective/slices.h"

namespace lockstep::collective {
namespace {

// All-reduce and reduce: the inputs in one round, the folded slices in the next.
class Reduction {
 public:
  // `output` is empty on a rank that does not want the result.
  Reduction(const LocalCall& call, ByteView input, ByteSpan output)
      : call_(call),
        rounds_(call),
        input_(input),
        output_(output),
        element_(size_of(call.fingerprint.dtype)) {
    resident_ = rounds_.resident_offset(input);
    const std::size_t grain = 64 * element_;
    width_ = rounds_.staging_size() / grain * grain;
  }

  // Reduce only.
  Status run_to(int root) {
    const bool is_root = rounds_.index() == root;
    const bool one_shot = select_local_all_reduce(input_.size(), rounds_.size(),
                                                  call_.means.tuning.round_bytes) == LocalWay::kOneShot;
    unseen_ = one_shot && is_root;
    std::size_t size = std::min(width_, input_.size());
    LOCKSTEP_ASSIGN(std::vector<Exposed> inputs, expose_inputs(0, size));
    const auto residents = residents_of(inputs);
    if (residents == rounds_.size()) {
      LOCKSTEP_ASSIGN(std::byte* const result, place_of_result(root));
      if (result != nullptr) return fold_into(inputs, {&result, 1});
    }
    const bool root_folds = one_shot && residents < rounds_.size();
    for (std::size_t at = 0;;) {
      if (!root_folds) {
        LOCKSTEP_TRY(fold_and_share(inputs, at, size));
      } else if (is_root) {
        LOCKSTEP_TRY(fold_all(inputs, at, size));
      }
      at += size;
      if (at >= input_.size()) break;
      size = std::min(width_, input_.size() - at);
      LOCKSTEP_ASSIGN(inputs, expose_inputs(at, size));
    }
    // The root may still read a resident input where it lies.
    return root_folds && residents > 0 ? rounds_.close(true) : Status();
  }

  // All-reduce only.
  Status run() {
    std::size_t size = std::min(width_, input_.size());
    LOCKSTEP_ASSIGN(std::vector<Exposed> inputs, expose_inputs(0, size));
    const auto residents = residents_of(inputs);
    if (residents == rounds_.size()) {
      std::vector<std::byte*> everywhere;
      for (const Exposed& peer : inputs) {
        LOCKSTEP_ASSIGN(everywhere.emplace_back(), peer.window(0, input_.size()));
      }
      return fold_into(inputs, everywhere);
    }
    // A resident buffer is read where it lies, so its owner must not write a result to it before all have
    // folded.
    const bool one_shot =
        residents == 0 && select_local_all_reduce(input_.size(), rounds_.size(),
                                                  call_.means.tuning.round_bytes) == LocalWay::kOneShot;
    for (std::size_t at = 0;;) {
      LOCKSTEP_TRY(one_shot ? fold_all(inputs, at, size) : fold_and_share(inputs, at, size));
      at += size;
      if (at >= input_.size()) return {};
      size = std::min(width_, input_.size() - at);
      LOCKSTEP_ASSIGN(inputs, expose_inputs(at, size));
    }
  }

 private:
  static std::ptrdiff_t residents_of(std::span<const Exposed> inputs) {
    return std::count_if(inputs.begin(), inputs.end(), [](const Exposed& peer) { return peer.resident(); });
  }

  Result<std::vector<Exposed>> expose_inputs(std::size_t at, std::size_t size) {
    LOCKSTEP_TRY(rounds_.open());
    if (resident_ && folds_in_place(input_.size(), rounds_.size(), call_.means.tuning.round_bytes)) {
      rounds_.post_resident(*resident_, input_.size(), input_.size());
    } else if (unseen_) {
      rounds_.post_nothing();
    } else {
      copy_together(call_.means, rounds_.staging().first(size), input_.data() + at);
      rounds_.post_staged(size, input_.size());
    }
    return rounds_.await_all();
  }

  Status fold_slice(std::span<const Exposed> inputs, std::size_t at, Slice slice,
                    std::span<std::byte* const> to) const {
    const std::vector<double> factors = factors_of(inputs);
    // Our own part is in our cache where it came from, and not where it was staged.
    std::vector<const std::byte*> sources(inputs.size(), input_.data() + at + slice.begin * element_);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (static_cast<int>(i) == rounds_.index()) continue;
      LOCKSTEP_ASSIGN(const std::byte* bytes, inputs[i].window(at, slice.end * element_));
      sources[i] = bytes + slice.begin * element_;
    }
    fold_together(call_.means.helpers, fold_of(call_.fingerprint, rounds_.size(), factors), sources, to,
                  slice.count());
    return {};
  }

  // All of the window, by this rank.
  Status fold_all(std::span<const Exposed> inputs, std::size_t at, std::size_t size) {
    std::byte* const to = output_.data() + at;
    return fold_slice(inputs, at, {0, size / element_}, {&to, 1});
  }

  // Where the root wants the result, in its heap; nullptr if that is not in shared memory.
  Result<std::byte*> place_of_result(int root) {
    LOCKSTEP_TRY(rounds_.open());
    if (const auto offset = rounds_.resident_offset(output_)) {
      rounds_.post_resident(*offset, output_.size(), output_.size());
    } else {
      rounds_.post_nothing();
    }
    LOCKSTEP_ASSIGN(const Exposed posted, rounds_.await_root(root));
    if (!posted.resident()) return nullptr;
    return posted.window(0, input_.size());
  }

  // Every rank writes its slice of the result into each of these buffers, which all have it whole. The inputs
  // are resident, all of them.
  Status fold_into(std::span<const Exposed> inputs, std::span<std::byte* const> results) {
    const Slice slice = slice_of(input_.size() / element_, element_, rounds_.size(), rounds_.index());
    std::vector<std::byte*> to(results.begin(), results.end());
    for (std::byte*& at : to) at += slice.begin * element_;
    LOCKSTEP_TRY(fold_slice(inputs, 0, slice, to));
    return rounds_.close(true);
  }

  // Folds our slice of the window, shows it to the others, and takes theirs.
  Status fold_and_share(std::span<const Exposed> inputs, std::size_t at, std::size_t size) {
    const std::size_t count = size / element_;
    const Slice own = slice_of(count, element_, rounds_.size(), rounds_.index());
    LOCKSTEP_TRY(rounds_.open());
    std::byte* const to = rounds_.staging().data();
    LOCKSTEP_TRY(fold_slice(inputs, at, own, {&to, 1}));
    rounds_.post_staged(own.count() * element_, input_.size());
    // Also on a rank that wants no result: once all have posted, nobody reads this window of our input any
    // more.
    LOCKSTEP_ASSIGN(const std::vector<Exposed> slices, rounds_.await_all());
    if (output_.empty()) return {};
    for (int peer = 0; peer < rounds_.size(); ++peer) {
      const Slice slice = slice_of(count, element_, rounds_.size(), peer);
      LOCKSTEP_TRY(take(output_.subspan(at + slice.begin * element_, slice.count() * element_),
                        slices[static_cast<std::size_t>(peer)], 0));
    }
    return {};
  }

  const LocalCall& call_;
  LocalRounds rounds_;
  const ByteView input_;
  const ByteSpan output_;
  const std::size_t element_;
  std::size_t width_ = 0;
  std::optional<std::uint64_t> resident_;
  bool unseen_ = false;  // nobody else needs our input, unless it is resident
};

}  // namespace

Status local_all_reduce(const LocalCall& call, ByteSpan data) {
  return settle(call, Reduction(call, data, data).run());
}

Status local_reduce(const LocalCall& call, ByteView input, ByteSpan output) {
  const bool is_root = call.board.index() == call.root;
  return settle(call, Reduction(call, input, is_root ? output : ByteSpan()).run_to(call.root));
}

}  // namespace lockstep::collective

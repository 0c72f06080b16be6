#include "lockstep/backend/native/tuner.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/backend/logger.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/copy.h"

namespace lockstep::backend {
namespace {

using collective::CopyWay;
using collective::kCopyWays;
using collective::kTimedSizes;
using collective::Timings;
using transport::shm::Board;

constexpr int kWriter = 0;
constexpr int kReader = 1;
constexpr int kBatches = 10;  // of rounds
constexpr int kRounds = 5;    // in a batch
constexpr int kCopies = 4;    // of each size and way
constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

std::string describe(const Timings& timings, const collective::Tuning& tuning) {
  std::string text = cat("measured: a round ", timings.round, " ns");
  for (std::size_t i = 0; i < kTimedSizes.size(); ++i) {
    text += cat("; ", Bytes{kTimedSizes[i]}, " written and read ", timings.copy[i][0], " ns, past the cache ",
                timings.copy[i][1], " ns, of which reading ", timings.read[i], " ns");
  }
  return cat(text, ". A round is worth ", Bytes{tuning.round_bytes});
}

class Tuner {
 public:
  Tuner(Board& board, const Clock& clock, const Deadline& deadline)
      : board_(board), clock_(clock), deadline_(deadline) {}

  Result<Timings> measure() {
    LOCKSTEP_TRY(time_rounds());
    for (std::size_t i = 0; i < kTimedSizes.size(); ++i) LOCKSTEP_TRY(time_copies(i));
    return timings_;
  }

  // What the writer has measured, with the reader's times of reading.
  Result<Timings> share(Timings timings) {
    LOCKSTEP_TRY(board_.open_round(deadline_));
    std::memcpy(board_.staging().data(), &timings, sizeof(timings));
    board_.post_staging({}, Bytes{sizeof(timings)});
    LOCKSTEP_TRY(board_.await_all(deadline_));
    LOCKSTEP_ASSIGN(const Timings of_reader, posted_by(kReader));
    LOCKSTEP_ASSIGN(timings, posted_by(kWriter));
    timings.read = of_reader.read;
    return timings;
  }

 private:
  Status empty_round() {
    LOCKSTEP_TRY(board_.open_round(deadline_));
    board_.post({});
    return board_.await_all(deadline_);
  }

  Status time_rounds() {
    timings_.round = kUnknown;
    // Several together: with more ranks than cores, the last one that comes finds all others waiting.
    for (int batch = 0; batch < kBatches; ++batch) {
      const base::TimePoint start = clock_.now();
      for (int i = 0; i < kRounds; ++i) LOCKSTEP_TRY(empty_round());
      timings_.round = std::min(timings_.round, since(start) / kRounds);
    }
    return {};
  }

  Status time_copies(std::size_t i) {
    const std::size_t size = kTimedSizes[i];
    timings_.copy[i].fill(kUnknown);
    timings_.read[i] = kUnknown;
    Buffer own(size);
    // One way after the other: what the last copy has left in the caches is a part of the next one's cost.
    for (std::size_t way = 0; way < kCopyWays; ++way) {
      for (int copy = 0; copy < kCopies; ++copy) {
        std::fill(own.begin(), own.end(), static_cast<std::byte>(copy));
        const base::TimePoint start = clock_.now();
        LOCKSTEP_TRY(board_.open_round(deadline_));
        if (board_.index() == kWriter) {
          collective::copy_for_peers(board_.staging().first(size), own.data(), static_cast<CopyWay>(way));
          board_.post_staging({}, Bytes{size});
        } else {
          board_.post({});
        }
        LOCKSTEP_TRY(board_.await_all(deadline_));
        if (board_.index() == kReader) LOCKSTEP_TRY(read(i, own));
        LOCKSTEP_TRY(empty_round());
        timings_.copy[i][way] = std::min(timings_.copy[i][way], since(start));
      }
    }
    return {};
  }

  Status read(std::size_t i, ByteSpan to) {
    LOCKSTEP_ASSIGN(const std::byte* bytes, range_of(kWriter, to.size()));
    const base::TimePoint start = clock_.now();
    std::memcpy(to.data(), bytes, to.size());
    timings_.read[i] = std::min(timings_.read[i], since(start));
    return {};
  }

  Result<Timings> posted_by(int member) const {
    LOCKSTEP_ASSIGN(const std::byte* bytes, range_of(member, sizeof(Timings)));
    Timings timings;
    std::memcpy(&timings, bytes, sizeof(timings));
    return timings;
  }

  Result<const std::byte*> range_of(int member, std::size_t size) const {
    const transport::shm::Posting posting = board_.posting_of(member);
    const std::byte* const bytes = board_.range_of(member, posting);
    if (bytes == nullptr || posting.size < size)
      return Status::internal(cat("rank ", board_.rank_of(member), " posted no timings"),
                              {.failure = Failure::kCorruptFrame, .peer = board_.rank_of(member)});
    return bytes;
  }

  std::uint64_t since(base::TimePoint start) const {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(clock_.now() - start).count());
  }

  Board& board_;
  const Clock& clock_;
  const Deadline& deadline_;
  Timings timings_;
};

}  // namespace

Result<collective::Tuning> measure_tuning(Board& board, int cores, const Clock& clock,
                                          const Deadline& deadline) {
  if (board.size() == 1 || board.staging().size() < kTimedSizes.back()) return collective::Tuning{};
  Tuner tuner(board, clock, deadline);
  LOCKSTEP_ASSIGN(Timings timings, tuner.measure());
  timings.cores = static_cast<std::uint64_t>(cores);
  LOCKSTEP_ASSIGN(timings, tuner.share(timings));
  const collective::Tuning tuning = collective::tuning_from(timings, board.size());
  if (kLog.enabled(base::LogLevel::kDebug)) kLog.debug(describe(timings, tuning));
  return tuning;
}

}  // namespace lockstep::backend

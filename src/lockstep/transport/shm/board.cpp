#include "lockstep/transport/shm/board.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/transport/shm/failure_log.h"

namespace lockstep::transport::shm {
namespace {

constexpr Duration kMergeLook = std::chrono::milliseconds(1);

// Never that of a posting without one.
std::uint64_t checksum_of(const std::byte* bytes, Bytes size) {
  return (std::uint64_t{1} << 32) | base::crc32c({bytes, size.value});
}

// Instead of the place of its block: why a member has none.
constexpr std::byte kRefusal{'!'};

Buffer refusal_of(const Status& why) {
  Buffer said = base::write_status(why);
  said.insert(said.begin(), kRefusal);
  return said;
}

Status refused_by(ByteView said) {
  if (said.empty() || said.front() != kRefusal) return {};
  return base::parse_status(said.subspan(1));
}

constexpr std::uint64_t kOddNumber = 0x9e3779b97f4a7c15U;

// Not 0: that a member has left, after the operation with that number. A changed bit makes neither of the
// two.
std::uint32_t gone_mark(std::uint64_t sequence) {
  return static_cast<std::uint32_t>(((sequence + 1) * kOddNumber) >> 32) | 1U;
}

std::uint64_t seal_of(const Entry& entry) {
  std::uint64_t seal = entry.sequence * kOddNumber;
  for (std::size_t i = 0; i < entry.words.size(); ++i) seal += entry.words[i] * (kOddNumber * (2 * i + 3));
  return seal;
}

// Each peer that leaves adds this: no number of them is a changed bit away from another.
constexpr std::uint32_t kPeerLeft = 0x9e3779b1U;

}  // namespace

// In the owner's heap, read by all. Zero-filled memory is a valid Block. tests/chaos/memory.py knows where
// things are. What a reader acts on shows it if something else has changed it: kCorruptFrame. Not so
// `progress`, which only says who is named as missing.
struct Board::Block {
  Signal posted;  // the last round that the owner has posted
  // How many peers will never look at this block again. They write it, so that the owner need not read
  // theirs.
  alignas(128) std::atomic<std::uint32_t> left;
  // Written by the owner alone. The operation it has begun, doubled; odd once that has ended. And, before it
  // goes, that it does, and after which one.
  alignas(128) std::atomic<std::uint64_t> progress;
  std::atomic<std::uint32_t> gone;  // 0, or gone_mark() of the last sequence
  std::atomic<std::uint64_t> last_sequence;
  alignas(128) Posting postings[2];
  // The last operations that the owner has begun, each at the place of its number. Written word by word while
  // others may read; a sequence of 0 is one that is being written.
  struct alignas(64) Entered {
    std::atomic<std::uint64_t> sequence;
    std::array<std::atomic<std::uint64_t>, 5> words;
    std::atomic<std::int64_t> at;  // nanoseconds of the host's steady clock
    std::atomic<std::uint64_t> seal;

    void write(const Entry& entry) {
      sequence.store(0, std::memory_order_relaxed);
      for (std::size_t i = 0; i < words.size(); ++i)
        words[i].store(entry.words[i], std::memory_order_release);
      at.store(Clock::steady().now().time_since_epoch().count(), std::memory_order_release);
      seal.store(seal_of(entry), std::memory_order_release);
      sequence.store(entry.sequence, std::memory_order_release);
    }
    struct Read {
      Entry entry;
      bool intact;
    };
    // Nothing if there is another one.
    std::optional<Read> read(std::uint64_t wanted) const {
      if (sequence.load(std::memory_order_acquire) != wanted) return std::nullopt;
      Entry entry{.sequence = wanted};
      for (std::size_t i = 0; i < words.size(); ++i)
        entry.words[i] = words[i].load(std::memory_order_acquire);
      const bool intact = seal.load(std::memory_order_acquire) == seal_of(entry);
      if (sequence.load(std::memory_order_relaxed) != wanted) return std::nullopt;
      return Read{.entry = entry, .intact = intact};
    }
  };
  std::array<Entered, 4> entered;
  Entered& entered_at(std::uint64_t sequence) { return entered[sequence % entered.size()]; }
  alignas(128) FailureLog failures;  // of the block of member 0 only
};

class Board::Lookout final : public Watch {
 public:
  Lookout(const Board& board, std::span<Signal* const> signals, std::uint32_t round, bool& sleeps)
      : board_(board), signals_(signals), round_(round), sleeps_(sleeps) {}
  bool stop() override {
    if (board_.failures().any()) return true;
    noticed_ = board_.look_around(signals_, round_);
    if (noticed_.ok() && has_slept_) noticed_ = board_.look_also_();
    if (!has_slept_) since_ = Clock::steady().now();
    has_slept_ = true;
    sleeps_ = true;
    return !noticed_.ok();
  }
  // For how long, until now.
  Duration slept() const { return has_slept_ ? Clock::steady().now() - since_ : Duration::zero(); }
  void changed(std::size_t place) override {
    const auto found = std::find(board_.signals_.begin(), board_.signals_.end(), signals_[place]);
    noticed_ = board_.altered(static_cast<int>(found - board_.signals_.begin()), "the number of its round");
  }
  // Why it stopped.
  Status reason() const { return noticed_.ok() ? board_.known_failure() : noticed_; }

 private:
  const Board& board_;
  const std::span<Signal* const> signals_;
  const std::uint32_t round_;
  bool& sleeps_;  // the board's, of the whole operation
  bool has_slept_ = false;
  base::TimePoint since_{};  // if it has
  Status noticed_;
};

Board::Board(Domain& domain, const BoardOptions& options)
    : domain_(domain),
      members_(options.members),
      staging_(options.staging),
      patience_(options.patience),
      merge_(options.merge),
      payload_(options.payload),
      describe_(options.describe) {}

Board::~Board() {
  // Not all had come: peers may know our offset and still write there, so it is never used for anything else.
  if (blocks_.size() != members_.size()) return;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index_) continue;
    blocks_[static_cast<std::size_t>(peer)]->left.fetch_add(kPeerLeft, std::memory_order_release);
  }
  domain_.retire(offset_, blocks_[static_cast<std::size_t>(index_)]->left,
                 static_cast<std::uint32_t>(size() - 1) * kPeerLeft);
}

Result<std::unique_ptr<Board>> Board::make(Domain& domain, const BoardOptions& options, store::Store& store,
                                           const Deadline& deadline) {
  const auto own = std::find(options.members.begin(), options.members.end(), domain.index());
  if (own == options.members.end())
    return Status::invalid(
        cat("rank ", domain.rank_of(domain.index()), " is not a member of ", options.name));
  const Bytes size{sizeof(Block) + 2 * options.staging.value};
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < options.members.size(); ++i)
    keys.push_back(cat("board/", options.name, "/", i));
  const std::string& own_key = keys[static_cast<std::size_t>(own - options.members.begin())];
  const Result<Heap::Range> range = domain.heap().allocate(size, alignof(Block));
  if (!range.ok()) {  // the others wait for it
    const Status why = range.status().with_cause({.failure = range.status().failure(),
                                                  .rank = domain.rank_of(domain.index()),
                                                  .peer = domain.rank_of(domain.index())});
    (void)store.set(own_key, refusal_of(why), deadline);
    return why;
  }
  std::unique_ptr<Board> board(new Board(domain, options));
  board->index_ = static_cast<int>(own - options.members.begin());
  board->offset_ = range->offset;
  std::memset(range->data, 0, sizeof(Block));
  new (range->data) Block;

  LOCKSTEP_TRY(store.set(own_key, bytes_of(cat(range->offset)), deadline));
  auto found = store::watched_get(store, keys, deadline, options.look);
  if (found.status().code() == Code::kTimeout) return board->name_absent(keys, store, found.status());
  LOCKSTEP_ASSIGN(const std::vector<Buffer> offsets, std::move(found));
  for (std::size_t i = 0; i < options.members.size(); ++i) {
    const Status why = refused_by(offsets[i]);
    if (why.ok()) continue;
    domain.heap().free(board->offset_);  // nobody has this board
    return why.with_prefix(cat("rank ", domain.rank_of(options.members[i]), ": "));
  }
  for (std::size_t i = 0; i < options.members.size(); ++i) {
    const auto offset = base::parse_integer<std::uint64_t>(text_of(offsets[i]));
    std::byte* place =
        offset && *offset % alignof(Block) == 0 ? domain.at(options.members[i], *offset, size) : nullptr;
    if (place == nullptr) {
      return Status::internal(
          cat("rank ", domain.rank_of(options.members[i]), " announced no valid place for ", options.name));
    }
    board->blocks_.push_back(reinterpret_cast<Block*>(place));
    board->signals_.push_back(&board->blocks_.back()->posted);
  }
  return board;
}

Status Board::name_absent(const std::vector<std::string>& keys, store::Store& store,
                          const Status& late) const {
  std::vector<Rank> missing;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto here = store.check({&keys[i], 1});
    if (here.ok() && !*here) missing.push_back(rank_of(static_cast<int>(i)));
  }
  if (missing.empty()) return late;
  return Status::timeout(cat("rank ", base::ranks_text(missing), " has not come"),
                         {.failure = Failure::kMissingRanks, .rank = rank_of(index_), .missing = missing});
}

ByteSpan Board::staging() {
  std::byte* first = reinterpret_cast<std::byte*>(blocks_[static_cast<std::size_t>(index_)] + 1);
  return {first + (round_ % 2) * staging_.value, staging_.value};
}

Status Board::open_round(const Deadline& deadline) {
  if (failures().any()) return known_failure();
  LOCKSTEP_TRY(wait_for(signals_, round_, deadline));
  ++round_;
  return {};
}

void Board::post(const Header& header, std::uint64_t offset, Bytes size) {
  Block& own = *blocks_[static_cast<std::size_t>(index_)];
  Posting posting{.header = header, .offset = offset, .size = size.value};
  const std::byte* const bytes = payload_ == PayloadChecks::kOn ? range_of(index_, posting) : nullptr;
  if (bytes != nullptr) posting.payload = checksum_of(bytes, size);
  posting.seal = seal_of(posting, round_);
  own.postings[round_ % 2] = posting;
  own.posted.raise(round_);
}

void Board::post_staging(const Header& header, Bytes size) {
  const ByteSpan bytes = staging();
  staged_bytes_.store(staged_bytes_.load(std::memory_order_relaxed) + size.value, std::memory_order_relaxed);
  post(header, *domain_.heap().offset_of(bytes.data(), size), size);
}

Status Board::await(int peer, const Deadline& deadline) {
  return wait_for(std::span(signals_).subspan(static_cast<std::size_t>(peer), 1), round_, deadline);
}

Status Board::await_all(const Deadline& deadline) { return wait_for(signals_, round_, deadline); }

Posting Board::posting_of(int peer) const {
  return blocks_[static_cast<std::size_t>(peer)]->postings[round_ % 2];
}

Posting Board::last_posting_of(int peer) const {
  return blocks_[static_cast<std::size_t>(peer)]->postings[(round_ - 1) % 2];
}

Status Board::altered(int peer, std::string_view what) const {
  return Status::disconnected(
      cat("in the shared memory of rank ", rank_of(peer), ", ", what, " has changed since it was written"),
      {.failure = Failure::kCorruptFrame, .rank = rank_of(index_), .peer = rank_of(peer)});
}

Status Board::unsealed(int peer) const {
  return Status::disconnected(
      cat("what rank ", rank_of(peer),
          " posted in shared memory has changed since: it does not fit its seal"),
      {.failure = Failure::kCorruptFrame, .rank = rank_of(index_), .peer = rank_of(peer)});
}

Status Board::check_payload(int peer, const Posting& posting) const {
  const std::byte* const bytes = range_of(peer, posting);
  if (bytes == nullptr || checksum_of(bytes, Bytes{posting.size}) == posting.payload) return {};
  return Status::disconnected(
      cat(Bytes{posting.size}, " that rank ", rank_of(peer),
          " posted in shared memory have changed since: they do not fit their checksum"),
      {.failure = Failure::kCorruptFrame, .rank = rank_of(index_), .peer = rank_of(peer)});
}

std::byte* Board::range_of(int peer, const Posting& posting) const {
  return domain_.at(members_[static_cast<std::size_t>(peer)], posting.offset, Bytes{posting.size});
}

Status Board::wait_for(std::span<Signal* const> signals, std::uint32_t round, const Deadline& deadline) {
  Lookout lookout(*this, signals, round, has_slept_);
  const Waited outcome = wait_for_all(signals, round, lookout, deadline, patience_);
  const Duration slept = lookout.slept();
  if (slept > Duration::zero())
    slept_.store(slept_.load(std::memory_order_relaxed) + slept.count(), std::memory_order_relaxed);
  if (outcome == Waited::kReached) return {};
  if (outcome != Waited::kTimeout) return lookout.reason();
  std::vector<Rank> missing;
  for (int i = 0; i < size(); ++i) {
    if (!reached(signals_[static_cast<std::size_t>(i)]->read().value, round)) missing.push_back(rank_of(i));
  }
  return Status::timeout(cat("waited ", slept, " for rank ", base::ranks_text(missing)),
                         {.failure = Failure::kMissingRanks, .rank = rank_of(index_), .missing = missing});
}

Status Board::look_around(std::span<Signal* const> signals, std::uint32_t round) const {
  for (int i = 0; i < size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const Block& block = *blocks_[at];
    // Dead first: whoever leaves says so before its process ends.
    const bool dead = domain_.is_dead(members_[at]);
    const std::uint32_t gone = block.gone.load(std::memory_order_acquire);
    const std::uint64_t last = block.last_sequence.load(std::memory_order_relaxed);
    if (gone == 0) {
      if (!dead) continue;
      return Status::disconnected(
          cat("rank ", rank_of(i), " died"),
          {.failure = Failure::kPeerDied, .rank = rank_of(index_), .peer = rank_of(i)});
    }
    if (gone != gone_mark(last)) return altered(i, "what it says of its leaving");
    const bool awaited = std::find(signals.begin(), signals.end(), signals_[at]) != signals.end();
    if (!awaited || reached(block.posted.read().value, round)) continue;
    return Status::disconnected(cat("rank ", rank_of(i), " left the group after operation #", last),
                                {.failure = Failure::kDesync, .rank = rank_of(index_), .peer = rank_of(i)});
  }
  return compare_entries();
}

Status Board::compare_entries() const {
  if (!describe_ || entered_.sequence == 0) return {};
  for (int i = 0; i < size(); ++i) {
    const auto read =
        blocks_[static_cast<std::size_t>(i)]->entered_at(entered_.sequence).read(entered_.sequence);
    if (!read || read->entry == entered_) continue;
    if (!read->intact) return altered(i, "what it says of its operation");
    return describe_(rank_of(index_), entered_, rank_of(i), read->entry);
  }
  return {};
}

Status Board::look() const {
  if (failures().any()) return known_failure();
  return look_around({}, 0);
}

void Board::enter(const Entry& entry) {
  Block& own = *blocks_[static_cast<std::size_t>(index_)];
  own.progress.store(2 * entry.sequence, std::memory_order_relaxed);
  own.entered_at(entry.sequence).write(entry);
  entered_ = entry;
  had_slept_ = std::exchange(has_slept_, false);
}

std::optional<Board::Latest> Board::last_to_enter() const {
  if (entered_.sequence < 2) return std::nullopt;
  const std::uint64_t sequence = entered_.sequence - 1;
  const auto time_of = [this, sequence](int index) -> std::optional<std::int64_t> {
    const auto& place = blocks_[static_cast<std::size_t>(index)]->entered_at(sequence);
    const std::int64_t at = place.at.load(std::memory_order_acquire);
    return place.read(sequence) ? std::optional(at) : std::nullopt;
  };
  int latest = index_;
  const std::int64_t own = time_of(index_).value_or(0);
  std::int64_t last = own;
  for (int i = 0; i < size(); ++i) {
    const auto at = time_of(i);
    if (!at) return std::nullopt;
    if (*at > last) {
      last = *at;
      latest = i;
    }
  }
  if (latest == index_) return std::nullopt;
  return Latest{.index = latest, .sequence = sequence, .after = Duration(last - own)};
}

void Board::exit(std::uint64_t sequence) {
  blocks_[static_cast<std::size_t>(index_)]->progress.store(2 * sequence + 1, std::memory_order_relaxed);
}

std::vector<Rank> Board::absent_from(std::uint64_t sequence) const {
  std::vector<Rank> ranks;
  for (int i = 0; i < size(); ++i) {
    const std::uint64_t progress =
        blocks_[static_cast<std::size_t>(i)]->progress.load(std::memory_order_relaxed);
    const bool between = progress == 0 || progress % 2 == 1;
    if (progress < 2 * sequence && between) ranks.push_back(rank_of(i));
  }
  return ranks;
}

void Board::leave(std::uint64_t sequence) {
  Block& own = *blocks_[static_cast<std::size_t>(index_)];
  if (own.gone.load(std::memory_order_relaxed) != 0) return;
  own.last_sequence.store(sequence, std::memory_order_relaxed);
  own.gone.store(gone_mark(sequence), std::memory_order_release);
  own.posted.nudge();
}

FailureLog& Board::failures() const { return blocks_[0]->failures; }

bool Board::fail(const Status& status) {
  const bool first = failures().record(status);
  if (first) nudge_all();
  return first;
}

void Board::hear(const Status& status) {
  if (failures().merge(status, merge_)) nudge_all();
}

void Board::nudge_all() {
  for (Signal* signal : signals_) signal->nudge();
}

bool Board::claim_telling() { return failures().claim_telling(merge_); }

void Board::end_telling(bool all_answered) { failures().end_telling(all_answered); }

void Board::give_back_telling() { failures().give_back_telling(); }

Status Board::known_failure() const {
  Status failure = failures().earliest(merge_);
  if (failure.failure() != Failure::kCorruptFrame || failure.cause().peer) return failure;
  return altered(0, "the record of the group's failure");
}

Status Board::final_failure() const {
  return failures().any() && failures().is_final(merge_) ? known_failure() : Status();
}

Status Board::failure() const {
  if (!failures().any()) return {};
  while (!failures().is_final(merge_)) std::this_thread::sleep_for(kMergeLook);
  return known_failure();
}

}  // namespace lockstep::transport::shm

#include "lockstep/collective/local_round.h"

#include <bit>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::collective {

using transport::shm::Header;
using transport::shm::Posting;

transport::shm::Entry entry_of(const Fingerprint& fingerprint) {
  return {.sequence = fingerprint.sequence,
          .words = std::bit_cast<decltype(transport::shm::Entry::words)>(fingerprint)};
}

Status describe_entries(Rank own, const transport::shm::Entry& mine, Rank peer,
                        const transport::shm::Entry& theirs) {
  return desync(own, std::bit_cast<Fingerprint>(mine.words), peer, std::bit_cast<Fingerprint>(theirs.words));
}

Result<std::byte*> Exposed::window(std::size_t at, std::size_t count) const {
  const std::size_t begin = resident() ? at : 0;
  if (begin > size || count > size - begin) {
    return Status::internal(
        cat("rank ", rank, " posted ", Bytes{size}, " where ", Bytes{begin + count}, " are needed"),
        {.failure = Failure::kCorruptFrame, .peer = rank});
  }
  return bytes + begin;
}

Header LocalRounds::header(std::size_t total, bool resident) const {
  const RoundHeader round{call_.fingerprint, total, call_.factor, resident ? 1U : 0U};
  Header raw;
  std::memcpy(raw.data(), &round, sizeof(round));
  return raw;
}

void LocalRounds::post_nothing() { board_.post(header(0, false)); }

void LocalRounds::post_staged(std::size_t size, std::size_t total) {
  board_.post_staging(header(total, false), Bytes{size});
}

void LocalRounds::post_resident(std::uint64_t offset, std::size_t size, std::size_t total) {
  board_.post(header(total, true), offset, Bytes{size});
}

Status LocalRounds::expose(int peer, Exposed& out) const {
  const Posting posting = board_.posting_of(peer);
  LOCKSTEP_TRY(board_.check(peer, posting));
  std::memcpy(&out.header, posting.header.data(), sizeof(out.header));
  out.rank = board_.rank_of(peer);
  if (out.header.fingerprint != call_.fingerprint)
    return desync(board_.rank_of(index()), call_.fingerprint, out.rank, out.header.fingerprint);
  out.bytes = board_.range_of(peer, posting);
  out.size = posting.size;
  if (out.bytes != nullptr) return {};
  return Status::internal(cat("rank ", out.rank, " posted a range outside its heap"),
                          {.failure = Failure::kCorruptFrame, .peer = out.rank});
}

Status LocalRounds::open() {
  LOCKSTEP_TRY(board_.open_round(call_.deadline));
  return board_.last_round_is_unknown() ? compare_last_round() : Status();
}

Status LocalRounds::compare_last_round() const {
  const auto fingerprint_of = [this](int peer) -> Result<Fingerprint> {
    const Posting posting = board_.last_posting_of(peer);
    LOCKSTEP_TRY(board_.check(peer, posting, transport::shm::Board::Of::kLastRound));
    Fingerprint fingerprint;
    std::memcpy(&fingerprint, posting.header.data(), sizeof(fingerprint));
    return fingerprint;
  };
  LOCKSTEP_ASSIGN(const Fingerprint own, fingerprint_of(index()));
  for (int peer = 0; peer < size(); ++peer) {
    LOCKSTEP_ASSIGN(const Fingerprint theirs, fingerprint_of(peer));
    if (theirs != own) return desync(board_.rank_of(index()), own, board_.rank_of(peer), theirs);
  }
  return {};
}

Result<Exposed> LocalRounds::await_root(int root) {
  LOCKSTEP_TRY(board_.await(root, call_.deadline));
  Exposed peer;
  LOCKSTEP_TRY(expose(root, peer));
  board_.all_agree();
  return peer;
}

Result<std::vector<Exposed>> LocalRounds::await_all() {
  LOCKSTEP_TRY(board_.await_all(call_.deadline));
  std::vector<Exposed> all(static_cast<std::size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) LOCKSTEP_TRY(expose(peer, all[static_cast<std::size_t>(peer)]));
  board_.all_agree();
  return all;
}

Status LocalRounds::close(bool waits) {
  LOCKSTEP_TRY(open());
  post_nothing();
  board_.all_agree();  // in the round before
  return waits ? board_.await_all(call_.deadline) : Status();
}

std::optional<std::uint64_t> LocalRounds::resident_offset(ByteView bytes) const {
  // What others write into would not fit its checksum.
  if (bytes.empty() || board_.payload_checks() == transport::shm::PayloadChecks::kOn) return std::nullopt;
  return board_.domain().heap().offset_of(bytes.data(), Bytes{bytes.size()});
}

Fold fold_of(const Fingerprint& fingerprint, int ranks, std::span<const double> factors) {
  return {.type = fingerprint.dtype, .op = fingerprint.reduce_op, .ranks = ranks, .factors = factors};
}

std::vector<double> factors_of(std::span<const Exposed> peers) {
  std::vector<double> factors;
  factors.reserve(peers.size());
  for (const Exposed& peer : peers) factors.push_back(peer.header.factor);
  return factors;
}

void copy(ByteSpan to, const std::byte* from) {
  if (!to.empty() && to.data() != from) std::memcpy(to.data(), from, to.size());
}

Status take(ByteSpan to, const Exposed& from, std::size_t at, std::size_t lane) {
  if (to.empty()) return {};
  LOCKSTEP_ASSIGN(const std::byte* bytes, from.window(at, lane + to.size()));
  copy(to, bytes + lane);
  return {};
}

Status name_missing(const transport::shm::Board& board, std::uint64_t sequence, const Status& status) {
  const std::vector<Rank> missing = board.absent_from(sequence);
  if (missing.empty()) return status;
  Cause cause = status.cause();
  cause.peer.reset();
  cause.missing = missing;
  // How long is said already: "waited 30.0 s for rank 3".
  const std::string_view said = status.message();
  const std::string_view waited =
      said.starts_with("waited ") ? said.substr(0, said.find(" for rank ")) : "waited";
  return Status::timeout(cat(waited, " for rank ", base::ranks_text(missing)), std::move(cause));
}

Status settle(const LocalCall& call, const Status& status) {
  if (status.ok()) return status;
  if (call.spans_hosts && status.failure() == Failure::kMissingRanks) return status;
  const Rank rank = call.board.rank_of(call.board.index());
  (void)call.board.fail(in_operation(rank, call.fingerprint, status));
  // What the monitor has recorded names no operation.
  return in_operation(rank, call.fingerprint, call.board.known_failure());
}

}  // namespace lockstep::collective

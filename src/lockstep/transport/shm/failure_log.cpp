#include "lockstep/transport/shm/failure_log.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <ranges>
#include <tuple>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/base/types.h"

namespace lockstep::transport::shm {
namespace {

// How long a reader waits for the one who is writing the failure down.
constexpr Duration kWritingLimit = std::chrono::milliseconds(100);

// An answer of another host that is still to come is waited for so many times as long as news.
constexpr int kAskedTimes = 3;

// Which of two failures of different hosts counts. One without an operation is later than all that have one.
bool is_earlier(const Status& a, const Status& b) {
  const auto place = [](const Status& status) {
    const Cause& cause = status.cause();
    constexpr Rank kNobody{std::numeric_limits<int>::max()};
    return std::tuple(cause.sequence.value_or(std::numeric_limits<std::uint64_t>::max()),
                      cause.peer.value_or(kNobody), cause.rank.value_or(kNobody), status.message());
  };
  return place(a) < place(b);
}

}  // namespace

bool FailureLog::Record::write(const Status& status) {
  if (is_begun()) return false;
  const Buffer written = base::write_status(status);  // first: without memory for it nothing is begun
  std::uint32_t expected = kNothing;
  if (!state.compare_exchange_strong(expected, kWriting)) return false;
  size = static_cast<std::uint32_t>(written.size());
  at = Clock::steady().now().time_since_epoch().count();
  std::memcpy(bytes, written.data(), written.size());
  seal = sealed();
  state.store(kWritten, std::memory_order_release);
  return true;
}

void FailureLog::Record::close() {
  std::uint32_t expected = kNothing;
  (void)state.compare_exchange_strong(expected, kClosed);
}

Status FailureLog::Record::read() const {
  std::uint32_t now = state.load(std::memory_order_acquire);
  const Deadline patience = Clock::steady().in(kWritingLimit);
  while (now == kWriting && !patience.expired()) {
    ::sched_yield();
    now = state.load(std::memory_order_acquire);
  }
  if (now == kNothing || now == kClosed || now == kWriting) return {};
  if (!is_intact()) {
    return Status::disconnected("the record of the group's failure in shared memory has changed",
                                {.failure = Failure::kCorruptFrame});
  }
  return base::parse_status(ByteView(bytes).first(std::min<std::size_t>(size, sizeof(bytes))));
}

bool FailureLog::Record::is_intact() const {
  const std::uint32_t now = state.load(std::memory_order_acquire);
  return now == kNothing || now == kClosed || now == kWriting || (now == kWritten && seal == sealed());
}

std::uint64_t FailureLog::Record::sealed() const {
  const ByteView used = ByteView(bytes).first(std::min<std::size_t>(size, sizeof(bytes)));
  return (std::uint64_t{base::crc32c(used)} << 32 | size) ^ static_cast<std::uint64_t>(at);
}

bool FailureLog::merge(const Status& status, Duration limit) {
  if (record(status)) return true;
  if (is_final(limit) || !is_earlier(status, earliest(limit))) return false;
  return std::ranges::any_of(records, [&](Record& place) { return place.write(status); });
}

// Who began to write the first one may have died, or its time may be lost: then there is nothing to wait for.
bool FailureLog::is_final(Duration limit) const {
  const Record& first = records[0];
  if (limit == Duration::zero() || first.read().ok() || !first.is_intact()) return true;
  const std::uint32_t now = telling.load(std::memory_order_acquire);
  if (now == kAgreed) return true;
  const bool asks = now == kAsks || now == kGivenBack;
  return Clock::steady().now() >= base::TimePoint(Duration(first.at)) + (asks ? merges_for(limit) : limit);
}

Duration FailureLog::merges_for(Duration limit) const {
  const std::uint32_t now = telling.load(std::memory_order_acquire);
  return now == kNobody || now == kTooLate ? limit : kAskedTimes * limit;
}

bool FailureLog::claim_telling(Duration limit) {
  std::uint32_t given_back = kGivenBack;
  if (telling.compare_exchange_strong(given_back, kAsks)) return true;
  std::uint32_t nobody = kNobody;
  return telling.compare_exchange_strong(nobody, is_final(limit) ? kTooLate : kAsks);
}

void FailureLog::end_telling(bool all_answered) {
  std::uint32_t asks = kAsks;
  if (telling.load(std::memory_order_acquire) != kAsks) return;
  // Who has looked already whether it is final, and writes only now, finds no place.
  if (all_answered) {
    for (Record& place : std::views::reverse(records))
      place.close();  // none is left open behind a closed one
  }
  (void)telling.compare_exchange_strong(asks, all_answered ? kAgreed : kGaveUp);
}

void FailureLog::give_back_telling() {
  std::uint32_t asks = kAsks;
  if (!telling.compare_exchange_strong(asks, kGivenBack)) telling.store(kNobody);
}

Status FailureLog::earliest(Duration limit) const {
  if (!any()) return {};
  if (!records[0].is_intact()) return records[0].read();
  Status earliest;
  for (const Record& place : records) {
    if (!place.is_begun()) break;
    if (!place.is_intact()) continue;
    const Status status = place.read();
    const bool late = &place != records.data() && place.at - records[0].at >= merges_for(limit).count();
    if (!status.ok() && !late && (earliest.ok() || is_earlier(status, earliest))) earliest = status;
  }
  if (!earliest.ok()) return earliest;
  return Status::aborted("the group has failed; the rank that noticed it died before it could say why");
}

}  // namespace lockstep::transport::shm

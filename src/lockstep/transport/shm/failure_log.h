// The FailureLog of a group on one host: its first failure, and those of other hosts that may count instead.
//
// Lies in shared memory; zero-filled memory is a valid one.
// Thread safety: any thread of any process. Nothing waits for one that has died.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/status_bytes.h"

namespace lockstep::transport::shm {

struct FailureLog {
  // Written once, by whoever has changed its state first.
  struct Record {
    // Far from each other: a changed bit makes none of them. A closed one stays empty.
    enum State : std::uint32_t {
      kNothing = 0,
      kClosed = 0x3a86d2c3,
      kWriting = 0x5752b4a5,
      kWritten = 0xa5d04e3c,
    };
    std::atomic<std::uint32_t> state;
    std::uint32_t size;
    std::int64_t at;     // nanoseconds of the host's steady clock
    std::uint64_t seal;  // of all but the state
    std::byte bytes[base::kMaxStatusSize];

    bool write(const Status& status);
    // Ok if it was never written: who began may have died. kCorruptFrame if something else has changed it.
    Status read() const;
    bool is_begun() const {
      const std::uint32_t now = state.load(std::memory_order_acquire);
      return now != kNothing && now != kClosed;
    }
    void close();
    bool is_intact() const;
    std::uint64_t sealed() const;
  };

  bool any() const { return records[0].is_begun(); }
  // The first one of this host. False if there is one already.
  bool record(const Status& status) { return records[0].write(status); }
  // One of another host. Of those that come within `limit` of the first one here, the earliest counts: of the
  // lowest operation, then of the lowest rank. False if it is not kept.
  bool merge(const Status& status, Duration limit);
  // The one that counts, as far as it is known. Ok if there is none.
  Status earliest(Duration limit) const;
  // Whether none that still comes can count.
  bool is_final(Duration limit) const;
  // True once: for the one who tells other hosts, and asks them what they have. Who began within `limit` is
  // waited for, up to three times that.
  bool claim_telling(Duration limit);
  // By that one: whether every other host has answered. Then nothing that still comes can count.
  void end_telling(bool all_answered);
  // By the one who cannot. Whoever comes next is waited for as that one was.
  void give_back_telling();

  // The first of this host, and those of others that came before it.
  std::array<Record, 4> records;
  enum Telling : std::uint32_t {
    kNobody = 0,
    kTooLate = 0x746f6c64,  // nobody waits for it
    kAsks = 0x61736b73,
    kGivenBack = 0xa7d81e35,  // whoever claims it next asks
    kAgreed = 0x9e8cb5c3,
    kGaveUp = 0x5b1372ec,
  };
  std::atomic<std::uint32_t> telling;

 private:
  // After the first one of this host: how long one of another host may count.
  Duration merges_for(Duration limit) const;
};

}  // namespace lockstep::transport::shm

// LogFile is the open file of a FileStore: it locks it, reads what others wrote, adds records and compacts
// it.
//
// A writer that is killed leaves at most a torn record at the end, which readers ignore and the next writer
// cuts off. A compaction writes a new file beside the old one and renames it over it with the old one still
// locked; whoever has the old one open finds another file under the path, or the record kReplaced in its own,
// and moves.
//
// Thread safety: none; its owner guards it.
// Errors: kDisconnected with kStoreLost when the file was removed or another store has taken its path, which
// is final; kInternal with kCorruptFrame when it is damaged; kNoSpace, and what else the file system says,
// after which the file holds what it held before. Does not: wait, retry, or survive the crash of its host
// (only a compaction is synced to the disk).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/store/file_lock.h"
#include "lockstep/store/file_log.h"
#include "lockstep/store/key_values.h"

namespace lockstep::store {

class LogFile {
 public:
  // The first begin() makes the file if there is none, and asks for LockKind::kExclusive.
  explicit LogFile(std::string path) : path_(std::move(path)) {}
  // Another handle on the same store, whose file must exist.
  LogFile sibling() const { return {path_, identity_}; }

  enum class Begun : std::uint8_t {
    kYes,
    kLocked,    // by another
    kReplaced,  // the file says that a compacted one has its place, but the path does not lead there (yet)
  };
  // Locks the file and brings state() up to date. After kYes, end() must follow.
  Result<Begun> begin(LockKind kind);
  void end();

  // Between begin() and end().
  KeyValues& state() { return state_; }
  const KeyValues& state() const { return state_; }
  // Adds the record of a change that state() has already made; needs LockKind::kExclusive. After an error
  // state() is read anew by the next begin().
  Status commit(const LogRecord& record);
  // Forgets a change that was not committed: the next begin() reads state() anew.
  void discard();

  const std::string& path() const { return path_; }
  // A file is compacted when it is larger than this and than four times what it holds.
  static constexpr off_t kCompactSize = 1 << 20;

 private:
  LogFile(std::string path, std::optional<LogIdentity> identity)
      : path_(std::move(path)), identity_(identity) {}
  // What begin() found after it had the lock.
  enum class Found : std::uint8_t { kCurrent, kReplaced };

  Status open();
  Result<Found> look();
  Result<Found> read_records(off_t size);
  Status read_header(off_t size);
  Status write_record(const LogRecord& record);
  Status write_header(int fd);
  Status write_at(int fd, ByteView bytes, off_t offset);
  Status compact();
  Status write_snapshot(int fd, off_t& size);
  Status lost(std::string_view why) const;

  void hold(UniqueFd fd);

  const std::string path_;
  UniqueFd fd_;
  // Closes fd_ in a forked child, which would otherwise keep the lock of a parent that is killed.
  std::unique_ptr<base::ForkGuard> guard_;
  std::optional<LogIdentity> identity_;  // nothing until the first header was read or written
  KeyValues state_;                      // of the records before end_
  off_t end_ = 0;
  off_t file_size_ = 0;              // with the torn record, if there is one
  off_t compact_at_ = kCompactSize;  // no compaction below this size
};

}  // namespace lockstep::store

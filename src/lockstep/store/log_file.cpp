#include "lockstep/store/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <new>
#include <tuple>
#include <utility>

#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"
#include "lockstep/store/logger.h"
#include "lockstep/store/store_errors.h"

namespace lockstep::store {

namespace {

constexpr off_t kReadStep = 1 << 20;
constexpr int kMostMoves = 3;  // renames that begin() follows in one call

// All of `out`, or an error.
Status read_at(int fd, ByteSpan out, off_t offset) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::from_errno("the file cannot be read", errno);
    if (got == 0) return Status::internal("the file became shorter while it was read");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
  return {};
}

}  // namespace

Status LogFile::lost(std::string_view why) const {
  return Status::disconnected(cat("the file ", why, "; the store is lost"), {.failure = Failure::kStoreLost});
}

void LogFile::discard() {
  state_ = KeyValues();
  end_ = 0;
}

void LogFile::hold(UniqueFd fd) {
  guard_.reset();  // before its descriptor is closed and the number means another file
  fd_ = std::move(fd);
  if (fd_) guard_ = std::make_unique<base::ForkGuard>(fd_.get());
}

Status LogFile::open() {
  UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC | (identity_ ? 0 : O_CREAT), 0600));
  if (!fd) {
    if (errno == ENOENT && identity_) return lost("was removed");
    return Status::from_errno("the file cannot be opened for reading and writing", errno);
  }
  hold(std::move(fd));
  discard();
  return {};
}

Result<LogFile::Begun> LogFile::begin(LockKind kind) {
  for (int moves = 0; moves < kMostMoves; ++moves) {
    if (guard_ && guard_->in_child()) {
      return Status::invalid("it was opened before this process was forked; open it again",
                             {.failure = Failure::kForked});
    }
    if (!fd_) LOCKSTEP_TRY(open());
    LOCKSTEP_ASSIGN(const bool locked, try_lock_file(fd_.get(), identity_ ? kind : LockKind::kExclusive));
    if (!locked) return Begun::kLocked;
    const Result<Found> found = look();
    if (found.ok() && *found == Found::kCurrent) return Begun::kYes;
    end();
    if (!found.ok()) return found.status();
    hold({});
  }
  return Begun::kReplaced;
}

void LogFile::end() { unlock_file(fd_.get()); }

Result<LogFile::Found> LogFile::look() try {
  struct stat ours = {}, at_path = {};
  if (::fstat(fd_.get(), &ours) != 0) {
    if (errno == ESTALE) return Found::kReplaced;  // another host has removed or replaced it
    return Status::from_errno("the file cannot be examined", errno);
  }
  if (::stat(path_.c_str(), &at_path) != 0) {
    if (errno != ENOENT) return Status::from_errno("the file cannot be examined", errno);
    // Removed between our open and our lock: whoever creates a store makes it again.
    if (!identity_) return Found::kReplaced;
    return lost("was removed");
  }
  if (!S_ISREG(at_path.st_mode)) return Status::invalid("the path is not that of a plain file");
  if (at_path.st_ino != ours.st_ino || at_path.st_dev != ours.st_dev) return Found::kReplaced;
  file_size_ = ours.st_size;
  if (end_ == 0) LOCKSTEP_TRY(read_header(ours.st_size));
  return read_records(file_size_);
} catch (const std::bad_alloc&) {
  return out_of_memory("the file could not be read");
}

Status LogFile::read_header(off_t size) {
  std::array<std::byte, kLogHeaderSize> header{};
  const ByteSpan part = ByteSpan(header).first(std::min(header.size(), static_cast<std::size_t>(size)));
  LOCKSTEP_TRY(read_at(fd_.get(), part, 0));
  const bool torn = is_torn_log_header(part);
  // Removed, and someone else is just making it anew.
  if (torn && identity_) return lost("belongs to another store now");
  if (torn) {
    base::random_bytes(identity_.emplace());
    if (Status status = write_header(fd_.get()); !status.ok()) {
      identity_.reset();
      return status;
    }
    file_size_ = kLogHeaderSize;
  } else {
    LOCKSTEP_ASSIGN(const LogIdentity found, parse_log_header(part));
    if (identity_ && found != *identity_) return lost("belongs to another store now");
    identity_ = found;
  }
  end_ = kLogHeaderSize;
  return {};
}

Result<LogFile::Found> LogFile::read_records(off_t size) {
  if (size < end_) return lost("was cut by someone else");
  Buffer buffer;
  off_t step = kReadStep;
  while (end_ < size) {
    buffer.resize(static_cast<std::size_t>(std::min(step, size - end_)));
    LOCKSTEP_TRY(read_at(fd_.get(), buffer, end_));
    step = kReadStep;
    ByteView rest = buffer;
    while (!rest.empty()) {
      const ParsedRecord parsed = parse_record(rest);
      if (parsed.kind == ParsedRecord::Kind::kTorn) {
        const off_t needed = static_cast<off_t>(parsed.size);
        if (needed > size - end_) return Found::kCurrent;  // torn for good
        step = std::max(step, needed);
        break;
      }
      if (parsed.kind == ParsedRecord::Kind::kDamaged) {
        return Status::internal(cat("the file is damaged at byte ", end_, "; remove it and start again"),
                                {.failure = Failure::kCorruptFrame});
      }
      if (parsed.record.op == LogOp::kReplaced) return Found::kReplaced;
      LOCKSTEP_TRY(apply_record(parsed.record, state_).with_prefix(cat("at byte ", end_, " of the file ")));
      end_ += static_cast<off_t>(parsed.size);
      rest = rest.subspan(parsed.size);
    }
  }
  return Found::kCurrent;
}

Status LogFile::write_at(int fd, ByteView bytes, off_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Status::from_errno("the file cannot be written", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
  return {};
}

Status LogFile::write_header(int fd) {
  const auto header = encode_log_header(*identity_);
  return write_at(fd, header, 0);
}

Status LogFile::commit(const LogRecord& record) {
  if (Status status = write_record(record); !status.ok()) {
    discard();
    return status;
  }
  if (end_ < compact_at_ || static_cast<std::size_t>(end_) < 4 * state_.bytes()) return {};
  const Status compacted = compact();
  compact_at_ = compacted.ok() ? kCompactSize : 2 * end_;
  // The change itself is safe, so this is no error of the caller's.
  if (!compacted.ok()) {
    kLog.warn(cat("FileStore ", path_, " stays uncompacted at ", end_, " bytes: ", compacted.message()));
  }
  return {};
}

Status LogFile::write_record(const LogRecord& record) try {
  Buffer bytes;
  LOCKSTEP_TRY(encode_record(record, bytes));
  if (file_size_ > end_ && ::ftruncate(fd_.get(), end_) != 0) {
    return Status::from_errno("the torn end of the file cannot be cut off", errno);
  }
  if (Status status = write_at(fd_.get(), bytes, end_); !status.ok()) {
    // Were this to fail too, the rest would be a torn record, which the next writer cuts off.
    std::ignore = ::ftruncate(fd_.get(), end_);
    return status;
  }
  end_ += static_cast<off_t>(bytes.size());
  file_size_ = end_;
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory("the record could not be made");
}

Status LogFile::compact() try {
  const std::string new_path = path_ + ".new";
  struct stat old = {};
  if (::fstat(fd_.get(), &old) != 0) return Status::from_errno("the file cannot be examined", errno);
  // Only who holds the lock writes this file, so what lies there is a killed writer's.
  UniqueFd fresh(::open(new_path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fresh) return Status::from_errno(cat(new_path, " cannot be made"), errno);
  off_t size = 0;
  Status status = write_snapshot(fresh.get(), size);
  // In this order, because a change of owner may take rights away.
  if (status.ok() && (::fchown(fresh.get(), old.st_uid, old.st_gid) != 0 ||
                      ::fchmod(fresh.get(), old.st_mode & 0777) != 0)) {
    status = Status::from_errno(cat(new_path, " cannot get the owner and the rights of the old file"), errno);
  }
  if (status.ok() && ::fdatasync(fresh.get()) != 0) {
    status = Status::from_errno(cat(new_path, " cannot be synced"), errno);
  }
  if (status.ok()) {
    // Locked before anyone can find it, because begin() has promised a lock until end().
    const Result<bool> locked = try_lock_file(fresh.get(), LockKind::kExclusive);
    if (!locked.ok() || !*locked) status = Status::internal(cat(new_path, " cannot be locked"));
  }
  if (status.ok() && ::rename(new_path.c_str(), path_.c_str()) != 0) {
    status = Status::from_errno(cat(new_path, " cannot take the place of the old file"), errno);
  }
  if (!status.ok()) {
    ::unlink(new_path.c_str());
    return status;
  }
  // For hosts whose view of the folder is behind: they read this in the file that they still have open.
  Buffer mark;
  if (encode_record({.op = LogOp::kReplaced, .entries = {}}, mark).ok()) {
    std::ignore = write_at(fd_.get(), mark, end_);
  }
  hold(std::move(fresh));
  end_ = file_size_ = size;
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory("the compacted file could not be made");
}

Status LogFile::write_snapshot(int fd, off_t& size) {
  LOCKSTEP_TRY(write_header(fd));
  size = kLogHeaderSize;
  Status status;
  Buffer pending;
  const auto flush = [&] {
    if (status.ok()) status = write_at(fd, pending, size);
    size += static_cast<off_t>(pending.size());
    pending.clear();
  };
  const auto add = [&](LogOp op, std::string_view name, ByteView value) {
    if (status.ok()) status = encode_record({.op = op, .entries = {{name, value}}}, pending);
    if (pending.size() >= static_cast<std::size_t>(kReadStep)) flush();
  };
  state_.visit([&](std::string_view name, ByteView value) { add(LogOp::kSet, name, value); },
               [&](std::string_view name, ByteView value) { add(LogOp::kPush, name, value); });
  flush();
  return status;
}

}  // namespace lockstep::store

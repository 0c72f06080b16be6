#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/log_file.h"
#include "lockstep/store/logger.h"
#include "lockstep/store/meeting_place.h"
#include "lockstep/store/round_keys.h"

namespace lockstep::store {
namespace {

using base::quoted;

Status check_owner(const std::string& path, const struct stat& info) {
  if (info.st_uid == ::geteuid()) return {};
  return Status::invalid(cat("The rendezvous file ", quoted(path), " belongs to user ", info.st_uid,
                             ", not to this one (", ::geteuid(), "). Use a path of your own."),
                         {.failure = Failure::kRejected});
}

// Before it is opened, which writes to a file that is empty.
Status check_owner_if_there(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? check_owner(path, info) : Status();
}

// What the file holds is believed, the secret among it: so no other user may read or write it.
Status keep_to_this_user(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return Status::from_errno(cat("Cannot look at ", quoted(path)), errno);
  LOCKSTEP_TRY(check_owner(path, info));
  if ((info.st_mode & 077) != 0 && ::chmod(path.c_str(), 0600) != 0)
    return Status::from_errno(cat("Cannot take other users' rights to ", quoted(path), " away"), errno);
  return {};
}

// Others hold the lock for microseconds at a time.
bool lock_soon(LogFile& file) {
  const Deadline deadline = Clock::steady().in(std::chrono::seconds(1));
  while (true) {
    const auto locked = file.begin(LockKind::kExclusive);
    if (!locked.ok()) return false;
    if (*locked == LogFile::Begun::kYes) return true;
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Result<MeetingPlace> open_file_meeting(const std::string& path, Duration timeout, const Clock& clock) {
  LOCKSTEP_TRY(check_owner_if_there(path));
  LOCKSTEP_ASSIGN(std::unique_ptr<FileStore> store,
                  FileStore::open(path, {.timeout = timeout, .clock = &clock}));
  LOCKSTEP_TRY(keep_to_this_user(path));
  MeetingPlace place;
  place.store = std::move(store);
  return place;
}

void remove_finished_file(const std::string& path) {
  LogFile file(path);
  if (!lock_soon(file)) return;
  const std::vector<std::string> keys = file.state().list_keys();
  const bool finished =
      file.state().entries() == keys.size() && std::all_of(keys.begin(), keys.end(), RoundKeys::is_tombstone);
  if (finished && ::unlink(path.c_str()) != 0) {
    const Status why =
        Status::from_errno(cat("The rendezvous file ", quoted(path), " could not be removed"), errno);
    kRendezvousLog.warn(why.message());
  }
  file.end();
}

}  // namespace lockstep::store

// The error file: how a rank tells the launcher, typed, why it failed.
//
// A rank's path is in LOCKSTEP_ERROR_FILE. The first error that a process writes stays: what follows is
// mostly its consequence. The file is JSON (docs/launching.md has its fields) and appears whole or not at
// all. A path below /proc/self/fd names an inherited memfd instead: that is how a spawned rank tells its
// parent.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::base {

struct ErrorRecord {
  Status status;
  std::string where = {};  // "file.cpp:42"; empty if unknown
  int pid = 0;
  std::string host = {};
};

// Writes `status` with this process's pid and host. An existing file is kept, which is not an error.
Status write_error_file(const std::string& path, const Status& status);

// Understands our own files and those of torch's @record. kInvalid if it is neither (or above 1 MiB); the
// caller asks first whether there is one.
Result<ErrorRecord> read_error_file(const std::string& path);

// Where the library itself says what has happened to this rank: rendezvous() that gave up, the failure that
// ended a group. Only for the launcher's error file: a spawned rank's function returns its own error.
// Does nothing, and cannot fail, where there is no file.
class ErrorNote {
 public:
  ErrorNote() = default;
  explicit ErrorNote(const Environment& environment);

  void write(const Status& status) const;
  // The rank goes on in spite of it.
  void withdraw() const;

 private:
  std::string path_;
};

// The same fields, for other messages that carry an error.
std::string error_to_json(const ErrorRecord& record);
Result<ErrorRecord> error_from_json(std::string_view text);

}  // namespace lockstep::base

namespace lockstep {
using base::ErrorNote;
using base::ErrorRecord;
}  // namespace lockstep

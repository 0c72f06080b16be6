// The 32-byte secret that the ranks of one job share.
//
// It lives in its own page, which is left out of core dumps, kept out of swap where RLIMIT_MEMLOCK allows
// it, and wiped when destroyed. A forked child keeps it, as it keeps all memory: a page of zeros there would
// be a secret that everybody knows. A program that is executed gets it by descriptor or 0600 file only. It
// is never printed, and has no conversion to text.
// Thread safety: immutable; shared by every connection of a job.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::base {

constexpr std::size_t kSecretSize = 32;

class Secret {
 public:
  // Fresh random bytes.
  static Secret generate();
  // The agreed constant of jobs that said `insecure`: frames are checked for integrity, nobody is kept out.
  static Secret insecure();
  // The file holds 64 hexadecimal digits (whitespace around them is ignored) or 32 raw bytes. It must be a
  // regular file that belongs to this user or root, and that nobody else can write or read; the error says
  // which command mends it. Links are followed and the target is judged, as a mounted Kubernetes secret
  // needs (a symlink to a root-owned file under a ..data folder). A file of root's may be readable by its
  // group, since that is how such a mount with an fsGroup reaches a user who is not root.
  static Result<Secret> from_file(const std::string& path);
  // Bytes that came over a channel which only this user's processes can read. The caller wipes its own copy.
  static Secret from_bytes(std::span<const std::byte, kSecretSize> bytes);
  // As the launcher passes it: 32 bytes at offset 0 of a memfd. Does not close or move the descriptor.
  static Result<Secret> from_fd(int fd);

  ByteView bytes() const;
  bool is_insecure() const;
  // A sealed memfd that holds the secret, close-on-exec; for a child it is made inheritable by the caller.
  Result<UniqueFd> to_memfd() const;
  // Creates `path` with mode 0600; an existing file is an error, never overwritten.
  Status to_new_file(const std::string& path) const;

 private:
  struct Page;
  explicit Secret(std::shared_ptr<const Page> page) : page_(std::move(page)) {}
  // Shared: copies of a Secret are handles to the one page.
  std::shared_ptr<const Page> page_;
};

// The rule of Secret::from_file for a file with this owner and mode (st_mode), read by user `self`. Pure.
struct SecretFileAccess {
  uid_t owner = 0;
  mode_t mode = 0;
  uid_t self = 0;
};
Status check_secret_file(const std::string& path, const SecretFileAccess& access);

}  // namespace lockstep::base

namespace lockstep {
using base::Secret;
}

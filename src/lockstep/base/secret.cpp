#include "lockstep/base/secret.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "lockstep/base/check.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"

namespace lockstep::base {

// One page of its own, so that what is said to the kernel about it concerns nothing else.
struct Secret::Page {
  Page() : size(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LOCKSTEP_CHECK(address != MAP_FAILED, "there is no memory for one page");
    data = static_cast<std::byte*>(address);
    LOCKSTEP_CHECK(madvise(data, size, MADV_DONTDUMP) == 0,
                   "the kernel cannot leave a page out of core dumps");
    (void)mlock(data, size);  // RLIMIT_MEMLOCK may forbid it; then the page may be swapped out
  }
  ~Page() {
    explicit_bzero(data, size);
    munmap(data, size);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  ByteSpan secret() { return {data, kSecretSize}; }
  ByteView secret() const { return {data, kSecretSize}; }

  const std::size_t size;
  std::byte* data = nullptr;
};

namespace {

constexpr std::size_t kMaxFileSize = 256;

// Wiped when it goes, because it held a secret.
struct Scratch {
  Scratch() = default;
  ~Scratch() { explicit_bzero(bytes.data(), bytes.size()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::array<char, kMaxFileSize> bytes{};
  std::size_t size = 0;
  std::string_view text() const { return {bytes.data(), size}; }
};

std::string permissions_text(mode_t mode) {
  const char digits[] = {'0', static_cast<char>('0' + (mode >> 6 & 7)),
                         static_cast<char>('0' + (mode >> 3 & 7)), static_cast<char>('0' + (mode & 7))};
  return {digits, sizeof(digits)};
}

Status read_whole(int fd, const std::string& path, Scratch& out) {
  while (out.size < out.bytes.size()) {
    const ssize_t count = read(fd, out.bytes.data() + out.size, out.bytes.size() - out.size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Status::from_errno(cat("cannot read secret file ", quoted(path)), errno);
    if (count == 0) return {};
    out.size += static_cast<std::size_t>(count);
  }
  return {};
}

std::optional<int> digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// 32 raw bytes, or 64 digits with whitespace around them.
bool decode(std::string_view content, ByteSpan out) {
  if (content.size() == kSecretSize) {
    std::memcpy(out.data(), content.data(), kSecretSize);
    return true;
  }
  const std::string_view digits = trim(content);
  if (digits.size() != 2 * kSecretSize) return false;
  for (std::size_t i = 0; i < kSecretSize; ++i) {
    const auto high = digit_value(digits[2 * i]);
    const auto low = digit_value(digits[2 * i + 1]);
    if (!high || !low) return false;
    out[i] = static_cast<std::byte>(*high << 4 | *low);
  }
  return true;
}

const Digest& insecure_constant() {
  static const Digest kConstant = sha256(bytes_of("lockstep: no secret, insecure was asked for"));
  return kConstant;
}

Status write_whole(int fd, ByteView bytes, const std::string& what) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Status::from_errno(cat("cannot write ", what), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace

Status check_secret_file(const std::string& path, const SecretFileAccess& access) {
  if (S_ISDIR(access.mode))
    return Status::invalid(cat("secret file ", quoted(path), " is a folder; name the file inside it"));
  if (!S_ISREG(access.mode))
    return Status::invalid(cat("secret file ", quoted(path), " is not a regular file"));
  if (access.owner != access.self && access.owner != 0) {
    return Status::invalid(cat("secret file ", quoted(path), " belongs to user ", access.owner,
                               ", not to this user (", access.self, ") or root; mend it with: chown ",
                               access.self, " ", path, " && chmod 600 ", path));
  }
  const mode_t allowed = access.owner == 0 ? 0740 : 0700;
  if ((access.mode & 0777 & ~allowed) != 0) {
    return Status::invalid(
        cat("secret file ", quoted(path), " has mode ", permissions_text(access.mode),
            ", so that others can read or write it; mend it with: chmod 600 ", path,
            " (for a mounted Kubernetes secret set defaultMode: 0400, or 0440 with an fsGroup)"));
  }
  return {};
}

Secret Secret::from_bytes(std::span<const std::byte, kSecretSize> bytes) {
  auto page = std::make_shared<Page>();
  std::memcpy(page->data, bytes.data(), kSecretSize);
  return Secret(std::move(page));
}

Secret Secret::generate() {
  auto page = std::make_shared<Page>();
  random_bytes(page->secret());
  return Secret(std::move(page));
}

Secret Secret::insecure() {
  auto page = std::make_shared<Page>();
  std::ranges::copy(insecure_constant(), page->data);
  return Secret(std::move(page));
}

Result<Secret> Secret::from_file(const std::string& path) {
  // O_NONBLOCK: a FIFO at that place does not hold us up.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) return Status::from_errno(cat("cannot open secret file ", quoted(path)), errno);
  struct stat file {};
  if (fstat(fd.get(), &file) != 0)
    return Status::from_errno(cat("cannot inspect secret file ", quoted(path)), errno);
  // Judged on the open descriptor, so that nothing can be exchanged in between.
  LOCKSTEP_TRY(check_secret_file(path, {.owner = file.st_uid, .mode = file.st_mode, .self = geteuid()}));
  Scratch content;
  LOCKSTEP_TRY(read_whole(fd.get(), path, content));
  auto page = std::make_shared<Page>();
  if (!decode(content.text(), page->secret())) {
    return Status::invalid(
        cat("secret file ", quoted(path), " (", Bytes{static_cast<std::uint64_t>(file.st_size)},
            ") holds neither 64 hexadecimal digits nor 32 raw bytes; make one with: lockstep ", "secret ",
            path, ".new"));
  }
  return Secret(std::move(page));
}

Result<Secret> Secret::from_fd(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) {
    return Status::invalid(cat("descriptor ", fd,
                               ", which should hold the job's secret, is not open: was it ",
                               "inherited from the launcher?"));
  }
  if (!S_ISREG(file.st_mode) || file.st_size != static_cast<off_t>(kSecretSize))
    return Status::invalid(
        cat("descriptor ", fd, " does not hold the job's secret: it is not a memfd of 32 bytes"));
  auto page = std::make_shared<Page>();
  ssize_t count = 0;
  do {
    count = pread(fd, page->data, kSecretSize, 0);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return Status::from_errno(cat("cannot read the job's secret from descriptor ", fd), errno);
  if (count != static_cast<ssize_t>(kSecretSize))
    return Status::invalid(cat("descriptor ", fd, " gave ", count, " bytes of the job's secret, not 32"));
  return Secret(std::move(page));
}

ByteView Secret::bytes() const { return page_->secret(); }

bool Secret::is_insecure() const { return equal_in_constant_time(bytes(), insecure_constant()); }

Result<UniqueFd> Secret::to_memfd() const {
  UniqueFd fd(memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Status::from_errno("cannot make a memfd for the job's secret", errno);
  LOCKSTEP_TRY(write_whole(fd.get(), bytes(), "the job's secret to a memfd"));
  // A memfd starts with mode 0777, which counts when /proc/<pid>/fd/<n> is opened.
  if (fchmod(fd.get(), 0400) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
    return Status::from_errno("cannot seal the memfd of the job's secret", errno);
  return fd;
}

Status Secret::to_new_file(const std::string& path) const {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST)
    return Status::invalid(cat("secret file ", quoted(path), " exists already and is not overwritten"));
  if (!fd) return Status::from_errno(cat("cannot make secret file ", quoted(path)), errno);
  Scratch digits;
  for (const std::byte byte : bytes()) {
    digits.bytes[digits.size++] = "0123456789abcdef"[std::to_integer<int>(byte) >> 4];
    digits.bytes[digits.size++] = "0123456789abcdef"[std::to_integer<int>(byte) & 15];
  }
  digits.bytes[digits.size++] = '\n';
  Status status = write_whole(fd.get(), bytes_of(digits.text()), cat("secret file ", quoted(path)));
  if (status.ok() && (fchmod(fd.get(), 0600) != 0 || fsync(fd.get()) != 0))
    status = Status::from_errno(cat("cannot finish secret file ", quoted(path)), errno);
  if (!status.ok()) unlink(path.c_str());  // it is ours: O_EXCL made it
  return status;
}

}  // namespace lockstep::base

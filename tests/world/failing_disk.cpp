// Loaded before everything else (LD_PRELOAD): a disk that fails. While the file that FAILING_DISK names
// exists, pread, pwrite, ftruncate and fdatasync end with EIO. Nothing but a FileStore uses them here.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace {

bool fails() {
  static const char* const file = std::getenv("FAILING_DISK");
  const int before = errno;
  const bool there = file != nullptr && access(file, F_OK) == 0;
  errno = there ? EIO : before;
  return there;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" ssize_t pread(int fd, void* out, size_t size, off_t offset) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  return fails() ? -1 : real(fd, out, size, offset);
}

extern "C" ssize_t pwrite(int fd, const void* in, size_t size, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return fails() ? -1 : real(fd, in, size, offset);
}

extern "C" int ftruncate(int fd, off_t size) noexcept {
  static auto* const real = next<int(int, off_t)>("ftruncate");
  return fails() ? -1 : real(fd, size);
}

extern "C" int fdatasync(int fd) {
  static auto* const real = next<int(int)>("fdatasync");
  return fails() ? -1 : real(fd);
}

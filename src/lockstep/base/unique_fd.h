// An owned file descriptor.
#pragma once

#include <utility>

namespace lockstep::base {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  // Closes what is held. An error of close(2) is not reported: whoever needs it calls fsync first.
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

}  // namespace lockstep::base

namespace lockstep {
using base::UniqueFd;
}

// Hashes, keys and sealed frames, on OpenSSL.
//
// Thread safety: free functions are pure or thread-safe; a Sealer or Opener belongs to one direction of one
// connection and to one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"

namespace lockstep::base {

using Digest = std::array<std::byte, 32>;

Digest sha256(ByteView data);
Digest hmac_sha256(ByteView key, ByteView data);
// RFC 5869, with SHA-256; `key` is not empty, `out` is at most 255 * 32 bytes.
void hkdf_sha256(ByteView key, ByteView salt, std::string_view info, ByteSpan out);
// Takes the same time whatever differs. Different sizes are unequal.
bool equal_in_constant_time(ByteView a, ByteView b);
// From the operating system; aborts if it has none to give, since nothing can go on safely.
void random_bytes(ByteSpan out);

constexpr std::size_t kSealKeySize = 16;  // AES-128-GCM
constexpr std::size_t kSealTagSize = 16;
using SealKey = std::array<std::byte, kSealKeySize>;

// Encrypts and authenticates frames in order; the frame's number is the nonce, so a frame that is repeated,
// dropped or reordered does not open.
class Sealer {
 public:
  explicit Sealer(const SealKey& key);
  ~Sealer();
  Sealer(Sealer&&) noexcept;
  Sealer& operator=(Sealer&&) noexcept;
  // Encrypts `data` in place and writes the tag. `header` is authenticated, not encrypted.
  void seal(ByteView header, ByteSpan data, std::span<std::byte, kSealTagSize> tag);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Opener {
 public:
  explicit Opener(const SealKey& key);
  ~Opener();
  Opener(Opener&&) noexcept;
  Opener& operator=(Opener&&) noexcept;
  // Decrypts in place. An error (kCorruptFrame) leaves `data` unspecified and the Opener dead.
  Status open(ByteView header, ByteSpan data, std::span<const std::byte, kSealTagSize> tag);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::base

#include "lockstep/base/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }
unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

// OpenSSL's calls fail only without memory or without the algorithm, and then nothing can go on safely.
void must(bool done, std::string_view what) { LOCKSTEP_CHECK(done, what); }

// Looking an algorithm up by its name takes locks that all threads share, and longer than a short HMAC, so
// each is looked up once and never given back.
const EVP_MD* sha256_algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  must(algorithm != nullptr, "SHA-256");
  return algorithm;
}

EVP_KDF* hkdf_algorithm() {
  static EVP_KDF* const algorithm = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  must(algorithm != nullptr, "HKDF");
  return algorithm;
}

// HMAC-SHA256 with a key that is none; every call works on a copy, so that no real key stays behind.
const EVP_MAC_CTX* hmac_pattern() {
  static const EVP_MAC_CTX* const pattern = [] {
    EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    EVP_MAC_CTX* const context = EVP_MAC_CTX_new(algorithm);
    EVP_MAC_free(algorithm);
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                     OSSL_PARAM_construct_end()};
    const unsigned char no_key = 0;
    must(context != nullptr && EVP_MAC_init(context, &no_key, 0, parameters) == 1, "HMAC-SHA256");
    return context;
  }();
  return pattern;
}

struct MacContextDeleter {
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};

constexpr std::size_t kNonceSize = 12;
// OpenSSL takes sizes as int.
constexpr std::size_t kMaxUpdate = std::size_t{1} << 30;

struct ContextDeleter {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, ContextDeleter>;

// AES-128-GCM with its key set once; per frame only the nonce changes. The nonce is the frame's number: 64
// bits, little-endian, after four zero bytes.
class Gcm {
 public:
  enum Direction : int { kDecrypt = 0, kEncrypt = 1 };

  Gcm(const SealKey& key, Direction direction) : context_(EVP_CIPHER_CTX_new()) {
    must(context_ != nullptr, "EVP_CIPHER_CTX_new");
    must(EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, raw(key.data()), nullptr, direction) ==
             1,
         "AES-128-GCM with a key");
  }

  EVP_CIPHER_CTX* context() { return context_.get(); }

  void start_frame(ByteView header) {
    unsigned char nonce[kNonceSize] = {};
    std::memcpy(nonce + 4, &frame_, sizeof(frame_));
    ++frame_;
    must(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce, -1) == 1,
         "AES-128-GCM with a nonce");
    for (ByteView rest = header; !rest.empty();) {
      const std::size_t count = std::min(rest.size(), kMaxUpdate);
      int written = 0;
      must(
          EVP_CipherUpdate(context_.get(), nullptr, &written, raw(rest.data()), static_cast<int>(count)) == 1,
          "AES-128-GCM of a header");
      rest = rest.subspan(count);
    }
  }

  // In place. False only when decrypting.
  bool update(ByteSpan data) {
    for (ByteSpan rest = data; !rest.empty();) {
      const std::size_t count = std::min(rest.size(), kMaxUpdate);
      int written = 0;
      if (EVP_CipherUpdate(context_.get(), raw(rest.data()), &written, raw(rest.data()),
                           static_cast<int>(count)) != 1)
        return false;
      rest = rest.subspan(count);
    }
    return true;
  }

  // False if the tag does not fit; only when decrypting.
  bool finish() {
    unsigned char none[16];
    int written = 0;
    return EVP_CipherFinal_ex(context_.get(), none, &written) == 1;
  }

  std::uint64_t frame() const { return frame_; }

 private:
  Context context_;
  std::uint64_t frame_ = 0;
};

}  // namespace

Digest sha256(ByteView data) {
  Digest digest;
  must(EVP_Digest(data.data(), data.size(), raw(digest.data()), nullptr, sha256_algorithm(), nullptr) == 1,
       "SHA-256");
  return digest;
}

Digest hmac_sha256(ByteView key, ByteView data) {
  Digest digest;
  std::size_t size = 0;
  const unsigned char no_key = 0;  // a null key would mean "as before"
  const std::unique_ptr<EVP_MAC_CTX, MacContextDeleter> context(EVP_MAC_CTX_dup(hmac_pattern()));
  must(context != nullptr &&
           EVP_MAC_init(context.get(), key.empty() ? &no_key : raw(key.data()), key.size(), nullptr) == 1 &&
           EVP_MAC_update(context.get(), raw(data.data()), data.size()) == 1 &&
           EVP_MAC_final(context.get(), raw(digest.data()), &size, digest.size()) == 1,
       "HMAC-SHA256");
  return digest;
}

void hkdf_sha256(ByteView key, ByteView salt, std::string_view info, ByteSpan out) {
  LOCKSTEP_CHECK(out.size() <= 255 * sizeof(Digest), "HKDF-SHA256 gives at most 8160 bytes");
  EVP_KDF_CTX* context = EVP_KDF_CTX_new(hkdf_algorithm());
  must(context != nullptr, "HKDF");
  char digest[] = "SHA256";
  // OSSL_PARAM wants pointers to non-const, but does not write through these. An empty one is left out.
  std::array<OSSL_PARAM, 5> parameters;
  parameters.fill(OSSL_PARAM_construct_end());
  std::size_t count = 0;
  parameters[count++] = OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0);
  const auto add = [&](const char* name, ByteView value) {
    if (value.empty()) return;
    auto* data = const_cast<std::byte*>(value.data());
    parameters[count++] = OSSL_PARAM_construct_octet_string(name, data, value.size());
  };
  add(OSSL_KDF_PARAM_KEY, key);
  add(OSSL_KDF_PARAM_SALT, salt);
  add(OSSL_KDF_PARAM_INFO, bytes_of(info));
  const int done = EVP_KDF_derive(context, raw(out.data()), out.size(), parameters.data());
  EVP_KDF_CTX_free(context);
  must(done == 1, "HKDF-SHA256");
}

bool equal_in_constant_time(ByteView a, ByteView b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void random_bytes(ByteSpan out) {
  while (!out.empty()) {
    const ssize_t count = getrandom(out.data(), out.size(), 0);
    if (count < 0) {
      LOCKSTEP_CHECK(errno == EINTR, "getrandom(2) gives no random bytes");
      continue;
    }
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

struct Sealer::Impl {
  Gcm gcm;
};

Sealer::Sealer(const SealKey& key) : impl_(new Impl{Gcm(key, Gcm::kEncrypt)}) {}
Sealer::~Sealer() = default;
Sealer::Sealer(Sealer&&) noexcept = default;
Sealer& Sealer::operator=(Sealer&&) noexcept = default;

void Sealer::seal(ByteView header, ByteSpan data, std::span<std::byte, kSealTagSize> tag) {
  Gcm& gcm = impl_->gcm;
  gcm.start_frame(header);
  must(gcm.update(data) && gcm.finish(), "AES-128-GCM of a frame");
  must(EVP_CIPHER_CTX_ctrl(gcm.context(), EVP_CTRL_AEAD_GET_TAG, kSealTagSize, tag.data()) == 1,
       "AES-128-GCM's tag");
}

struct Opener::Impl {
  Gcm gcm;
  bool dead = false;
};

Opener::Opener(const SealKey& key) : impl_(new Impl{Gcm(key, Gcm::kDecrypt)}) {}
Opener::~Opener() = default;
Opener::Opener(Opener&&) noexcept = default;
Opener& Opener::operator=(Opener&&) noexcept = default;

Status Opener::open(ByteView header, ByteSpan data, std::span<const std::byte, kSealTagSize> tag) {
  Gcm& gcm = impl_->gcm;
  if (impl_->dead) {
    return Status::disconnected(
        "an earlier frame of this connection was corrupt; nothing after it is trusted",
        {.failure = Failure::kCorruptFrame});
  }
  gcm.start_frame(header);
  must(EVP_CIPHER_CTX_ctrl(gcm.context(), EVP_CTRL_AEAD_SET_TAG, kSealTagSize,
                           const_cast<std::byte*>(tag.data())) == 1,
       "AES-128-GCM's tag");
  if (gcm.update(data) && gcm.finish()) return {};
  impl_->dead = true;
  OPENSSL_cleanse(data.data(), data.size());
  return Status::disconnected(
      cat("frame ", gcm.frame() - 1,
          " does not open: its bytes were changed on the way, or a frame was repeated, ",
          "dropped or reordered"),
      {.failure = Failure::kCorruptFrame, .sequence = gcm.frame() - 1});
}

}  // namespace lockstep::base

#include "lockstep/base/crypto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lockstep::base {
namespace {

using ::testing::HasSubstr;

Buffer unhex(std::string_view text) {
  Buffer out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  return out;
}

TEST(Sha256, AnswersOfFips180) {
  EXPECT_EQ(hex(sha256(bytes_of(""))), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(HmacSha256, AnswersOfRfc4231) {
  EXPECT_EQ(hex(hmac_sha256(Buffer(20, std::byte{0x0b}), bytes_of("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(Buffer(20, std::byte{0xaa}), Buffer(50, std::byte{0xdd}))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex(hmac_sha256(Buffer(131, std::byte{0xaa}),
                            bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, TakesAnEmptyKeyAndEmptyData) {
  EXPECT_EQ(hex(hmac_sha256({}, {})), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(HkdfSha256, AnswersOfRfc5869) {
  Buffer out(42);
  const Buffer info = unhex("f0f1f2f3f4f5f6f7f8f9");
  hkdf_sha256(Buffer(22, std::byte{0x0b}), unhex("000102030405060708090a0b0c"), text_of(info), out);
  EXPECT_EQ(hex(out), "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  hkdf_sha256(Buffer(22, std::byte{0x0b}), {}, "", out);
  EXPECT_EQ(hex(out), "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

TEST(HkdfSha256, LongInputsAndOutputOfRfc5869) {
  Buffer key, salt, info;
  for (int i = 0; i < 80; ++i) {
    key.push_back(static_cast<std::byte>(i));
    salt.push_back(static_cast<std::byte>(0x60 + i));
    info.push_back(static_cast<std::byte>(0xb0 + i));
  }
  Buffer out(82);
  hkdf_sha256(key, salt, text_of(info), out);
  EXPECT_EQ(
      hex(out),
      "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da32"
      "75600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87");
}

TEST(EqualInConstantTime, ComparesBytesAndSizes) {
  EXPECT_TRUE(equal_in_constant_time({}, {}));
  EXPECT_TRUE(equal_in_constant_time(bytes_of("abc"), bytes_of("abc")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abc"), bytes_of("abd")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abc"), bytes_of("ab")));
}

TEST(RandomBytes, FillsEverythingAndDoesNotRepeat) {
  Buffer a(100'000), b(100'000);
  random_bytes(a);
  random_bytes(b);
  EXPECT_NE(a, b);
  // 64 zero bytes in a row would be a part that was not filled.
  EXPECT_EQ(text_of(a).find(std::string(64, '\0')), std::string_view::npos);
}

SealKey key_of(std::string_view text) {
  SealKey key{};
  const Buffer bytes = unhex(text);
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

TEST(Sealer, FirstFrameIsNistsTestCase) {
  // GCM specification, test cases 1 and 2: a zero key and the zero nonce, which is that of frame 0.
  std::array<std::byte, kSealTagSize> tag{};
  Sealer(SealKey{}).seal({}, {}, tag);
  EXPECT_EQ(hex(tag), "58e2fccefa7e3061367f1d57a4e7455a");
  Buffer data(16);
  Sealer(SealKey{}).seal({}, data, tag);
  EXPECT_EQ(hex(data), "0388dace60b6a392f328c2b971b2fe78");
  EXPECT_EQ(hex(tag), "ab6e47d42cec13bdf53a67b21257bddf");
}

struct Frame {
  Buffer header, data;
  std::array<std::byte, kSealTagSize> tag{};
};

Frame sealed(Sealer& sealer, std::string_view header, std::string_view text) {
  Frame frame{.header = buffer_of(header), .data = buffer_of(text)};
  sealer.seal(frame.header, frame.data, frame.tag);
  return frame;
}

TEST(Opener, OpensFramesInOrder) {
  const SealKey key = key_of("feffe9928665731c6d6a8f9467308308");
  Sealer sealer(key);
  Opener opener(key);
  for (const std::size_t size : {0U, 1U, 16U, 64U, 1000U, 100'000U}) {
    const std::string text(size, 'x');
    Frame frame = sealed(sealer, "header", text);
    EXPECT_EQ(text_of(frame.data) == text, size == 0);
    const Status status = opener.open(frame.header, frame.data, frame.tag);
    ASSERT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(text_of(frame.data), text);
  }
}

TEST(Opener, EqualFramesDoNotLookEqual) {
  Sealer sealer(SealKey{});
  EXPECT_NE(sealed(sealer, "h", "the same").data, sealed(sealer, "h", "the same").data);
}

TEST(Opener, EverySingleBitFlipIsFound) {
  const auto open_after = [](auto change) {
    Sealer sealer(SealKey{});
    Frame frame = sealed(sealer, "head", "some data");
    change(frame);
    return Opener(SealKey{}).open(frame.header, frame.data, frame.tag);
  };
  ASSERT_TRUE(open_after([](Frame&) {}).ok());
  const auto flip = [](std::byte& byte, int bit) { byte ^= static_cast<std::byte>(1 << bit); };
  for (int bit = 0; bit < 8; ++bit) {
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_EQ(open_after([&](Frame& f) { flip(f.header[i], bit); }).failure(), Failure::kCorruptFrame);
    for (std::size_t i = 0; i < 9; ++i)
      EXPECT_EQ(open_after([&](Frame& f) { flip(f.data[i], bit); }).failure(), Failure::kCorruptFrame);
    for (std::size_t i = 0; i < kSealTagSize; ++i)
      EXPECT_EQ(open_after([&](Frame& f) { flip(f.tag[i], bit); }).failure(), Failure::kCorruptFrame);
  }
}

TEST(Opener, RepeatedReorderedAndDroppedFramesDoNotOpen) {
  Sealer sealer(SealKey{});
  const Frame first = sealed(sealer, "", "first");
  const Frame second = sealed(sealer, "", "second");
  const auto open = [](Opener& opener, Frame frame) {
    return opener.open(frame.header, frame.data, frame.tag);
  };
  Opener repeated(SealKey{});
  EXPECT_TRUE(open(repeated, first).ok());
  EXPECT_EQ(open(repeated, first).failure(), Failure::kCorruptFrame);
  Opener dropped(SealKey{});
  EXPECT_EQ(open(dropped, second).failure(), Failure::kCorruptFrame);
}

TEST(Opener, ACorruptFrameIsTheLastOneAndItsBytesAreWiped) {
  Sealer sealer(SealKey{});
  Frame bad = sealed(sealer, "", "text");
  Frame good = sealed(sealer, "", "more");
  bad.tag[0] ^= std::byte{1};
  Opener opener(SealKey{});
  const Status status = opener.open(bad.header, bad.data, bad.tag);
  EXPECT_EQ(status.code(), Code::kDisconnected);
  EXPECT_THAT(std::string(status.message()), HasSubstr("frame 0"));
  EXPECT_EQ(bad.data, Buffer(4));
  EXPECT_EQ(opener.open(good.header, good.data, good.tag).failure(), Failure::kCorruptFrame);
}

TEST(Opener, AnotherKeyDoesNotOpen) {
  Sealer sealer(key_of("00000000000000000000000000000001"));
  Frame frame = sealed(sealer, "", "text");
  EXPECT_FALSE(Opener(SealKey{}).open(frame.header, frame.data, frame.tag).ok());
}

}  // namespace
}  // namespace lockstep::base

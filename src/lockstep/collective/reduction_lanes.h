// For reduction.cpp only: how elements become vectors of accumulators and back, and what is done with two of
// them. Included once per instruction set, inside Highway's foreach_target.
#if defined(LOCKSTEP_COLLECTIVE_REDUCTION_LANES_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_COLLECTIVE_REDUCTION_LANES_H
#undef LOCKSTEP_COLLECTIVE_REDUCTION_LANES_H
#else
#define LOCKSTEP_COLLECTIVE_REDUCTION_LANES_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace lockstep::collective::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- How elements become accumulators and back ----

template <typename T>
struct Plain {
  using Element = T;
  using Acc = T;
  using Tag = hn::ScalableTag<T>;
  using Vec = hn::Vec<Tag>;
  static HWY_INLINE Vec load(const T* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE void store(Vec value, T* to) { hn::StoreU(value, Tag(), to); }
};

// Both 16-bit floats are handled as bits: conversions are ours, so that every target gives the same bits.
struct Bf16 {
  using Element = std::uint16_t;
  using Acc = float;
  using Tag = hn::ScalableTag<float>;
  using Vec = hn::Vec<Tag>;
  using Bits = hn::RebindToUnsigned<Tag>;
  using Narrow = hn::Rebind<std::uint16_t, Tag>;
  static HWY_INLINE Vec load(const std::uint16_t* from) {
    return hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), hn::LoadU(Narrow(), from))));
  }
  static HWY_INLINE void store(Vec value, std::uint16_t* to) {
    const Bits bits;
    const auto raw = hn::BitCast(bits, value);
    const auto odd = hn::And(hn::ShiftRight<16>(raw), hn::Set(bits, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(raw, hn::Add(odd, hn::Set(bits, 0x7fff))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(raw), hn::Set(bits, 0x40));
    const auto is_nan = hn::RebindMask(bits, hn::IsNaN(value));
    const auto out = hn::IfThenElse(is_nan, quiet, rounded);
    hn::StoreU(hn::DemoteTo(Narrow(), hn::BitCast(hn::RebindToSigned<Tag>(), out)), Narrow(), to);
  }
};

HWY_INLINE float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  std::uint32_t mantissa = half & 0x3ffU;
  std::uint32_t bits = 0;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000U | (mantissa << 13) | (mantissa != 0 ? 0x400000U : 0);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    bits = sign;
  } else {
    std::uint32_t shift = 0;
    while ((mantissa & 0x400U) == 0) {
      mantissa <<= 1;
      ++shift;
    }
    bits = sign | ((113 - shift) << 23) | ((mantissa & 0x3ffU) << 13);
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

HWY_INLINE std::uint16_t float_to_half(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  bits &= 0x7fffffffU;
  if (bits > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U | ((bits >> 13) & 0x3ffU));
  if (bits >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // rounds to infinity
  if (bits >= 0x38800000U) {
    const std::uint32_t rounded = bits - 0x38000000U + 0xfffU + ((bits >> 13) & 1U);
    return static_cast<std::uint16_t>(sign | (rounded >> 13));
  }
  if (bits < 0x33000000U) return sign;  // below half of the smallest subnormal
  const std::uint32_t shift = 126 - (bits >> 23);
  const std::uint32_t mantissa = (bits & 0x7fffffU) | 0x800000U;
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t odd = (mantissa >> shift) & 1U;
  return static_cast<std::uint16_t>(sign | ((mantissa + half - 1 + odd) >> shift));
}

struct F16 {
  using Element = std::uint16_t;
  using Acc = float;
  using Tag = hn::ScalableTag<float>;
  using Vec = hn::Vec<Tag>;
#if HWY_TARGET <= HWY_AVX2
  // The processor's own conversions: exact, and to nearest even whatever the mode says.
  using Narrow = hn::Rebind<hwy::float16_t, Tag>;
  static HWY_INLINE Vec load(const std::uint16_t* from) {
    return hn::PromoteTo(Tag(), hn::LoadU(Narrow(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
  static HWY_INLINE void store(Vec value, std::uint16_t* to) {
    hn::StoreU(hn::DemoteTo(Narrow(), value), Narrow(), reinterpret_cast<hwy::float16_t*>(to));
  }
#else
  static HWY_INLINE Vec load(const std::uint16_t* from) {
    HWY_ALIGN float wide[hn::MaxLanes(Tag())];
    for (std::size_t i = 0; i < hn::Lanes(Tag()); ++i) wide[i] = half_to_float(from[i]);
    return hn::Load(Tag(), wide);
  }
  static HWY_INLINE void store(Vec value, std::uint16_t* to) {
    HWY_ALIGN float wide[hn::MaxLanes(Tag())];
    hn::Store(value, Tag(), wide);
    for (std::size_t i = 0; i < hn::Lanes(Tag()); ++i) to[i] = float_to_half(wide[i]);
  }
#endif
};

// ---- What is done with them ----

struct Add {
  template <class V>
  HWY_INLINE V operator()(V acc, V x) const {
    return hn::Add(acc, x);
  }
};
struct Multiply {
  template <class V>
  HWY_INLINE V operator()(V acc, V x) const {
    return hn::Mul(acc, x);
  }
};
// NaN wins; of two equal values the accumulator stays.
template <bool kTakeLess>
struct Select {
  template <class V>
  HWY_INLINE V operator()(V acc, V x) const {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      const auto better = kTakeLess ? hn::Lt(x, acc) : hn::Lt(acc, x);
      const auto take = hn::Or(better, hn::AndNot(hn::IsNaN(acc), hn::IsNaN(x)));
      return hn::IfThenElse(take, x, acc);
    } else {
      return kTakeLess ? hn::Min(acc, x) : hn::Max(acc, x);
    }
  }
};
using Least = Select<true>;
using Greatest = Select<false>;
struct BitAnd {
  template <class V>
  HWY_INLINE V operator()(V acc, V x) const {
    return hn::And(acc, x);
  }
};
struct BitOr {
  template <class V>
  HWY_INLINE V operator()(V acc, V x) const {
    return hn::Or(acc, x);
  }
};
struct BitXor {
  template <class V>
  HWY_INLINE V operator()(V acc, V x) const {
    return hn::Xor(acc, x);
  }
};

}  // namespace lockstep::collective::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per target

// One translation unit, compiled once per instruction set by Highway's foreach_target and chosen at run time.
//
// The loop of every kernel: `kUnroll` vectors of accumulators are filled from the first source, every further
// source is combined into them, then they are finished and stored to every destination. The rest that fills
// no vector goes through a padded copy, so that each element meets exactly the same instructions.
#include "lockstep/collective/reduction.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lockstep/collective/reduction.cpp"
// Three sets cover the machines in use: the baseline, AVX2 and AVX-512 (NEON and SVE are unaffected).
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "lockstep/collective/reduction_lanes.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::collective::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Arrays {
  std::span<const std::byte* const> sources;
  std::span<std::byte* const> destinations;
  std::size_t count;
};

constexpr std::size_t kUnroll = 4;

// Reads the first source as `First`, the others as `Rest`, writes as `Out`; all three accumulate alike.
// `prepare(v, source)` comes before the fold, `finish(v)` after it.
template <class First, class Rest, class Out, class Prepare, class Combine, class Finish>
HWY_INLINE void run(const Arrays& arrays, Prepare prepare, Combine combine, Finish finish) {
  using Tag = typename Rest::Tag;
  using Vec = typename Rest::Vec;
  const std::size_t lanes = hn::Lanes(Tag());
  const auto first = [&](std::size_t at) {
    return reinterpret_cast<const typename First::Element*>(arrays.sources[0]) + at;
  };
  const auto rest = [&](std::size_t source, std::size_t at) {
    return reinterpret_cast<const typename Rest::Element*>(arrays.sources[source]) + at;
  };
  const auto out = [&](std::byte* destination, std::size_t at) {
    return reinterpret_cast<typename Out::Element*>(destination) + at;
  };
  std::size_t i = 0;
  for (; i + kUnroll * lanes <= arrays.count; i += kUnroll * lanes) {
    Vec a0 = prepare(First::load(first(i)), 0);
    Vec a1 = prepare(First::load(first(i + lanes)), 0);
    Vec a2 = prepare(First::load(first(i + 2 * lanes)), 0);
    Vec a3 = prepare(First::load(first(i + 3 * lanes)), 0);
    for (std::size_t s = 1; s < arrays.sources.size(); ++s) {
      a0 = combine(a0, prepare(Rest::load(rest(s, i)), s));
      a1 = combine(a1, prepare(Rest::load(rest(s, i + lanes)), s));
      a2 = combine(a2, prepare(Rest::load(rest(s, i + 2 * lanes)), s));
      a3 = combine(a3, prepare(Rest::load(rest(s, i + 3 * lanes)), s));
    }
    a0 = finish(a0);
    a1 = finish(a1);
    a2 = finish(a2);
    a3 = finish(a3);
    for (std::byte* destination : arrays.destinations) {
      Out::store(a0, out(destination, i));
      Out::store(a1, out(destination, i + lanes));
      Out::store(a2, out(destination, i + 2 * lanes));
      Out::store(a3, out(destination, i + 3 * lanes));
    }
  }
  constexpr std::size_t kMost = hn::MaxLanes(Tag());
  for (; i < arrays.count; i += lanes) {
    const std::size_t left = arrays.count - i < lanes ? arrays.count - i : lanes;
    HWY_ALIGN typename First::Element first_pad[kMost] = {};
    HWY_ALIGN typename Rest::Element rest_pad[kMost] = {};
    HWY_ALIGN typename Out::Element out_pad[kMost];
    std::memcpy(first_pad, first(i), left * sizeof(first_pad[0]));
    Vec acc = prepare(First::load(first_pad), 0);
    for (std::size_t s = 1; s < arrays.sources.size(); ++s) {
      std::memcpy(rest_pad, rest(s, i), left * sizeof(rest_pad[0]));
      acc = combine(acc, prepare(Rest::load(rest_pad), s));
    }
    Out::store(finish(acc), out_pad);
    for (std::byte* destination : arrays.destinations) {
      std::memcpy(out(destination, i), out_pad, left * sizeof(out_pad[0]));
    }
  }
}

struct Same {
  template <class V>
  HWY_INLINE V operator()(V v) const {
    return v;
  }
  template <class V>
  HWY_INLINE V operator()(V v, std::size_t) const {
    return v;
  }
};

// For the 16-bit floats the first source and the result may be carries.
template <class Access, class Prepare, class Combine, class Finish>
HWY_INLINE void run_forms(const Fold& how, const Arrays& arrays, Prepare prepare, Combine combine,
                          Finish finish) {
  using Carry = Plain<typename Access::Acc>;
  if constexpr (std::is_same_v<typename Access::Element, typename Access::Acc>) {
    run<Access, Access, Access>(arrays, prepare, combine, finish);
  } else {
    const bool from_carry = how.first == Fold::Form::kCarry;
    const bool to_carry = how.result == Fold::Form::kCarry;
    if (from_carry && to_carry) return run<Carry, Access, Carry>(arrays, prepare, combine, finish);
    if (from_carry) return run<Carry, Access, Access>(arrays, prepare, combine, finish);
    if (to_carry) return run<Access, Access, Carry>(arrays, prepare, combine, finish);
    run<Access, Access, Access>(arrays, prepare, combine, finish);
  }
}

// Floats of every width; complex numbers come here as twice as many reals for what acts on both parts alike.
template <class Access>
void fold_reals(const Fold& how, const Arrays& arrays) {
  using Tag = typename Access::Tag;
  using Vec = typename Access::Vec;
  using Acc = typename Access::Acc;
  switch (how.op) {
    case ReduceOp::kSum:
      return run_forms<Access>(how, arrays, Same(), Add(), Same());
    case ReduceOp::kAvg: {
      if (how.result == Fold::Form::kCarry) return run_forms<Access>(how, arrays, Same(), Add(), Same());
      const Vec ranks = hn::Set(Tag(), static_cast<Acc>(how.ranks));
      return run_forms<Access>(how, arrays, Same(), Add(), [=](Vec v) HWY_ATTR { return hn::Div(v, ranks); });
    }
    case ReduceOp::kPremulSum: {
      const bool from_carry = how.first == Fold::Form::kCarry;
      const double* factors = how.factors.data();
      const auto scale = [=](Vec v, std::size_t source) HWY_ATTR {
        if (source == 0 && from_carry) return v;
        return hn::Mul(v, hn::Set(Tag(), static_cast<Acc>(factors[source])));
      };
      return run_forms<Access>(how, arrays, scale, Add(), Same());
    }
    case ReduceOp::kProduct:
      return run_forms<Access>(how, arrays, Same(), Multiply(), Same());
    case ReduceOp::kMin:
      return run_forms<Access>(how, arrays, Same(), Least(), Same());
    case ReduceOp::kMax:
      return run_forms<Access>(how, arrays, Same(), Greatest(), Same());
    default:
      return;  // check_reducible has refused it
  }
}

// Element by element, for what vectors do not have: integer products and quotients, complex products.
template <typename T, class Prepare, class Combine, class Finish>
HWY_INLINE void run_scalar(const Arrays& arrays, Prepare prepare, Combine combine, Finish finish) {
  for (std::size_t i = 0; i < arrays.count; ++i) {
    T acc{};
    std::memcpy(&acc, arrays.sources[0] + i * sizeof(T), sizeof(T));
    acc = prepare(acc, 0);
    for (std::size_t s = 1; s < arrays.sources.size(); ++s) {
      T x{};
      std::memcpy(&x, arrays.sources[s] + i * sizeof(T), sizeof(T));
      acc = combine(acc, prepare(x, s));
    }
    acc = finish(acc);
    for (std::byte* destination : arrays.destinations)
      std::memcpy(destination + i * sizeof(T), &acc, sizeof(T));
  }
}

// Arithmetic that wraps around: on 64-bit unsigned numbers, cut to T.
template <typename T>
HWY_INLINE T wrapped_product(T a, T b) {
  return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
template <typename T>
HWY_INLINE T wrapped_sum(T a, T b) {
  return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// Defined for every number: what check_factor() refuses here may still come from another rank.
template <typename T>
HWY_INLINE T whole_factor(double factor) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (factor >= kLimit && factor < 2 * kLimit) return static_cast<T>(static_cast<std::uint64_t>(factor));
  if (!(factor >= -kLimit && factor < kLimit)) return 0;
  return static_cast<T>(static_cast<std::int64_t>(factor));
}

template <typename T>
void fold_integers(const Fold& how, const Arrays& arrays) {
  using Lane = Plain<std::make_unsigned_t<T>>;
  const Arrays as_bytes{arrays.sources, arrays.destinations, arrays.count * sizeof(T)};
  const auto same = [](T x, std::size_t = 0) { return x; };
  switch (how.op) {
    case ReduceOp::kSum:
      return run<Lane, Lane, Lane>(arrays, Same(), Add(), Same());
    case ReduceOp::kAvg: {
      if (how.result == Fold::Form::kCarry) return run<Lane, Lane, Lane>(arrays, Same(), Add(), Same());
      const std::int64_t ranks = how.ranks;
      return run_scalar<T>(arrays, same, wrapped_sum<T>, [=](T sum) {
        if constexpr (std::is_signed_v<T>) return static_cast<T>(static_cast<std::int64_t>(sum) / ranks);
        return static_cast<T>(static_cast<std::uint64_t>(sum) / static_cast<std::uint64_t>(ranks));
      });
    }
    case ReduceOp::kPremulSum: {
      const bool from_carry = how.first == Fold::Form::kCarry;
      const auto scale = [&](T x, std::size_t source) {
        if (source == 0 && from_carry) return x;
        return wrapped_product(x, whole_factor<T>(how.factors[source]));
      };
      return run_scalar<T>(arrays, scale, wrapped_sum<T>, same);
    }
    case ReduceOp::kProduct:
      return run_scalar<T>(arrays, same, wrapped_product<T>, same);
    case ReduceOp::kMin:
      return run<Plain<T>, Plain<T>, Plain<T>>(arrays, Same(), Least(), Same());
    case ReduceOp::kMax:
      return run<Plain<T>, Plain<T>, Plain<T>>(arrays, Same(), Greatest(), Same());
    case ReduceOp::kBand:
      return run<Plain<std::uint8_t>, Plain<std::uint8_t>, Plain<std::uint8_t>>(as_bytes, Same(), BitAnd(),
                                                                                Same());
    case ReduceOp::kBor:
      return run<Plain<std::uint8_t>, Plain<std::uint8_t>, Plain<std::uint8_t>>(as_bytes, Same(), BitOr(),
                                                                                Same());
    case ReduceOp::kBxor:
      return run<Plain<std::uint8_t>, Plain<std::uint8_t>, Plain<std::uint8_t>>(as_bytes, Same(), BitXor(),
                                                                                Same());
  }
}

template <typename T>
void fold_complex(const Fold& how, const Arrays& arrays) {
  if (how.op != ReduceOp::kProduct) {
    return fold_reals<Plain<T>>(how, {arrays.sources, arrays.destinations, arrays.count * 2});
  }
  struct Number {
    T re, im;
  };
  const auto same = [](Number x, std::size_t = 0) { return x; };
  run_scalar<Number>(
      arrays, same,
      [](Number a, Number b) {
        return Number{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
      },
      same);
}

// True is 1: "or" is the greater of two, "and" the less.
void fold_booleans(const Fold& how, const Arrays& arrays) {
  Fold bits = how;
  if (how.op == ReduceOp::kSum || how.op == ReduceOp::kMax) bits.op = ReduceOp::kBor;
  if (how.op == ReduceOp::kProduct || how.op == ReduceOp::kMin) bits.op = ReduceOp::kBand;
  fold_integers<std::uint8_t>(bits, arrays);
}

void fold_on_target(const Fold& how, const Arrays& arrays) {
  switch (how.type) {
    case DType::kBool:
      return fold_booleans(how, arrays);
    case DType::kUint8:
      return fold_integers<std::uint8_t>(how, arrays);
    case DType::kInt8:
      return fold_integers<std::int8_t>(how, arrays);
    case DType::kInt16:
      return fold_integers<std::int16_t>(how, arrays);
    case DType::kInt32:
      return fold_integers<std::int32_t>(how, arrays);
    case DType::kInt64:
      return fold_integers<std::int64_t>(how, arrays);
    case DType::kUint16:
      return fold_integers<std::uint16_t>(how, arrays);
    case DType::kUint32:
      return fold_integers<std::uint32_t>(how, arrays);
    case DType::kUint64:
      return fold_integers<std::uint64_t>(how, arrays);
    case DType::kFloat16:
      return fold_reals<F16>(how, arrays);
    case DType::kBFloat16:
      return fold_reals<Bf16>(how, arrays);
    case DType::kFloat32:
      return fold_reals<Plain<float>>(how, arrays);
    case DType::kFloat64:
      return fold_reals<Plain<double>>(how, arrays);
    case DType::kComplex64:
      return fold_complex<float>(how, arrays);
    case DType::kComplex128:
      return fold_complex<double>(how, arrays);
    case DType::kFloat8:
      return;  // check_reducible has refused it
  }
}

void fold_for_target(const Fold& how, std::span<const std::byte* const> sources,
                     std::span<std::byte* const> destinations, std::size_t count) {
  fold_on_target(how, {sources, destinations, count});
}

}  // namespace lockstep::collective::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::collective {
namespace {

HWY_EXPORT(fold_for_target);

// Round to nearest, no flushing of denormals, no traps: whatever the caller has set, sums are the same.
class PlainFloatMode {
 public:
#if defined(__x86_64__)
  PlainFloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~PlainFloatMode() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kFlags = 0x3f;      // sticky exception flags
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked
  const unsigned saved_;
#elif defined(__aarch64__)
  PlainFloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~PlainFloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  std::uint64_t saved_;
#endif
};

}  // namespace

std::size_t carry_size(DType type) {
  return type == DType::kFloat16 || type == DType::kBFloat16 ? sizeof(float) : size_of(type);
}

void fold(const Fold& how, std::span<const std::byte* const> sources,
          std::span<std::byte* const> destinations, std::size_t count) {
  const PlainFloatMode mode;
  HWY_DYNAMIC_DISPATCH(fold_for_target)(how, sources, destinations, count);
}

}  // namespace lockstep::collective
#endif  // HWY_ONCE

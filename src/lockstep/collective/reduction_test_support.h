// A plain reference of the reductions: one element at a time, with conversions written another way.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/collective/reduction.h"

namespace lockstep::collective {

using Sources = std::vector<Buffer>;

inline float widen(DType type, std::uint16_t bits) {
  if (type == DType::kBFloat16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.F : 1.F;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

// Rounds to a multiple of the last place that the narrow type has at this magnitude.
inline std::uint16_t narrow(DType type, float value) {
  const int digits = type == DType::kFloat16 ? 11 : 8;
  const int lowest = type == DType::kFloat16 ? -24 : -133;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = type == DType::kFloat16 ? 0x7c00 : 0x7f80;
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  int exponent = 0;
  (void)std::frexp(std::abs(static_cast<double>(value)), &exponent);
  const int place = std::max(exponent - digits, lowest);
  const auto units =
      static_cast<std::int64_t>(std::nearbyint(std::ldexp(std::abs(static_cast<double>(value)), -place)));
  // Units of the last place count on from the bits of the subnormals, also over the edge of a binade.
  const std::int64_t bits = units + (static_cast<std::int64_t>(place - lowest) << (digits - 1));
  return static_cast<std::uint16_t>(sign | std::min<std::int64_t>(bits, infinity));
}

template <typename T>
T combine(ReduceOp op, T acc, T x) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::kProduct) return acc * x;
    if (op == ReduceOp::kMin) return std::isnan(acc) ? acc : (std::isnan(x) || x < acc ? x : acc);
    if (op == ReduceOp::kMax) return std::isnan(acc) ? acc : (std::isnan(x) || x > acc ? x : acc);
    return acc + x;
  } else {
    using U = std::uint64_t;
    switch (op) {
      case ReduceOp::kProduct:
        return static_cast<T>(static_cast<U>(acc) * static_cast<U>(x));
      case ReduceOp::kMin:
        return std::min(acc, x);
      case ReduceOp::kMax:
        return std::max(acc, x);
      case ReduceOp::kBand:
        return static_cast<T>(acc & x);
      case ReduceOp::kBor:
        return static_cast<T>(acc | x);
      case ReduceOp::kBxor:
        return static_cast<T>(acc ^ x);
      default:
        return static_cast<T>(static_cast<U>(acc) + static_cast<U>(x));
    }
  }
}

template <typename T>
T element(const Buffer& data, std::size_t i) {
  T value{};
  std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void put(Buffer& data, std::size_t i, T value) {
  std::memcpy(data.data() + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
void reference_plain(const Fold& how, const Sources& sources, Buffer& out, std::size_t count) {
  const auto scaled = [&](std::size_t s, std::size_t i) {
    const T x = element<T>(sources[s], i);
    if (how.op != ReduceOp::kPremulSum) return x;
    if constexpr (std::is_floating_point_v<T>) return x * static_cast<T>(how.factors[s]);
    return combine(ReduceOp::kProduct, x, static_cast<T>(static_cast<std::int64_t>(how.factors[s])));
  };
  for (std::size_t i = 0; i < count; ++i) {
    T acc = scaled(0, i);
    for (std::size_t s = 1; s < sources.size(); ++s) acc = combine(how.op, acc, scaled(s, i));
    if (how.op == ReduceOp::kAvg) acc = static_cast<T>(acc / static_cast<T>(how.ranks));
    put(out, i, acc);
  }
}

inline void reference_16(const Fold& how, const Sources& sources, Buffer& out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto scaled = [&](std::size_t s) {
      const float x = widen(how.type, element<std::uint16_t>(sources[s], i));
      return how.op == ReduceOp::kPremulSum ? x * static_cast<float>(how.factors[s]) : x;
    };
    float acc = scaled(0);
    for (std::size_t s = 1; s < sources.size(); ++s) acc = combine(how.op, acc, scaled(s));
    if (how.op == ReduceOp::kAvg) acc /= static_cast<float>(how.ranks);
    put(out, i, narrow(how.type, acc));
  }
}

template <typename T>
void reference_complex(const Fold& how, const Sources& sources, Buffer& out, std::size_t count) {
  if (how.op != ReduceOp::kProduct) return reference_plain<T>(how, sources, out, count * 2);
  for (std::size_t i = 0; i < count; ++i) {
    T re = element<T>(sources[0], 2 * i);
    T im = element<T>(sources[0], 2 * i + 1);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const T x = element<T>(sources[s], 2 * i);
      const T y = element<T>(sources[s], 2 * i + 1);
      const T next = re * x - im * y;
      im = re * y + im * x;
      re = next;
    }
    put(out, 2 * i, re);
    put(out, 2 * i + 1, im);
  }
}

inline Buffer reference(const Fold& how, const Sources& sources, std::size_t count) {
  Buffer out(count * size_of(how.type));
  Fold boolean = how;
  switch (how.type) {
    case DType::kBool:
      if (how.op == ReduceOp::kSum || how.op == ReduceOp::kMax) boolean.op = ReduceOp::kBor;
      if (how.op == ReduceOp::kProduct || how.op == ReduceOp::kMin) boolean.op = ReduceOp::kBand;
      reference_plain<std::uint8_t>(boolean, sources, out, count);
      break;
    case DType::kUint8:
      reference_plain<std::uint8_t>(how, sources, out, count);
      break;
    case DType::kInt8:
      reference_plain<std::int8_t>(how, sources, out, count);
      break;
    case DType::kInt16:
      reference_plain<std::int16_t>(how, sources, out, count);
      break;
    case DType::kInt32:
      reference_plain<std::int32_t>(how, sources, out, count);
      break;
    case DType::kInt64:
      reference_plain<std::int64_t>(how, sources, out, count);
      break;
    case DType::kUint16:
      reference_plain<std::uint16_t>(how, sources, out, count);
      break;
    case DType::kUint32:
      reference_plain<std::uint32_t>(how, sources, out, count);
      break;
    case DType::kUint64:
      reference_plain<std::uint64_t>(how, sources, out, count);
      break;
    case DType::kFloat16:
    case DType::kBFloat16:
      reference_16(how, sources, out, count);
      break;
    case DType::kFloat32:
      reference_plain<float>(how, sources, out, count);
      break;
    case DType::kFloat64:
      reference_plain<double>(how, sources, out, count);
      break;
    case DType::kComplex64:
      reference_complex<float>(how, sources, out, count);
      break;
    case DType::kComplex128:
      reference_complex<double>(how, sources, out, count);
      break;
    case DType::kFloat8:
      break;
  }
  return out;
}

inline bool is_real(DType type) { return type >= DType::kFloat16 && type <= DType::kComplex128; }

inline std::size_t real_size(DType type) {
  if (type == DType::kComplex64) return 4;
  if (type == DType::kComplex128) return 8;
  return size_of(type);
}

// A NaN's payload is nobody's promise: all become one.
inline Buffer with_one_nan(DType type, Buffer data) {
  if (!is_real(type)) return data;
  const std::size_t step = real_size(type);
  for (std::size_t i = 0; i < data.size() / step; ++i) {
    if (step == 2 && std::isnan(widen(type, element<std::uint16_t>(data, i))))
      put<std::uint16_t>(data, i, 0x7fff);
    if (step == 4 && std::isnan(element<float>(data, i))) put(data, i, std::bit_cast<float>(0x7fc00000U));
    if (step == 8 && std::isnan(element<double>(data, i)))
      put(data, i, std::bit_cast<double>(0x7ff8000000000000ULL));
  }
  return data;
}

}  // namespace lockstep::collective

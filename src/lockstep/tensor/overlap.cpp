#include "lockstep/tensor/overlap.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::tensor {
namespace {

using Address = std::uintptr_t;

Address element_size(const at::Tensor& tensor) { return static_cast<Address>(tensor.element_size()); }

// The first byte, and the one after the last.
std::pair<Address, Address> range_of(const at::Tensor& tensor) {
  const auto first = reinterpret_cast<Address>(tensor.const_data_ptr());
  std::int64_t last = 0;  // in elements
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {first, first + static_cast<Address>(last + 1) * element_size(tensor)};
}

// Calls `visit` with the address of every element.
template <typename Visit>
void for_each_element(const at::Tensor& tensor, const Visit& visit) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(tensor.dim()));
  const auto first = reinterpret_cast<Address>(tensor.const_data_ptr());
  for (std::int64_t n = tensor.numel(); n > 0; --n) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < index.size(); ++d)
      offset += index[d] * tensor.stride(static_cast<std::int64_t>(d));
    visit(first + static_cast<Address>(offset) * element_size(tensor));
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < tensor.size(static_cast<std::int64_t>(d))) break;
      index[d] = 0;
    }
  }
}

// What an element lies apart from another one of the same tensor, in bytes, with the largest stride first.
struct Extent {
  std::int64_t stride;
  std::int64_t size;
};

// Nothing unless each step is larger than all that the smaller ones reach together.
std::optional<std::vector<Extent>> nested_steps(const at::Tensor& tensor) {
  std::vector<Extent> steps;
  const auto element = static_cast<std::int64_t>(tensor.element_size());
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.push_back({tensor.stride(d) * element, tensor.size(d)});
  }
  std::sort(steps.begin(), steps.end(), [](const Extent& a, const Extent& b) { return a.stride > b.stride; });
  std::int64_t reach = element - 1;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->stride <= reach) return std::nullopt;
    reach += step->stride * (step->size - 1);
  }
  return steps;
}

// Whether two elements that are `apart` plus some of the steps share a byte.
bool meet(std::span<const Extent> steps, std::int64_t apart, std::int64_t element) {
  if (steps.empty()) return std::abs(apart) < element;
  const auto [stride, size] = steps.front();
  const std::int64_t whole = apart / stride;
  // The smaller steps reach less than one of these.
  for (std::int64_t count = whole - 1; count <= whole + 1; ++count) {
    if (std::abs(count) < size && meet(steps.subspan(1), apart - count * stride, element)) return true;
  }
  return false;
}

}  // namespace

bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense() || tensor.numel() < 2) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride and size, the smallest stride first
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(steps.begin(), steps.end());
  // Each dimension steps over all that the smaller ones reach: the usual case.
  std::int64_t reach = 0;
  bool nested = true;
  for (const auto& [stride, size] : steps) {
    nested = nested && stride > reach;
    reach += stride * (size - 1);
  }
  if (nested) return false;
  std::vector<Address> places;
  places.reserve(static_cast<std::size_t>(tensor.numel()));
  for_each_element(tensor, [&](Address at) { places.push_back(at); });
  std::sort(places.begin(), places.end());
  return std::adjacent_find(places.begin(), places.end()) != places.end();
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const auto [a_begin, a_end] = range_of(a);
  const auto [b_begin, b_end] = range_of(b);
  if (a_end <= b_begin || b_end <= a_begin) return false;
  if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()) return true;
  if (a.sizes() == b.sizes() && a.strides() == b.strides() && a.element_size() == b.element_size()) {
    if (const auto steps = nested_steps(a)) {
      return meet(*steps, static_cast<std::int64_t>(b_begin) - static_cast<std::int64_t>(a_begin),
                  static_cast<std::int64_t>(a.element_size()));
    }
  }
  const Address begin = std::max(a_begin, b_begin);
  const Address end = std::min(a_end, b_end);
  std::vector<bool> taken(end - begin);
  const auto bytes = [&](const at::Tensor& tensor, const auto& visit) {
    for_each_element(tensor, [&](Address at) {
      for (Address byte = std::max(at, begin); byte < std::min(at + element_size(tensor), end); ++byte)
        visit(byte - begin);
    });
  };
  bytes(a, [&](std::size_t byte) { taken[byte] = true; });
  bool found = false;
  bytes(b, [&](std::size_t byte) { found = found || taken[byte]; });
  return found;
}

std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    std::span<const at::Tensor* const> tensors, const std::function<bool(std::size_t)>& written) {
  struct Range {
    Address begin;
    Address end;
    std::size_t index;
  };
  std::vector<Range> ranges;  // by their first byte
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->numel() == 0 || tensors[i]->is_meta()) continue;
    const auto [begin, end] = range_of(*tensors[i]);
    ranges.push_back({begin, end, i});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> open;  // those that reach beyond where we are
  for (const Range& range : ranges) {
    std::erase_if(open, [&](const Range& other) { return other.end <= range.begin; });
    for (const Range& other : open) {
      if ((written(range.index) || written(other.index)) &&
          overlap(*tensors[range.index], *tensors[other.index]))
        return std::minmax(range.index, other.index);
    }
    open.push_back(range);
  }
  return std::nullopt;
}

}  // namespace lockstep::tensor

// What the operations of one model are for (tensor/purpose.h).
//
// Ranks that run the passes of two models of one group in different orders hear Desync: without it models of
// one shape would get each other's gradients and buffers. What a user's own hook sends has no purpose.
// Internal. Thread safety: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/ddp/gradients.h"

namespace lockstep::ddp {

class ModelPurpose {
 public:
  // Of ranks that have not met: models whose gradients have the same sizes and strides are the same to it.
  explicit ModelPurpose(const Gradients& gradients);
  // Of ranks that have: `number` is the model's alone among those of its group.
  ModelPurpose(const Gradients& gradients, std::int64_t number);

  std::uint64_t of_buffers() const { return part(0); }
  std::uint64_t of_used_parameters() const { return part(1); }
  // `parameters`: whose gradients it has, in their order, in which ranks could differ.
  std::uint64_t of_bucket(std::size_t index, std::span<const std::size_t> parameters) const;

 private:
  std::uint64_t part(std::uint64_t number) const;

  std::uint64_t model_;
};

}  // namespace lockstep::ddp

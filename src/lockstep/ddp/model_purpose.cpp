#include "lockstep/ddp/model_purpose.h"

namespace lockstep::ddp {
namespace {

// FNV-1a. Not for secrets: only accidents must be noticed.
class Hash {
 public:
  explicit Hash(std::uint64_t begin = 14695981039346656037ULL) : value_(begin) {}
  void add(std::uint64_t number) {
    for (int i = 0; i < 8; ++i) add_byte(static_cast<unsigned char>(number >> (8 * i)));
  }
  std::uint64_t value() const { return value_; }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 1099511628211ULL; }

  std::uint64_t value_;
};

}  // namespace

ModelPurpose::ModelPurpose(const Gradients& gradients) : ModelPurpose(gradients, 0) {}

ModelPurpose::ModelPurpose(const Gradients& gradients, std::int64_t number) {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(number));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    hash.add(static_cast<std::uint64_t>(gradients.planned_of(i).elements));
    for (const std::int64_t stride : gradients.strides_of(i)) hash.add(static_cast<std::uint64_t>(stride));
  }
  model_ = hash.value();
}

std::uint64_t ModelPurpose::part(std::uint64_t number) const {
  Hash hash(model_);
  hash.add(number);
  return hash.value();
}

std::uint64_t ModelPurpose::of_bucket(std::size_t index, std::span<const std::size_t> parameters) const {
  Hash hash(part(2 + index));
  for (const std::size_t parameter : parameters) hash.add(parameter);
  return hash.value();
}

}  // namespace lockstep::ddp

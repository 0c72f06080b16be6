// Images of handwritten digits, and how they are read.
#pragma once

#include <lockstep/lockstep.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Digits {
  at::Tensor images;  // [n, 1, side, side], from 0 to 1
  at::Tensor labels;

  // In an order of their own: the file has the writers one after the other.
  Digits shuffled() const {
    const at::Tensor order = torch::randperm(size(), at::make_generator<at::CPUGeneratorImpl>(1), at::kLong);
    return {images.index_select(0, order), labels.index_select(0, order)};
  }
  Digits part(std::int64_t from, std::int64_t to) const {
    return {images.slice(0, from, to), labels.slice(0, from, to)};
  }
  Digits pick(const std::vector<std::size_t>& indices) const {
    const at::Tensor chosen = torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
    return {images.index_select(0, chosen), labels.index_select(0, chosen)};
  }
  std::int64_t size() const { return labels.size(0); }
  std::int64_t side() const { return images.size(3); }
};

struct DigitsData {
  Digits train;
  Digits test;
  int epochs = 0;  // enough of them
};

// A line is 64 numbers from 0 to 16, and the digit.
inline Digits read_digits(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path + "; `make demo` fetches it.");
  std::vector<float> pixels;
  std::vector<std::int64_t> labels;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    float number = 0;
    for (int i = 0; i < 64 && fields >> number; ++i) {
      pixels.push_back(number / 16);
      fields.ignore(1, ',');
    }
    if (fields >> number) labels.push_back(static_cast<std::int64_t>(number));
  }
  const auto count = static_cast<std::int64_t>(labels.size());
  if (count == 0 || pixels.size() != labels.size() * 64)
    throw std::runtime_error(path + " does not have 64 pixels and a digit in every line.");
  return {torch::tensor(pixels).view({count, 1, 8, 8}), torch::tensor(labels)};
}

// An idx file of bytes, as MNIST comes: two zeros, the type 8, the number of dimensions, each of them in four
// bytes with the highest first, and the bytes.
inline at::Tensor read_idx(const std::string& path, std::size_t dimensions) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path + ", one of the four files of MNIST.");
  std::array<unsigned char, 16> head{};
  const std::size_t header = 4 + 4 * dimensions;
  file.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(header));
  if (head[0] == 0x1f && head[1] == 0x8b)
    throw std::runtime_error(path + " is compressed; unpack it with gunzip.");
  if (!file || head[0] != 0 || head[1] != 0 || head[2] != 8 || head[3] != dimensions) {
    throw std::runtime_error(path + " is no idx file of bytes with " + std::to_string(dimensions) +
                             " dimensions; fetch it again.");
  }
  std::vector<std::int64_t> sizes;
  std::uint64_t bytes = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::int64_t size = 0;
    for (std::size_t i = 0; i < 4; ++i) size = size * 256 + head[4 + 4 * d + i];
    sizes.push_back(size);
    if (d > 0 && size > 4096) throw std::runtime_error(path + " says that an image is larger than 4096.");
    bytes *= static_cast<std::uint64_t>(size);
  }
  const std::uint64_t there = std::filesystem::file_size(path) - header;
  if (bytes == 0 || there != bytes) {
    throw std::runtime_error(path + " should have " + std::to_string(bytes) +
                             " bytes behind its header and has " + std::to_string(there) +
                             "; fetch it again.");
  }
  at::Tensor read = torch::empty(sizes, at::kByte);
  file.read(static_cast<char*>(read.mutable_data_ptr()), static_cast<std::streamsize>(bytes));
  if (!file) throw std::runtime_error("cannot read all of " + path + ".");
  return read;
}

// Halved in both directions, so that the demo takes a minute: 14 x 14.
inline Digits read_mnist_part(const std::string& folder, const std::string& part) {
  const std::string images_path = folder + "/" + part + "-images-idx3-ubyte";
  const std::string labels_path = folder + "/" + part + "-labels-idx1-ubyte";
  const at::Tensor images = read_idx(images_path, 3);
  const at::Tensor labels = read_idx(labels_path, 1).to(at::kLong);
  if (images.size(1) != 28 || images.size(2) != 28)
    throw std::runtime_error(images_path + " has images of " + std::to_string(images.size(1)) + " x " +
                             std::to_string(images.size(2)) + "; those of MNIST are 28 x 28.");
  if (labels.size(0) != images.size(0))
    throw std::runtime_error(labels_path + " has " + std::to_string(labels.size(0)) + " labels for " +
                             std::to_string(images.size(0)) + " images.");
  if (labels.max().item<std::int64_t>() > 9) throw std::runtime_error(labels_path + " has a label above 9.");
  return {torch::avg_pool2d(images.unsqueeze(1).to(at::kFloat).div_(255), 2), labels};
}

// `path` is a file of lines, of which four fifths are for training, or a folder with the files of MNIST.
inline DigitsData read_data(const std::string& path) {
  if (std::filesystem::is_directory(path))
    return {read_mnist_part(path, "train").shuffled(), read_mnist_part(path, "t10k"), 1};
  const Digits all = read_digits(path).shuffled();
  return {all.part(0, all.size() * 4 / 5), all.part(all.size() * 4 / 5, all.size()), 24};
}

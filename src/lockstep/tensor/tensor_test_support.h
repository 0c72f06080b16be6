// For tests of tensors on worlds of real processes. The ranks are forked, so the test program itself must not
// use torch before.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/testing/process_world.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::tensor {

// Runs `body` on every rank, after init_process_group(). Random numbers are the same in every run, and others
// on every rank.
inline void run_world(int size, const std::function<void(int rank)>& body) {
  EXPECT_OK(testing::ProcessWorld(size, std::chrono::minutes(3)).run([&](const SpawnedRank& rank) {
    const auto world = init_process_group({.environment = rank.environment});
    at::manual_seed(static_cast<std::uint64_t>(rank.rank.value));
    body(rank.rank.value);
  }));
}

// Every element is `value`.
inline bool all_equal(const at::Tensor& tensor, const at::Scalar& value) {
  return tensor.eq(value).all().item<bool>();
}

// That `call` throws an Error whose text has all of these in it.
template <typename Error = InvalidArgument, typename Call>
void expect_error(const Call& call, const std::vector<std::string>& words) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    for (const std::string& word : words) EXPECT_THAT(error.what(), ::testing::HasSubstr(word));
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
  }
}

}  // namespace lockstep::tensor

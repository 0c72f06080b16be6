// The suite that every Store must pass, on the answers (StoreConformance) and on the waits
// (StoreWaitConformance). The test of a new implementation:
//
//   class HashStores final : public StoreFamily {
//    public:
//     explicit HashStores(const StoreOptions& options) : first_(options) {}
//     std::unique_ptr<Store> open() override { return std::move(first_.clone()).value(); }
//    private:
//     HashStore first_;
//   };
//   LOCKSTEP_STORE_CONFORMANCE(HashStore, HashStores);
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/store/store.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {

using store::StoreOptions;

// Handles on one set of data, which is empty at first. It outlives its handles.
class StoreFamily {
 public:
  virtual ~StoreFamily() = default;
  // Another handle, made as the family was told to make them. Ends the test's process if it cannot.
  virtual std::unique_ptr<Store> open() = 0;
};
using MakeStoreFamily = std::function<std::unique_ptr<StoreFamily>(const StoreOptions& options)>;

// Answers, on the real clock.
class StoreConformance : public ::testing::TestWithParam<MakeStoreFamily> {
 protected:
  StoreConformance();
  ~StoreConformance() override;

  std::unique_ptr<StoreFamily> family_;
  std::unique_ptr<Store> handle_;
  Store& store_;
};

// Waits. Those that time out do so on a clock that the test moves.
class StoreWaitConformance : public ::testing::TestWithParam<MakeStoreFamily> {
 protected:
  StoreWaitConformance();
  ~StoreWaitConformance() override;

  // Runs `call` while clock_ goes on, and returns the time that it took on it.
  Duration time_of(const std::function<void()>& call);

  FakeClock clock_;
  std::unique_ptr<StoreFamily> family_;       // on the real clock
  std::unique_ptr<StoreFamily> fake_family_;  // other data, on clock_
  std::unique_ptr<Store> handle_;
  std::unique_ptr<Store> fake_handle_;
  Store& store_;
  Store& fake_store_;  // its timeout is five seconds
};

// Bytes that are this text.
MATCHER_P(HoldsText, text, "holds the text " + ::testing::PrintToString(text)) {
  return text_of(arg) == std::string_view(text);
}
// A Result with such bytes.
inline auto holds(std::string_view text) { return IsOkAnd(HoldsText(std::string(text))); }

// Runs `body(0)` .. `body(count - 1)`, each on a thread of its own, all let go at once; returns when all
// have.
void run_threads(int count, const std::function<void(int)>& body);

// `make` itself. Defined where the tests are, so that whoever instantiates a suite also links its tests.
MakeStoreFamily for_answers(MakeStoreFamily make);
MakeStoreFamily for_waits(MakeStoreFamily make);

}  // namespace lockstep::testing

// `Family` is a StoreFamily made from StoreOptions.
#define LOCKSTEP_STORE_CONFORMANCE(Name, Family)                                                        \
  INSTANTIATE_TEST_SUITE_P(Name, StoreConformance,                                                      \
                           ::testing::Values(::lockstep::testing::for_answers(                          \
                               [](const auto& options) { return std::make_unique<Family>(options); })), \
                           [](const auto&) { return std::string("Answers"); });                         \
  INSTANTIATE_TEST_SUITE_P(Name, StoreWaitConformance,                                                  \
                           ::testing::Values(::lockstep::testing::for_waits(                            \
                               [](const auto& options) { return std::make_unique<Family>(options); })), \
                           [](const auto&) { return std::string("Waits"); })

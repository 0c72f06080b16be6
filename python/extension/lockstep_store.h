// A store of ours as one of torch's: lockstep_torch.Store, and what init_method="lockstep://" gives.
//
// It is made by a rendezvous of ours (store/rendezvous.h), so its ranks have met, and its connections are
// authenticated. The first group over it takes over that rendezvous, so that ranks of C++ programs, which
// join the same job by themselves, are in the same world. Keys are of a namespace of this world.
// Thread safety: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep::python {

struct LockstepStoreOptions {
  std::string url = "env://";
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::chrono::milliseconds timeout = c10d::Store::kDefaultTimeout;
};

class LockstepStore final : public c10d::Store {
 public:
  // Meets the other ranks. Throws torch's exceptions.
  static c10::intrusive_ptr<LockstepStore> join(const LockstepStoreOptions& options);
  LockstepStore(std::shared_ptr<store::Store> inner, std::chrono::milliseconds timeout);
  ~LockstepStore() override;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // Once; nothing afterwards, and from a clone.
  std::optional<Rendezvous> take_rendezvous();

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }
  void queuePush(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> queuePop(const std::string& key, bool block) override;
  std::int64_t queueLen(const std::string& key) override;
  std::vector<std::string> listKeys() override;

 private:
  using When = store::When;
  // What `body` gives or throws, which may wait until the deadline that it is given. Ctrl-C ends it.
  template <typename Body>
  auto waited_for(std::chrono::milliseconds timeout, const Body& body) const;
  Deadline until(std::chrono::milliseconds timeout) const;
  Deadline until() const { return until(getTimeout()); }

  const std::shared_ptr<store::Store> inner_;  // shared with the world that is made over it
  int rank_ = -1;
  int world_size_ = -1;
  Mutex mutex_;
  std::optional<Rendezvous> rendezvous_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::python

// Threads that take a part of a large piece of work: where a rank has more than one core.
//
// The bits do not depend on them: elements are folded one by one, whoever folds them.
// Thread safety: any thread. Implemented by backend's HelperPool; Alone is the default.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "lockstep/base/bytes.h"
#include "lockstep/collective/reduction.h"
#include "lockstep/collective/tuning.h"

namespace lockstep::collective {

class Helpers {
 public:
  virtual ~Helpers() = default;
  // How many threads work at most, the caller's included.
  virtual int count() const = 0;
  // Runs work(0) to work(parts - 1), each once, on any of them; returns when all have returned. The work must
  // not throw.
  virtual void run(int parts, const std::function<void(int)>& work) = 0;
};

class Alone final : public Helpers {
 public:
  int count() const override { return 1; }
  void run(int parts, const std::function<void(int)>& work) override {
    for (int part = 0; part < parts; ++part) work(part);
  }
};

// What a rank has for its operations besides its group.
struct Means {
  Tuning tuning;
  Helpers& helpers;

  // Measured nothing, helped by nobody.
  static const Means& none();
};

// As fold() and copy_for_peers(); large ones with the helpers.
void fold_together(Helpers& helpers, const Fold& how, std::span<const std::byte* const> sources,
                   std::span<std::byte* const> destinations, std::size_t count);
void copy_together(const Means& means, ByteSpan to, const std::byte* from);

}  // namespace lockstep::collective

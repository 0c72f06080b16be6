// PassWatch is who listens to a pass: the user's observer, and Statistics where the pass is sampled.
//
// Thread safety: the observer from any thread; all else by the thread that runs forward, when no pass runs.
// The observer refers to the PassWatch. Internal.
#pragma once

#include "lockstep/ddp/observer.h"
#include "lockstep/ddp/statistics.h"

namespace lockstep::ddp {

class PassWatch final {
 public:
  PassWatch() = default;
  PassWatch(const PassWatch&) = delete;
  PassWatch& operator=(const PassWatch&) = delete;

  // The user's, from the next pass on; may be empty.
  void observe(PassObserver observer);
  // A forward begins whose backward is no pass, because there are no other ranks.
  void count() { statistics_.begin_iteration(); }
  // A forward begins whose backward is one.
  void begin_pass();
  // That of the pass which was begun last: empty where nobody listens.
  const PassObserver& observer() const { return of_pass_; }
  Statistics& statistics() { return statistics_; }
  const Statistics& statistics() const { return statistics_; }

 private:
  Statistics statistics_;
  PassObserver of_user_;
  PassObserver of_pass_;
};

}  // namespace lockstep::ddp

// While a world is being made its ranks meet in the store. Who dies or gives up meanwhile ends the waiting of
// all.
//
// A death is seen by the ranks of the same host, which tell the others, and by the store where it sees its
// clients end; else the join's own timeout ends it. Thread safety: one thread.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep::backend {

class SetupWatch {
 public:
  // The rendezvous outlives it.
  explicit SetupWatch(const Rendezvous& rendezvous) : rendezvous_(rendezvous) {}

  // Ok while all others can still come.
  Status look() const;
  // Tells the others that this rank gives up. Gives back what ended it first: behind a connection that broke
  // there is one that has died or given up, and it may take a moment (1 s at most) until that is known.
  Status fail(const Status& met) const;

 private:
  Status look_for_reason_of(const Status& met) const;

  const Rendezvous& rendezvous_;
};

}  // namespace lockstep::backend

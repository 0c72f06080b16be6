// What a store says for a rank whose process ends while its world is being made: that it has died. So those
// who wait hear it at once, on whatever host it was. Stores that cannot see it leave that to the pids of one
// host, and to the join's timeout.
//
// Thread safety: none. The wills outlive it.
#pragma once

#include "lockstep/store/member.h"
#include "lockstep/store/round_keys.h"
#include "lockstep/store/wills.h"

namespace lockstep::store {

class JoinWills {
 public:
  // Nothing happens where `wills` is nullptr.
  JoinWills(Wills* wills, RoundKeys keys, const Member& self);

  // If it ends before the verdict, that is the verdict; until the world is made, its failure (kSetUpFailed).
  void make() const;
  void take_back() const;

 private:
  Wills* const wills_;
  const RoundKeys keys_;
  const Member& self_;
};

}  // namespace lockstep::store

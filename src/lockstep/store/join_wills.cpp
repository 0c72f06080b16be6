#include "lockstep/store/join_wills.h"

#include <utility>

#include "lockstep/base/status_bytes.h"
#include "lockstep/store/join_errors.h"
#include "lockstep/store/logger.h"

namespace lockstep::store {
namespace {

// A store that is lost says so to the next call that needs it.
void note(const Status& status) {
  if (!status.ok()) kRendezvousLog.debug(status.message());
}

}  // namespace

JoinWills::JoinWills(Wills* wills, RoundKeys keys, const Member& self)
    : wills_(wills), keys_(std::move(keys)), self_(self) {}

void JoinWills::make() const {
  if (wills_ == nullptr) return;
  note(wills_->set_will(keys_.verdict(), write_verdict(join_errors::died_while_joining(self_))));
  note(wills_->set_will(keys_.set_up_failed(), base::write_status(join_errors::died_in_set_up(self_))));
}

void JoinWills::take_back() const {
  if (wills_ == nullptr) return;
  note(wills_->set_will(keys_.verdict(), {}));
  note(wills_->set_will(keys_.set_up_failed(), {}));
}

}  // namespace lockstep::store

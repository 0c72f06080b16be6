#include "lockstep/transport/messages/alarm.h"

namespace lockstep::transport::messages {

Alarm::Alarm(std::shared_ptr<Strand> strand, Loop& loop)
    : loop_(loop), state_(new State{.strand = std::move(strand), .timer = Timer(loop)}) {}

void Alarm::arm_on_strand(base::TimePoint at, std::function<void()> ring) {
  disarm_on_strand();
  if (at == base::TimePoint::max()) return;
  state_->at = at;
  state_->ring = std::move(ring);
  loop_.post([state = state_, at, round = state_->round] {
    state->timer.arm_on_loop(at, [state, round] { rung_on_loop(state, round); });
  });
}

void Alarm::disarm_on_strand() {
  if (!armed()) return;
  ++state_->round;
  state_->ring = nullptr;
  loop_.post([state = state_] { state->timer.disarm_on_loop(); });
}

void Alarm::rung_on_loop(const std::shared_ptr<State>& state, std::uint64_t round) {
  state->strand->run([&] {
    if (state->round != round) return;
    ++state->round;
    std::exchange(state->ring, nullptr)();
  });
}

}  // namespace lockstep::transport::messages

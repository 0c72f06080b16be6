// The eyes of a Monitor: one look at all ranks, made every kTick on the monitor's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "lockstep/backend/native/monitor.h"
#include "lockstep/backend/native/watch_socket.h"
#include "lockstep/base/beat_watch.h"

namespace lockstep::backend {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr std::uint64_t kWatchGroup = 0;  // at a door: the sockets between speakers

class Monitor::Watcher {
 public:
  static Result<std::unique_ptr<Watcher>> make(MonitorOptions options, transport::shm::Domain& domain,
                                               transport::link::Door* door, store::Store& store,
                                               const Deadline& deadline);

  // `on_lost` is called once for every rank that is lost.
  void look(const std::function<void(Rank, const Status&)>& on_lost);
  // Between them heaps may move; deaths are still seen.
  void pause();
  void resume();
  void leave_out(const std::vector<Rank>& ranks);
  // Until the next look is due, a message has come, or someone wakes it.
  void sleep();
  void wake();                                                                            // from any thread
  bool has_left(Rank rank) const { return left_[static_cast<std::size_t>(rank.value)]; }  // from any thread
  std::shared_ptr<const LeftRanks> left() const { return shared_left_; }
  void say_goodbye();

 private:
  struct Pulse;

  Watcher(MonitorOptions options, transport::shm::Domain& domain, transport::link::Door* door,
          store::Store& store, UniqueFd wake);

  bool is_here(Rank rank) const { return host_of(rank) == host_of(own_); }
  int host_of(Rank rank) const { return options_.host_of[static_cast<std::size_t>(rank.value)]; }
  bool is_member(Rank rank) const {
    return rank.value >= 0 && rank.value < static_cast<int>(options_.host_of.size());
  }
  bool lives(Rank rank) const;
  // The lowest rank of a host that lives; nothing if none does.
  std::optional<Rank> speaker_of(int host) const;

  void look_for_dead_neighbours();
  void look_at_neighbours();
  void see_leave(Rank rank);
  void hear_of_leave(Rank rank);
  void read_the_speakers();
  void meet_speakers();
  void look_whether_it_is_there(Rank speaker);
  void find_closed(Rank speaker);
  void find_ended(const WatchSocket& socket, Failure failure);
  void forgive(int host);
  std::size_t place_of(int host) const;
  void meet_before_leaving(const Deadline& deadline);
  void note_leaves();
  void say_goodbye_to_hosts();
  void listen_to_speakers();
  void blame_silent_hosts();
  void lose(Rank rank, Failure failure);
  Status describe(Rank rank, Failure failure) const;
  Pulse& own_pulse() { return *pulses_[static_cast<std::size_t>(domain_.index())]; }

  const MonitorOptions options_;
  transport::shm::Domain& domain_;
  transport::link::Door* const door_;
  store::Store& store_;
  const UniqueFd wake_;                            // an eventfd
  std::shared_ptr<transport::link::Inbox> inbox_;  // shared with the door's loop
  const Rank own_;
  const Clock& clock_ = Clock::steady();
  std::vector<Pulse*> pulses_;  // by position in the domain
  std::vector<int> hosts_;      // the labels of all hosts, in the order of their first ranks
  base::TimePoint next_look_;
  bool paused_ = false;
  bool leaving_ = false;  // then nobody hears from us whom we have lost
  base::BeatWatch neighbours_;
  std::map<Rank, Failure> lost_;
  const std::shared_ptr<LeftRanks> shared_left_;  // with those who ask late
  LeftRanks& left_ = *shared_left_;
  // By host: the socket to its speaker, how often it was heard, and when a connection was tried last.
  std::map<int, std::unique_ptr<WatchSocket>> sockets_;
  std::set<int> met_;                // the hosts of whose speakers there was one
  std::vector<std::int64_t> heard_;  // by position in hosts_
  base::BeatWatch others_;
  std::map<int, base::TimePoint> tried_;
  std::set<Rank> found_closed_;  // speakers behind whose doors nobody was
  const std::function<void(Rank, const Status&)>* on_lost_ = nullptr;  // during look()
};

// In its owner's heap. Zero-filled memory is a valid Pulse.
struct Monitor::Watcher::Pulse {
  alignas(128) std::atomic<std::int64_t> beats;
  std::atomic<std::uint32_t> gone;
  // Behind it lies, for every rank, the Failure by which the owner knows it to be lost; 0 for the others.
  std::atomic<std::uint8_t>& verdict(Rank rank) {
    return reinterpret_cast<std::atomic<std::uint8_t>*>(this + 1)[rank.value];
  }
};

}  // namespace lockstep::backend

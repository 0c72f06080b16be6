#include "extension/worlds.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "extension/errors.h"
#include "extension/hold_count.h"
#include "extension/interrupts.h"
#include "extension/lockstep_store.h"
#include "extension/torch_store.h"
#include "extension/work.h"
#include "lockstep/backend/native/native_world.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/text.h"

namespace lockstep::python {
namespace {

// For what hangs on futures when the interpreter ends.
constexpr Duration kAtExit = std::chrono::seconds(2);
// For what was issued and not waited for, when its group is destroyed.
constexpr Duration kDrain = std::chrono::seconds(5);
// What a world and a group in it take.
constexpr Bytes kLeastHeap = Bytes::mib(8);
// For a world to notice that a rank is lost, whose store was noticed first.
constexpr Duration kNotice = std::chrono::milliseconds(200);
constexpr Duration kNoticePoll = std::chrono::milliseconds(5);

HoldCount g_asides;  // calls that make a group, and may have been left to themselves

// The one global: what this process is in, as torch's own list of groups is one.
class Stays {
 public:
  static Stays& all() {
    static Stays* const only = new Stays;
    return *only;
  }
  void set_default(const std::shared_ptr<Stay>& stay) {
    const MutexLock lock(mutex_);
    default_ = stay;
  }
  // The world of torch's default group, where that is ours.
  std::shared_ptr<Stay> of_default_group() const {
    const MutexLock lock(mutex_);
    return default_.lock();
  }
  void add(const MadeGroup& made) {
    const MutexLock lock(mutex_);
    std::erase_if(groups_, [](const auto& group) { return group.state.expired(); });
    groups_.push_back({made.state, made.stay->pool, made.stay->store});
  }
  struct Group {
    std::weak_ptr<tensor::GroupState> state;
    std::shared_ptr<CompletionPool> pool;
    std::weak_ptr<TorchStore> store;
  };
  std::vector<Group> take() {
    const MutexLock lock(mutex_);
    return std::exchange(groups_, {});
  }

 private:
  mutable Mutex mutex_;
  std::weak_ptr<Stay> default_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Group> groups_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Throws ValueError.
void check(const Options& given, int rank) {
  const auto refuse = [&](const auto&... what) {
    throw_torch(Status::invalid(cat("rank ", rank, ": pg_options: ", what...)));
  };
  if (given.stall_after && given.stall_after->count() <= 0) {
    refuse("stall_after is ", Duration(*given.stall_after), ", and must be more than nothing.");
  }
  if (given.heap_capacity && *given.heap_capacity < kLeastHeap.value) {
    refuse("heap_capacity is ", Bytes{*given.heap_capacity}, ", and must be ", kLeastHeap, " at least.");
  }
  if (given.threads && *given.threads < 1) {
    refuse("threads is ", *given.threads, ", and must be 1 at least: the calling one counts.");
  }
}

std::shared_ptr<TorchStore> store_of(const GroupRequest& request) {
  using End = TorchStore::End;
  const End end = request.rank == 0 ? End::kWithThisRank : End::kWithRank0;
  return std::make_shared<TorchStore>(request.store, request.rank_0_serves ? end : End::kUnknown);
}

WorldOptions world_options(const GroupRequest& request, const std::shared_ptr<TorchStore>& store) {
  const Options& given = *request.options;
  WorldOptions options{.timeout = given.timeout};
  if (given.stall_after) options.stall_after = *given.stall_after;
  if (given.heap_capacity) options.heap_capacity = Bytes{*given.heap_capacity};
  options.threads = given.threads;
  options.rendezvous = {.store = store,
                        .rank = Rank{request.rank},
                        .world_size = WorldSize{request.size},
                        .timeout = given.timeout,
                        .secret_sharing = store::SecretSharing::kStore};
  return options;
}

// What the store was made by, if it is one of ours and nobody has taken it.
std::optional<Rendezvous> rendezvous_behind(c10::intrusive_ptr<c10d::Store> store) {
  while (auto* const prefix = dynamic_cast<c10d::PrefixStore*>(store.get()))
    store = prefix->getUnderlyingStore();
  auto* const ours = dynamic_cast<LockstepStore*>(store.get());
  return ours == nullptr ? std::nullopt : ours->take_rendezvous();
}

Result<std::shared_ptr<Stay>> join_world(const GroupRequest& request) {
  const std::shared_ptr<TorchStore> store = store_of(request);
  WorldOptions options = world_options(request, store);
  if (std::optional<Rendezvous> met =
          request.members.empty() ? rendezvous_behind(request.store) : std::nullopt) {
    options.rendezvous = {};
    const ErrorNote note = met->error_note;
    auto world = backend::NativeWorld::make(options, *std::move(met), Clock::steady());
    if (world.ok()) return std::make_shared<Stay>(*std::move(world), nullptr);
    note.write(world.status());
    return world.status();
  }
  LOCKSTEP_ASSIGN(std::shared_ptr<World> world, World::join(options));
  return std::make_shared<Stay>(std::move(world), store);
}

std::vector<int> numbers(const std::vector<Rank>& ranks) {
  std::vector<int> out;
  out.reserve(ranks.size());
  for (const Rank rank : ranks) out.push_back(rank.value);
  return out;
}

// `backend` keeps the world.
std::shared_ptr<tensor::GroupState> state_of(const Stay& stay, const std::shared_ptr<Backend>& backend,
                                             const std::string& name) {
  std::vector<Rank> members;
  for (int i = 0; i < backend->size().value; ++i) members.push_back(backend->world_rank(Rank{i}));
  return std::make_shared<tensor::GroupState>(
      tensor::GroupState::Parts{.name = name.empty() ? backend->name() : name,
                                .backend = "lockstep",
                                .ranks = numbers(members),
                                .world_ranks = members,
                                .rank = backend->rank().value,
                                .global_rank = stay.world->rank().value,
                                .backends = {{c10::DeviceType::CPU, "lockstep", backend}},
                                .profiling = tensor::Profiling::kElsewhere});
}

std::shared_ptr<Backend> keeping_world(const Stay& stay, std::unique_ptr<Backend> group) {
  return {group.release(), [world = stay.world](Backend* held) { delete held; }};
}

std::vector<int> counted(int size) {
  std::vector<int> out(static_cast<std::size_t>(size));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

bool contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// torch's numbers of these members, in their order.
std::vector<int> torchs_of(const Members& members, const std::vector<Rank>& some) {
  std::vector<int> out;
  for (std::size_t i = 0; i < members.world.size(); ++i) {
    if (contains(some, members.world[i])) out.push_back(members.torchs[i]);
  }
  return out;
}

MadeGroup made_of(Standing standing, const std::shared_ptr<Stay>& stay,
                  std::shared_ptr<tensor::GroupState> state, std::vector<int> torchs) {
  auto names = std::make_shared<const RankNames>(state->world_ranks(), std::move(torchs), state->rank());
  MadeGroup made{standing, stay, std::move(state), std::move(names)};
  if (standing != Standing::kSome) stay->add_own();
  Stays::all().add(made);
  return made;
}

// A world in the hands of a call that makes a group.
class HeldStay {
 public:
  explicit HeldStay(std::shared_ptr<Stay> stay) : hold_(g_asides), stay_(std::move(stay)) {}
  Stay& operator*() const { return *stay_; }

 private:
  const HoldCount::Hold hold_;  // the last to go
  const std::shared_ptr<Stay> stay_;
};

using Made = Result<std::unique_ptr<Backend>>;

template <typename Make>
Made made_aside(const std::shared_ptr<Stay>& stay, const Make& make) {
  return run_aside([held = std::make_shared<HeldStay>(stay), make] { return make(**held); });
}

// Why a group could not be made. A store that is lost is mostly lost with rank 0, and the world's own group
// knows who is lost; where the world has been shrunk, it has ended with another failure.
Status not_made(const Stay& stay, const Status& error) {
  const bool is_whole = std::ssize(stay.left()) == stay.world->size().value;
  if (error.failure() != Failure::kStoreLost || !is_whole) return error;
  const Deadline end = Clock::steady().in(kNotice);
  Status lost = stay.world->group().failure();
  while (lost.ok() && !end.expired()) {
    std::this_thread::sleep_for(kNoticePoll);
    lost = stay.world->group().failure();
  }
  return lost.code() == Code::kDisconnected ? lost : error;
}

Status named(const Status& error, const Stay& stay, const std::string& group) {
  const std::string call = cat("rank ", stay.world->rank(), ": new_group");
  if (error.message().starts_with(call)) return error;
  return error.with_prefix(cat(call, group.empty() ? "" : cat(" of the group ", base::quoted(group)), ": "));
}

// The members as ranks of the world of torch's default group; none if that is not ours.
std::vector<Rank> members_in(const Stay& stay, const GroupRequest& request) {
  const std::vector<Rank> left = stay.left();
  std::vector<Rank> members;
  for (const int member : request.members) {
    if (member < 0 || member >= std::ssize(left)) return {};
    members.push_back(left[static_cast<std::size_t>(member)]);
  }
  const bool has_place = request.rank >= 0 && request.rank < std::ssize(members);
  const bool is_here = has_place && members[static_cast<std::size_t>(request.rank)] == stay.world->rank();
  return is_here ? members : std::vector<Rank>();
}

}  // namespace

Stay::Stay(std::shared_ptr<World> joined, std::shared_ptr<TorchStore> met_in)
    : world(std::move(joined)), store(std::move(met_in)) {
  for (int rank = 0; rank < world->size().value; ++rank) left_.emplace_back(rank);
}

std::vector<Rank> Stay::left() const {
  const MutexLock lock(mutex_);
  return left_;
}

void Stay::set_left(std::vector<Rank> ranks) {
  const MutexLock lock(mutex_);
  left_ = std::move(ranks);
}

void Stay::add_own() {
  const MutexLock lock(mutex_);
  ++own_;
}

bool Stay::remove_own() {
  const MutexLock lock(mutex_);
  return --own_ == 0;
}

Duration Stay::patience_to_drain() const {
  const MutexLock lock(mutex_);
  return drains_ ? kDrain : Duration::zero();
}

void Stay::note_drained(bool has_ended) {
  const MutexLock lock(mutex_);
  drains_ = has_ended;
}

std::string Stay::unique_name(const std::string& name, const std::vector<Rank>& members) {
  const MutexLock lock(mutex_);
  const int count = ++made_[{name, members}];
  return count == 1 ? name : cat(name, " #", count);
}

void leave_all() {
  stop_other_threads();
  const Deadline deadline = Clock::steady().in(kAtExit);
  const std::vector<Stays::Group> groups = Stays::all().take();
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    if (const auto store = group->store.lock()) store->leave();
    if (const auto state = group->state.lock()) state->close();
  }
  wait_for_works(deadline);
  g_asides.wait_for_none(deadline);
  for (const Stays::Group& group : groups) group.pool->drain(deadline);
}

MadeGroup make_group(const GroupRequest& request) {
  if (const std::shared_ptr<Stay> stay = Stays::all().of_default_group()) {
    const std::vector<Rank> members = members_in(*stay, request);
    if (!members.empty())
      return make_group_in(stay, {members, request.members}, request.name, request.options);
  }
  MadeGroup made = make_world(request);
  if (request.members.empty()) Stays::all().set_default(made.stay);
  return made;
}

MadeGroup make_world(const GroupRequest& request) {
  check(*request.options, request.rank);
  auto joined = run_aside([request] { return join_world(request); });
  if (!joined.ok()) throw_not_joined(joined.status());
  const std::shared_ptr<Stay> stay = *std::move(joined);
  // It counts its own users: who closes the group asks for them.
  const std::shared_ptr<Backend> all(&stay->world->group(), [world = stay->world](Backend* /*held*/) {});
  // Messages call torch's default group as the core does: "world".
  const auto state = state_of(*stay, all, request.members.empty() ? "" : request.name);
  if (request.members.empty()) return made_of(Standing::kDefault, stay, state, counted(request.size));
  return made_of(Standing::kWorld, stay, state, request.members);
}

MadeGroup make_group_in(const std::shared_ptr<Stay>& stay, const Members& members, const std::string& name,
                        const OptionsPtr& options) {
  GroupOptions group{.timeout = options->timeout};
  if (!name.empty()) group.name = stay->unique_name(name, members.world);
  Made made = made_aside(stay, [world = members.world, group](Stay& in) -> Made {
    Made one = in.world->new_group(world, group);
    if (!one.ok()) return named(not_made(in, one.status()), in, group.name.value_or(""));
    return one;
  });
  if (!made.ok()) throw_torch(RankNames(members.world, members.torchs, 0).told(made.status()));
  return made_of(Standing::kSome, stay, state_of(*stay, keeping_world(*stay, std::move(*made)), name),
                 members.torchs);
}

MadeGroup shrink_world(const std::shared_ptr<Stay>& stay, Standing standing, const Members& left,
                       const OptionsPtr& options) {
  ShrinkOptions shrink{.group = {.timeout = options->timeout}};
  shrink.patience = std::min<Duration>(shrink.patience, options->timeout);
  for (const Rank rank : stay->left()) {
    if (!contains(left.world, rank)) shrink.exclude.push_back(rank);
  }
  Made made = made_aside(stay, [shrink](Stay& in) { return in.world->shrink(shrink); });
  if (!made.ok()) throw_torch(RankNames(left.world, left.torchs, 0).told(made.status()));
  const auto state = state_of(*stay, keeping_world(*stay, std::move(*made)), options->group_name);
  stay->set_left(state->world_ranks());
  const bool anew = standing == Standing::kDefault;
  return made_of(standing, stay, state,
                 anew ? counted(state->size()) : torchs_of(left, state->world_ranks()));
}

}  // namespace lockstep::python

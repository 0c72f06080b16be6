#include "lockstep/backend/native/native_world.h"

#include <algorithm>

#include "lockstep/backend/native/native_window.h"
#include "lockstep/backend/native/setup_watch.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

// How long to ask the store for a better reason than the one that is known.
constexpr Duration kExplaining = std::chrono::seconds(1);

}  // namespace

Result<std::unique_ptr<NativeWorld>> NativeWorld::make(const WorldOptions& options, Rendezvous rendezvous,
                                                       const Clock& clock, SocketCalls& calls) {
  std::unique_ptr<NativeWorld> world(
      new NativeWorld(std::make_shared<Facilities>(options, std::move(rendezvous), clock, calls)));
  Status status = world->set_up();
  if (!status.ok()) return world->size().value > 1 ? SetupWatch(world->rendezvous()).fail(status) : status;
  return world;
}

Status NativeWorld::set_up() {
  LOCKSTEP_TRY(facilities_->set_up());
  std::vector<Rank> everyone;
  for (int i = 0; i < size().value; ++i) everyone.emplace_back(i);
  {
    const MutexLock lock(mutex_);
    left_ = everyone;
  }
  LOCKSTEP_ASSIGN(all_, new_group(everyone, {.name = "world", .timeout = facilities_->options().timeout}));
  facilities_->settle();
  return {};
}

NativeWorld::~NativeWorld() {
  all_.reset();
  if (!facilities_->in_forked_child()) facilities_->close();
}

Status NativeWorld::refuse(std::string_view what) const {
  if (facilities_->in_forked_child())
    return Status::invalid(
        cat(what, " was asked of a world that belongs to the parent of this forked process"),
        {.failure = Failure::kForked, .rank = rank()});
  const MutexLock lock(mutex_);
  return left_out_;
}

Status NativeWorld::check_left(const std::vector<Rank>& members) const {
  const MutexLock lock(mutex_);
  for (const Rank member : members) {
    if (std::binary_search(left_.begin(), left_.end(), member)) continue;
    return Status::invalid(
        cat("rank ", member, " was left out when the world was shrunk to rank ", base::ranks_text(left_)),
        {.failure = Failure::kLeftOut, .rank = rank(), .peer = member});
  }
  return {};
}

Status NativeWorld::explain(const Status& error) {
  const std::string key = cat("left_out/", rank());
  const Deadline soon = facilities_->clock().in(kExplaining);
  const auto left_out = rendezvous().store->check({&key, 1}, soon);
  if (!left_out.ok() || !*left_out) return error;
  const auto why = rendezvous().store->get(key, soon);
  if (!why.ok()) return error;
  const MutexLock lock(mutex_);
  left_out_ = Status::disconnected(std::string(text_of(*why)),
                                   {.failure = Failure::kLeftOut, .rank = rank(), .peer = rank()});
  return left_out_;
}

Result<std::unique_ptr<Backend>> NativeWorld::new_group(const std::vector<Rank>& members,
                                                        const GroupOptions& options) {
  LOCKSTEP_TRY(refuse("a group"));
  LOCKSTEP_TRY(check_members(members, rank(), size()));
  LOCKSTEP_TRY(check_left(members));
  GroupOptions named = options;
  if (!named.name) named.name = names_.next(members);
  const Duration patience = std::min(rendezvous().store->timeout(), options.timeout);
  auto group = facilities_->make_group(members, named, *named.name, facilities_->clock().in(patience));
  if (group.ok()) return group;
  const Status error = explain(group.status());
  if (error.code() != Code::kTimeout || error.cause().missing.empty()) return error;
  return Status::timeout(
      cat("rank ", rank(), ": new_group of the group ", base::quoted(*named.name), ": rank ",
          base::ranks_text(error.cause().missing), " has not called it after ", patience),
      error.cause());
}

Result<SharedMemory> NativeWorld::allocate(Bytes size) {
  LOCKSTEP_TRY(refuse("memory"));  // a copy of the allocator would give away the parent's
  const auto& domain = facilities_->domain();
  if (!domain) {
    try {
      const auto memory = std::make_shared<Buffer>(size.value);
      return SharedMemory{.bytes = *memory, .owner = memory};
    } catch (const std::exception&) {  // no memory, or more than there can be
      return Status::internal(cat("there is no memory for ", size), {.failure = Failure::kNoMemory});
    }
  }
  LOCKSTEP_ASSIGN(const transport::shm::Heap::Range range, domain->heap().allocate(size));
  std::shared_ptr<const void> owner(
      range.data, [domain, offset = range.offset, made = base::fork_generation()](const void*) {
        if (base::fork_generation() == made) domain->heap().free(offset);  // else it is the parent's
      });
  return SharedMemory{.bytes = {range.data, size.value}, .owner = std::move(owner)};
}

Result<std::unique_ptr<Window>> NativeWorld::open_window(const std::vector<Rank>& members, Bytes size,
                                                         const GroupOptions& options) {
  LOCKSTEP_ASSIGN(std::unique_ptr<Backend> group, new_group(members, options));
  LOCKSTEP_ASSIGN(
      std::unique_ptr<NativeWindow> window,
      NativeWindow::make(
          {.group = std::move(group), .domain = facilities_->domain(), .patience = facilities_->patience()},
          size, facilities_->clock()));
  return std::unique_ptr<Window>(std::move(window));
}

Result<std::unique_ptr<World>> NativeWorld::join(const WorldOptions& options, const Environment& environment,
                                                 SocketCalls& calls) {
  const Clock& clock = Clock::steady();
  LOCKSTEP_ASSIGN(Rendezvous rendezvous, store::rendezvous(options.rendezvous, environment, clock));
  const ErrorNote note = rendezvous.error_note;
  auto world = NativeWorld::make(options, std::move(rendezvous), clock, calls);
  if (world.ok()) return std::unique_ptr<World>(*std::move(world));
  note.write(world.status());
  return world.status();
}

Result<std::unique_ptr<World>> World::join(const WorldOptions& options, const Environment& environment) {
  return NativeWorld::join(options, environment, transport::link::SocketCalls::kernel());
}

Result<std::unique_ptr<World>> World::join(const WorldOptions& options) {
  LOCKSTEP_ASSIGN(const Environment environment, Environment::read());
  base::configure_logging(environment.log);
  return join(options, environment);
}

}  // namespace lockstep::backend

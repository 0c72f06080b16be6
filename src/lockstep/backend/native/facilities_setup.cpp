// Facilities::set_up(): from a rendezvous to a world that can make its first group. Every step meets the
// other ranks in the store, so all ranks take the same ones in the same order.
#include <sys/types.h>

#include <algorithm>
#include <limits>

#include "lockstep/backend/logger.h"
#include "lockstep/backend/native/check_options.h"
#include "lockstep/backend/native/facilities.h"
#include "lockstep/backend/native/setup_watch.h"
#include "lockstep/backend/native/tuner.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using transport::link::Door;
using transport::shm::Board;
using transport::shm::Domain;
using transport::shm::Segment;

// Equal for ranks that share memory.
std::vector<int> label_hosts(const store::Members& members) {
  std::vector<int> labels;
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::size_t first = 0;
    while (!members[first].host.same_host(members[i].host)) ++first;
    labels.push_back(static_cast<int>(first));
  }
  return labels;
}

// Whether a rank can have what the world's own group needs of shared memory, and address space for the heaps
// of all ranks of its host; gives it back at once.
Status probe_shared_memory(const WorldOptions& options, Bytes staging, std::size_t neighbours) {
  LOCKSTEP_ASSIGN(Segment segment, Segment::create("lockstep-probe", staging, neighbours - 1));
  LOCKSTEP_TRY(segment.reserve(0, staging));
  constexpr auto kMostBytes = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  const std::uint64_t capacity = std::min(options.heap_capacity.value, kMostBytes / neighbours);
  return Segment::create("lockstep-probe", Bytes{capacity * neighbours})
      .status()
      .with_prefix(cat("there is no address space for ", neighbours, " times ", options.heap_capacity,
                       ", which is WorldOptions::heap_capacity: "));
}

Cores own_cores() { return {.cpus = base::allowed_cpus(), .at_once = base::usable_cores()}; }

// What a rank tells its neighbours: its cores, and in a second line why it cannot have shared memory.
std::string introduction(const Status& can) { return cat(write_cores(own_cores()), '\n', can.message()); }

// A rendezvous without a secret over a network was told that it may.
store::OpenToAll open_to_all(const Rendezvous& rendezvous) {
  return rendezvous.secret.is_insecure() ? store::OpenToAll::kAllow : store::OpenToAll::kRefuse;
}

Result<std::vector<base::SocketAddress>> parse_addresses(std::string_view text) {
  std::vector<base::SocketAddress> addresses;
  for (const std::string& part : base::split(text, ' ')) {
    LOCKSTEP_ASSIGN(const base::Endpoint endpoint, base::parse_endpoint(part));
    LOCKSTEP_ASSIGN(addresses.emplace_back(), base::SocketAddress::parse(endpoint.host, endpoint.port));
  }
  return addresses;
}

}  // namespace

Status Facilities::set_up() {
  host_of_ = label_hosts(rendezvous_.members);
  const auto neighbours = std::ranges::count(host_of_, host_of_[static_cast<std::size_t>(rank().value)]);
  LOCKSTEP_TRY(check_options(options_, static_cast<int>(neighbours)));
  if (size().value == 1) {
    const Cores cores = own_cores();
    share_cores({&cores, 1}, 0);
    return open_mail(clock_.in(0s));
  }
  const Deadline deadline = clock_.in(rendezvous_.store->timeout());
  LOCKSTEP_TRY(share_memory(deadline));
  LOCKSTEP_TRY(tune(deadline));
  const bool one_host =
      std::all_of(host_of_.begin(), host_of_.end(), [&](int host) { return host == host_of_[0]; });
  if (!one_host) LOCKSTEP_TRY(open_door(deadline));
  if (rank().value == 0 && !transport::Layout::of(std::span<const int>(host_of_)).contiguous())
    kLog.warn(
        "the ranks of a host do not follow each other: reductions between hosts then send every rank's "
        "contribution instead of one value for each host. Number the ranks host by host.");
  LOCKSTEP_TRY(start_monitor(deadline));
  return open_mail(deadline);
}

// Whether this rank can have shared memory is agreed with its neighbours before any of them relies on it.
Status Facilities::share_memory(const Deadline& deadline) {
  transport::shm::DomainOptions options{.members = {},
                                        .rank = rank(),
                                        .job_id = rendezvous_.job_id,
                                        .epoch = rendezvous_.epoch,
                                        .secret = rendezvous_.secret,
                                        .look = look_while_joining(),
                                        .heap_capacity = options_.heap_capacity};
  std::vector<std::string> keys;
  const int own_host = host_of_[static_cast<std::size_t>(rank().value)];
  for (int i = 0; i < size().value; ++i) {
    if (host_of_[static_cast<std::size_t>(i)] != own_host) continue;
    options.members.emplace_back(i);
    options.pids.push_back(rendezvous_.members[static_cast<std::size_t>(i)].pid);
    keys.push_back(cat("shared_memory/", i));
  }
  // The group's, and the one that is measured on.
  const Bytes staging{2 * staging_of(transport::Layout::of(std::span<const int>(host_of_))).value +
                      2 * options_.staging.value};
  const Status can = probe_shared_memory(options_, staging, options.members.size());
  store::Store& store = *rendezvous_.store;
  LOCKSTEP_TRY(store.set(cat("shared_memory/", rank()), bytes_of(introduction(can)), deadline));
  LOCKSTEP_ASSIGN(const std::vector<Buffer> answers,
                  store::watched_get(store, keys, deadline, look_while_joining()));
  std::vector<Cores> cores;
  std::vector<std::string_view> reasons;
  for (const Buffer& answer : answers) {
    const std::string_view text = text_of(answer);
    const std::size_t line = std::min(text.find('\n'), text.size());
    cores.push_back(parse_cores(text.substr(0, line)).value_or(Cores{.cpus = {0}}));
    reasons.push_back(text.substr(std::min(line + 1, text.size())));
  }
  const auto own = std::ranges::find(options.members, rank());
  share_cores(cores, static_cast<std::size_t>(own - options.members.begin()));
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    if (reasons[i].empty()) continue;
    const std::string why = cat("rank ", options.members[i], " cannot have shared memory: ", reasons[i]);
    if (options_.without_shared_memory == WithoutSharedMemory::kFail) {
      return Status(Code::kUnsupported,
                    cat(why, ". Give it more, or choose WithoutSharedMemory::kUseTcp to do without."),
                    {.failure = Failure::kNoSpace, .peer = options.members[i]});
    }
    kLog.warn(cat(why, "; its host uses TCP instead."));
    for (const Rank member : options.members)
      host_of_[static_cast<std::size_t>(member.value)] = size().value + member.value;
    options.pids.clear();
    options.members = {rank()};
    break;
  }
  LOCKSTEP_ASSIGN(domain_, Domain::join(options, store, deadline));
  return {};
}

// Ranks that count as another host's may run on this machine, too.
void Facilities::share_cores(std::span<const Cores> neighbours, std::size_t own) {
  const int unseen = rendezvous_.local_size.value - static_cast<int>(neighbours.size());
  occupancy_ = occupancy_of(neighbours, own, std::max(unseen, 0));
  if (!options_.threads) helpers_.set_count(occupancy_.threads);
}

store::Look Facilities::look_while_joining() const {
  return [this] { return SetupWatch(rendezvous_).look(); };
}

Status Facilities::open_door(const Deadline& deadline) {
  LOCKSTEP_ASSIGN(door_, Door::open({.identity = identity(),
                                     .addresses = rendezvous_.addresses,
                                     .open_to_all = open_to_all(rendezvous_),
                                     .congestion_control = options_.congestion_control},
                                    clock_));
  std::vector<std::string> texts;
  for (const base::SocketAddress& address : door_->addresses()) texts.push_back(address.text());
  store::Store& store = *rendezvous_.store;
  LOCKSTEP_TRY(store.set(cat("door/", rank()), bytes_of(base::join(texts, " ")), deadline));
  std::vector<std::string> keys;
  for (int i = 0; i < size().value; ++i) keys.push_back(cat("door/", i));
  LOCKSTEP_ASSIGN(const std::vector<Buffer> answers,
                  store::watched_get(store, keys, deadline, look_while_joining()));
  for (const Buffer& answer : answers) {
    LOCKSTEP_ASSIGN(doors_.emplace_back(), parse_addresses(text_of(answer)));
  }
  return {};
}

Status Facilities::start_monitor(const Deadline& deadline) {
  LOCKSTEP_ASSIGN(monitor_, Monitor::start({.identity = identity(),
                                            .members = rendezvous_.members,
                                            .host_of = host_of_,
                                            .addresses = doors_,
                                            .stall_after = options_.stall_after,
                                            .look = look_while_joining()},
                                           *domain_, door_.get(), *rendezvous_.store, deadline));
  return {};
}

Status Facilities::open_mail(const Deadline& deadline) {
  mail_ = std::make_unique<Mail>(
      rendezvous_,
      transport::tcp::TcpTransportOptions{.identity = identity(),
                                          .protection = options_.privacy == Privacy::kEncrypt
                                                            ? transport::Protection::kSealed
                                                            : transport::Protection::kIntegrity,
                                          .open_to_all = open_to_all(rendezvous_),
                                          .cannot_accept =
                                              [door = door_.get()](const Status& why) {
                                                if (door != nullptr) door->tell_all(why);
                                              },
                                          .congestion_control = options_.congestion_control},
      domain_, patience(), payload_checks(), means_.tuning, options_.stall_after,
      [this](const Status& why, std::optional<Rank> peer) { lose_messages(why, peer); }, clock_);
  if (size().value == 1) return {};
  std::vector<Rank> everyone;
  for (int i = 0; i < size().value; ++i) everyone.emplace_back(i);
  LOCKSTEP_TRY(mail_->open(everyone, "mail", deadline, look_while_joining()));
  monitor_->when_left([mail = mail_.get()](Rank rank) { return mail->seek(rank); });
  return {};
}

// On a board of its own: the first group's must be as good as untouched.
Status Facilities::tune(const Deadline& deadline) {
  if (domain_->size() == 1) return {};
  transport::shm::BoardOptions options{.name = cat("tuning.", domain_->rank_of(0)),
                                       .members = {},
                                       .look = look_while_joining(),
                                       .staging = options_.staging,
                                       .patience = patience()};
  for (int i = 0; i < domain_->size(); ++i) options.members.push_back(i);
  LOCKSTEP_ASSIGN(const std::unique_ptr<Board> board,
                  Board::make(*domain_, options, *rendezvous_.store, deadline));
  LOCKSTEP_ASSIGN(means_.tuning, measure_tuning(*board, occupancy_.host_cores, clock_, deadline));
  return {};
}

}  // namespace lockstep::backend

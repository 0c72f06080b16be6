#include "spoilt_links.h"

#include <cerrno>

#include "report.h"

namespace lockstep::chaos {
namespace {

using transport::link::LinkFaults;

LinkFaults faults_of(const Plan& plan, Rank rank) {
  LinkFaults faults = plan.links;
  faults.seed = plan.seed + static_cast<std::uint64_t>(rank.value);
  return faults;
}

// A cut is there when the bytes before it are sent, a wrong bit when it is sent itself.
std::uint64_t first_of(const LinkFaults& faults) {
  if (faults.cut) return faults.cut->after;
  return faults.flip ? *faults.flip / 8 + 1 : 0;
}

}  // namespace

SpoiltLinks::SpoiltLinks(const Plan& plan, Rank rank)
    : calls_(faults_of(plan, rank)), first_(first_of(plan.links)) {}

ssize_t SpoiltLinks::send(int socket, const msghdr& message) {
  const ssize_t sent = calls_.send(socket, message);
  if (!reported_ && calls_.sent() >= first_) {
    reported_ = true;
    const int error = errno;
    report("inject");
    errno = error;
  }
  return sent;
}

ssize_t SpoiltLinks::recv(int socket, msghdr& message) { return calls_.recv(socket, message); }

void SpoiltLinks::connecting(Rank peer) { calls_.connecting(peer); }

}  // namespace lockstep::chaos

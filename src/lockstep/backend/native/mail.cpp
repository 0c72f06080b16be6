#include "lockstep/backend/native/mail.h"

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::backend {

using namespace std::chrono_literals;
using transport::messages::Messenger;

// The monitors look every 100 ms, and the other hosts hear at once.
constexpr Duration kEchoGrace = 250ms;

Status Mail::open(const Deadline& deadline, const store::Look& look) {
  const MutexLock lock(mutex_);
  return make(deadline, look);
}

Status Mail::make(const Deadline& deadline, const store::Look& look) {
  LOCKSTEP_ASSIGN(transport_, transport::tcp::TcpTransport::create(options_, clock_));
  std::unique_ptr<transport::Listener> listener;
  std::vector<base::Endpoint> endpoints;
  const int size = rendezvous_.world_size.value;
  if (size > 1) {
    LOCKSTEP_ASSIGN(listener, transport_->listen({.host = rendezvous_.addresses.front().host(), .port = 0}));
    store::Store& store = *rendezvous_.store;
    LOCKSTEP_TRY(store.set(cat("mail/", rendezvous_.rank), bytes_of(listener->endpoint().text()), deadline));
    std::vector<std::string> keys;
    keys.reserve(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) keys.push_back(cat("mail/", i));
    LOCKSTEP_ASSIGN(const std::vector<Buffer> answers, store::watched_get(store, keys, deadline, look));
    for (const Buffer& answer : answers) {
      LOCKSTEP_ASSIGN(endpoints.emplace_back(), base::parse_endpoint(text_of(answer)));
    }
  }
  messenger_ = std::make_unique<Messenger>(
      *transport_, std::move(listener),
      transport::messages::MessengerOptions{
          .rank = rendezvous_.rank, .endpoints = std::move(endpoints), .echo_grace = kEchoGrace});
  return {};
}

Result<Messenger*> Mail::messenger() {
  const MutexLock lock(mutex_);
  if (!messenger_) LOCKSTEP_TRY(make(clock_.in({}), {}));
  return messenger_.get();
}

void Mail::fail_group(std::uint64_t group, const Status& why) {
  const MutexLock lock(mutex_);
  if (messenger_) messenger_->fail_group(group, why);
}

void Mail::leave_group(std::uint64_t group) {
  const MutexLock lock(mutex_);
  if (messenger_) messenger_->leave_group(group);
}

}  // namespace lockstep::backend

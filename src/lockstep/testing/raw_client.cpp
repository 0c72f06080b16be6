#include "lockstep/testing/raw_client.h"

#include <sys/socket.h>

namespace lockstep::testing {
namespace {

using transport::tcp::RecordKind;

Deadline patient() { return Clock::steady().in(std::chrono::minutes(5)); }

base::HandshakeIdentity handshake_identity(const transport::Identity& identity) {
  return {.role = base::Role::kControl,
          .job_id = identity.job_id,
          .epoch = identity.epoch,
          .rank = static_cast<std::uint32_t>(identity.rank.value_or(Rank(-1)).value)};
}

base::UniqueFd connected(const base::Endpoint& endpoint) {
  const auto address = base::SocketAddress::parse(endpoint.host, endpoint.port).value();
  return base::connect_to(address, patient(), base::OnRefused::kFail).value();
}

}  // namespace

RawClient::RawClient(const base::Endpoint& endpoint, const transport::Identity& identity)
    : identity_(identity),
      socket_(connected(endpoint)),
      state_(handshake_identity(identity), identity.secret) {}

Status RawClient::handshake() {
  LOCKSTEP_TRY(send(state_.hello()));
  LOCKSTEP_ASSIGN(const Buffer hello, recv(base::kServerHelloSize));
  LOCKSTEP_ASSIGN(const auto proof, state_.on_server_hello(ByteView(hello).first<base::kServerHelloSize>()));
  proof_.assign(proof.begin(), proof.end());
  LOCKSTEP_TRY(send(proof));
  LOCKSTEP_ASSIGN(const Buffer verdict, recv(base::kVerdictSize));
  LOCKSTEP_TRY(state_.on_verdict(ByteView(verdict).first<base::kVerdictSize>()));
  const base::SessionKeys keys = state_.keys();
  writer_ = transport::tcp::sealed_writer(keys.client_to_server);
  reader_ = transport::tcp::sealed_reader(keys.server_to_client);
  return {};
}

Status RawClient::introduce() {
  Buffer bytes;
  writer_->write(bytes, RecordKind::kIntroduction,
                 transport::introduction_bytes({.rank = identity_.rank, .world = identity_.world}));
  LOCKSTEP_TRY(send(bytes));
  return recv(transport::tcp::kSealedIntroductionSize).status();
}

Status RawClient::send(ByteView bytes) {
  return base::send_all(socket_.get(), bytes, patient(), "raw client");
}

Result<Buffer> RawClient::recv(std::size_t count) {
  Buffer bytes(count);
  LOCKSTEP_TRY(base::recv_all(socket_.get(), bytes, patient(), "raw client"));
  return bytes;
}

bool RawClient::is_closed_by_server() {
  while (true) {
    const Status status = recv(1).status();
    if (!status.ok()) return status.code() == Code::kDisconnected;
  }
}

void RawClient::end(Ending ending) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  if (ending == Ending::kReset) setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket_.reset();
}

Buffer RawClient::record(ByteView payload) {
  Buffer bytes;
  writer_->write(bytes, RecordKind::kData, payload);
  return bytes;
}

}  // namespace lockstep::testing

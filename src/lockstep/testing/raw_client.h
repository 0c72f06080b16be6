// A client of TcpTransport's protocol, byte by byte and blocking: for what a well-behaved client never sends.
#pragma once

#include <array>
#include <memory>

#include "lockstep/base/bytes.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/net.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/transport/introduction.h"
#include "lockstep/transport/tcp/record.h"
#include "lockstep/transport/transport.h"

namespace lockstep::testing {

class RawClient {
 public:
  // Connected, and nothing sent yet. Ends the test's process if nobody listens.
  RawClient(const base::Endpoint& endpoint, const transport::Identity& identity);

  // Sends the hello and the proof, and takes the verdict.
  Status handshake();
  // Sends an introduction, and takes the server's. After handshake().
  Status introduce();

  Status send(ByteView bytes);
  // `count` bytes, or the error.
  Result<Buffer> recv(std::size_t count);
  // True once the server has closed; false if it has not for five.
  bool is_closed_by_server();
  // Closes; kReset throws away what the server has not taken.
  enum class Ending : bool { kFin, kReset };
  void end(Ending ending);

  base::ClientHandshake& state() { return state_; }
  transport::tcp::RecordWriter& writer() { return *writer_; }
  transport::tcp::RecordReader& reader() { return *reader_; }
  // The bytes of a data record.
  Buffer record(ByteView payload);
  // What was sent in the handshake.
  const Buffer& proof() const { return proof_; }

 private:
  const transport::Identity identity_;
  base::UniqueFd socket_;
  base::ClientHandshake state_;
  Buffer proof_;
  std::unique_ptr<transport::tcp::RecordWriter> writer_;
  std::unique_ptr<transport::tcp::RecordReader> reader_;
};

}  // namespace lockstep::testing

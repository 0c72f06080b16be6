// A group whose ranks are threads of this process, spread over hosts that only differ by name: ranks of one
// host share memory, ranks of different hosts talk TCP over the loopback.
//
//   CommunicatorWorld{{0, 0, 1}}.run([](Communicator& comm) { ... });   // ranks 0 and 1 on one host, 2 on
//   another
//
// Thread safety: run() returns when every rank has.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/transport/communicator.h"
#include "lockstep/transport/introduction.h"
#include "lockstep/transport/link/socket_calls.h"

namespace lockstep::testing {

class CommunicatorWorld {
 public:
  struct Options {
    Bytes staging = Bytes::kib(16);  // small, so that a few thousand elements are many windows
    int streams = 1;
    Duration merge = transport::kMergeFailures;
    transport::Protection protection = transport::Protection::kIntegrity;
    transport::shm::PayloadChecks payload = transport::shm::PayloadChecks::kOff;
    std::string address = "127.0.0.1";  // of every rank's door
    // Where the links of a rank get their faults from.
    std::function<transport::link::SocketCalls&(int rank)> calls = [](int) -> transport::link::SocketCalls& {
      return transport::link::SocketCalls::kernel();
    };
  };

  // `hosts[i]` is the host of rank i.
  explicit CommunicatorWorld(std::vector<int> hosts) : CommunicatorWorld(std::move(hosts), Options()) {}
  CommunicatorWorld(std::vector<int> hosts, const Options& options)
      : hosts_(std::move(hosts)), options_(options) {}

  void run(const std::function<void(transport::Communicator&)>& body) const;

 private:
  const std::vector<int> hosts_;
  const Options options_;
};

}  // namespace lockstep::testing

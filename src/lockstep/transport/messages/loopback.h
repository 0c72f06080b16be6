// The way from this rank to itself: a copy from the send's bytes to the receive's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "lockstep/transport/messages/route.h"

namespace lockstep::transport::messages {

class Loopback final : public Route {
 public:
  // Shared with the messenger and its other routes.
  explicit Loopback(std::shared_ptr<Surroundings> surroundings) : surroundings_(std::move(surroundings)) {}

  void send_on_strand(OperationPtr send) override;
  void deliver_on_strand(OperationPtr receive, Arrival arrival) override;
  void drop_on_strand(const Arrival& arrival) override;
  void withdraw_on_strand(const Why& why) override;
  void end_group_on_strand(std::uint64_t /*group*/) override {}
  void give_up_on_strand(const Status& /*why*/) override {}
  void end_on_strand(const Status& why) override;
  const std::optional<Status>& failure() const override { return failure_; }

 private:
  // False if the sizes do not agree; then the receive has ended.
  bool copy_on_strand(Operation& receive, ByteView payload);
  void meet_on_strand(Operation& receive, Operation& send);

  const std::shared_ptr<Surroundings> surroundings_;
  std::map<std::uint64_t, OperationPtr> asked_;  // sends that wait for their receive
  std::uint64_t last_id_ = 0;
  std::size_t kept_ = 0;  // eager bytes that nobody has received
  std::optional<Status> failure_;
};

}  // namespace lockstep::transport::messages

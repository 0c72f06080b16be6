// Messages between two ranks of a group, as torch's send, recv, isend and irecv.
//
// They take no part in the order of collectives. Those of one sender, receiver and tag arrive in the order in
// which they were sent, and are matched in the order in which they are received.
// Peers are global ranks (`dst`, `src`) or ranks in the group (`group_dst`, `group_src`). A receive without
// either takes the first message with its tag, from whomever.
// send() and recv() wait, so to oneself they are refused; isend() and irecv() to oneself work.
//
// Errors: InvalidArgument before anything is sent. The sizes of both ends must agree; that they do not is an
// InvalidArgument of the message, and the group lives on. On a rank that is no member of the group every call
// logs a warning and does nothing; recv() gives -1.
// Thread safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::tensor {

struct SendOptions {
  std::optional<int> dst = {};
  std::optional<int> group_dst = {};
  ProcessGroup group = {};
  std::uint64_t tag = 0;
  std::optional<Duration> timeout = {};  // else the group's
};
struct RecvOptions {
  std::optional<int> src = {};
  std::optional<int> group_src = {};
  ProcessGroup group = {};
  std::uint64_t tag = 0;
  std::optional<Duration> timeout = {};
};

// Returns when the tensor may be changed.
void send(const at::Tensor& tensor, const SendOptions& options);
// The sender's global rank.
int recv(const at::Tensor& tensor, const RecvOptions& options = {});
WorkHandle isend(const at::Tensor& tensor, const SendOptions& options);
WorkHandle irecv(const at::Tensor& tensor, const RecvOptions& options = {});

// One message of a batch.
class P2POp {
 public:
  static P2POp isend(at::Tensor tensor, SendOptions options) {
    return {Kind::kSend, std::move(tensor), std::move(options), {}};
  }
  static P2POp irecv(at::Tensor tensor, RecvOptions options) {
    return {Kind::kRecv, std::move(tensor), {}, std::move(options)};
  }

  bool sends() const { return kind_ == Kind::kSend; }
  const at::Tensor& tensor() const { return tensor_; }
  const SendOptions& send_options() const { return send_; }
  const RecvOptions& recv_options() const { return recv_; }
  const ProcessGroup& group() const { return sends() ? send_.group : recv_.group; }

 private:
  enum class Kind : std::uint8_t { kSend, kRecv };
  P2POp(Kind kind, at::Tensor tensor, SendOptions send, RecvOptions recv)
      : kind_(kind), tensor_(std::move(tensor)), send_(std::move(send)), recv_(std::move(recv)) {}
  Kind kind_;
  at::Tensor tensor_;
  SendOptions send_;
  RecvOptions recv_;
};

// All of them are checked before the first is sent; all are of one group. A work for each, in their order.
std::vector<WorkHandle> batch_isend_irecv(const std::vector<P2POp>& p2p_op_list);

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::batch_isend_irecv;
using tensor::irecv;
using tensor::isend;
using tensor::P2POp;
using tensor::recv;
using tensor::RecvOptions;
using tensor::send;
using tensor::SendOptions;
}  // namespace lockstep

#include "lockstep/tensor/messages.h"

#include <memory>
#include <utility>

#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/operation.h"
#include "lockstep/tensor/overlap.h"
#include "lockstep/tensor/watched.h"
#include "lockstep/tensor/work_state.h"

namespace lockstep::tensor {
namespace {

// A message that was checked and can be posted.
class Message {
 public:
  static Message to_send(const char* call, const at::Tensor& tensor, const SendOptions& options,
                         Argument argument) {
    Message message(call, options.group, options.tag, options.timeout);
    if (!message.op_.member()) return message;
    message.op_.check_timeout(options.timeout);
    message.peer_ =
        message.op_.root({.name = "dst", .of = argument, .global = options.dst, .group = options.group_dst});
    message.sends_ = true;
    message.tensor_ = tensor;
    message.op_.input(tensor, argument);
    return message;
  }
  static Message to_receive(const char* call, const at::Tensor& tensor, const RecvOptions& options,
                            Argument argument) {
    Message message(call, options.group, options.tag, options.timeout);
    if (!message.op_.member()) return message;
    message.op_.check_timeout(options.timeout);
    if (options.src || options.group_src)
      message.peer_ = message.op_.root(
          {.name = "src", .of = argument, .global = options.src, .group = options.group_src});
    message.tensor_ = tensor;
    message.op_.output(tensor, argument);
    return message;
  }

  bool member() const { return op_.member(); }
  void refuse_self() const {
    if (member() && peer_ == op_.rank()) {
      op_.refuse("the peer is this rank itself, so it would wait for ever; use ", sends_ ? "isend" : "irecv",
                 ".");
    }
  }
  WorkHandle post() const {
    if (!member()) return {};
    const std::shared_ptr<Backend> backend = op_.state()->backend(op_.call(), op_.device());
    const auto buffers = std::make_shared<Buffers>();
    OpOptions options = op_.options({.timeout = timeout_});
    options.keep = buffers;
    if (sends_) op_.check_nan(*backend);
    const at::Tensor* const tensor = &tensor_;
    std::shared_ptr<Watched> watched;
    if (Watched::wanted(*op_.state())) {
      watched = std::make_shared<Watched>(WatchedCall{.call = op_.call(),
                                                      .state = *op_.state(),
                                                      .backend = *backend,
                                                      .tensors = {&tensor, 1},
                                                      .peer = peer_.value_or(-1),
                                                      .async_op = true});
    }
    backend::WorkPtr work;
    if (sends_) {
      work = backend->send(Rank{*peer_}, tag_, buffers->input(tensor_), options);
    } else {
      std::optional<Rank> from;
      if (peer_) from = Rank{*peer_};
      work = backend->recv(from, tag_, buffers->output(tensor_), options);
    }
    if (watched) {
      Watched::complete_with(watched, *work);
      watched->returned({}, work->sequence());
    }
    return WorkHandle(
        std::make_shared<WorkHandle::State>(op_.call(), std::move(work), buffers, op_.state(), op_.stack()));
  }

 private:
  Message(const char* call, const ProcessGroup& group, std::uint64_t tag, std::optional<Duration> timeout)
      : op_(call, group), tag_(tag), timeout_(timeout) {}

  Operation op_;
  at::Tensor tensor_;
  bool sends_ = false;
  std::optional<int> peer_;  // in the group; nothing: whoever sends
  std::uint64_t tag_;
  std::optional<Duration> timeout_;
};

}  // namespace

void send(const at::Tensor& tensor, const SendOptions& options) {
  const Message message = Message::to_send("send", tensor, options, {"tensor"});
  message.refuse_self();
  message.post().wait();
}

int recv(const at::Tensor& tensor, const RecvOptions& options) {
  const Message message = Message::to_receive("recv", tensor, options, {"tensor"});
  message.refuse_self();
  const WorkHandle work = message.post();
  work.wait();
  return work.source_rank();
}

WorkHandle isend(const at::Tensor& tensor, const SendOptions& options) {
  return Message::to_send("isend", tensor, options, {"tensor"}).post();
}

WorkHandle irecv(const at::Tensor& tensor, const RecvOptions& options) {
  return Message::to_receive("irecv", tensor, options, {"tensor"}).post();
}

std::vector<WorkHandle> batch_isend_irecv(const std::vector<P2POp>& p2p_op_list) {
  constexpr const char* kCall = "batch_isend_irecv";
  const Operation op(kCall, p2p_op_list.empty() ? ProcessGroup() : p2p_op_list.front().group());
  if (!op.member()) return {};
  if (p2p_op_list.empty()) op.refuse("p2p_op_list is empty.");
  std::vector<Message> messages;
  messages.reserve(p2p_op_list.size());
  for (std::size_t i = 0; i < p2p_op_list.size(); ++i) {
    const P2POp& one = p2p_op_list[i];
    const Argument argument{"p2p_op_list", static_cast<int>(i)};
    if (one.group().state(kCall) != op.state())
      op.refuse(argument.text(), " is of another group than the first.");
    messages.push_back(one.sends() ? Message::to_send(kCall, one.tensor(), one.send_options(), argument)
                                   : Message::to_receive(kCall, one.tensor(), one.recv_options(), argument));
  }
  std::vector<const at::Tensor*> tensors;
  tensors.reserve(p2p_op_list.size());
  for (const P2POp& one : p2p_op_list) tensors.push_back(&one.tensor());
  if (const auto found = find_overlap(tensors, [&](std::size_t i) { return !p2p_op_list[i].sends(); })) {
    op.refuse("p2p_op_list[", found->first, "] and p2p_op_list[", found->second,
              "] share memory, and one of them is received.");
  }
  std::vector<WorkHandle> works;
  works.reserve(messages.size());
  for (const Message& message : messages) works.push_back(message.post());
  return works;
}

}  // namespace lockstep::tensor

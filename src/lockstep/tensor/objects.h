// The object collectives of torch.distributed, for C++ values: no pickle, no code from the wire.
//
//   struct Sample { std::string name; at::Tensor image; };
//   LOCKSTEP_OBJECT(Sample, name, image)
//
//   std::vector<Sample> all;
//   lockstep::all_gather_object(all, sample);
//
// Which types can be sent, and what the one line for a struct of one's own is: object/codec.h. Tensors in a
// value keep their type and shape, and arrive on the CPU, contiguous, without gradient; their bytes are not
// copied on the way but for what is not contiguous or not on the CPU. Two of them that share memory are two
// after the journey.
// The type travels with the value. That of another type is an ObjectTypeError where it arrives, which names
// the rank and both types; ranks of one call must give values of one type (std::variant has several).
// All calls wait. `src` and `dst` are global ranks, or `group_src` and `group_dst` ranks in the group; the
// root is global rank 0 by default.
//
// Errors: InvalidArgument before anything is sent; ObjectTypeError, after which the group lives on;
// DistError. On a rank that is no member of the group every call logs a warning and does nothing. After an
// error the output is as it was. Thread safety: any thread; they are collectives of the group, in its order,
// but for send and recv.
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/object_exchange.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::tensor {

// `timeout` in all of these: for this call; else the group's for each of its steps.
struct ObjectOptions {
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
};
struct ObjectFromRootOptions {
  std::optional<int> src = {};
  std::optional<int> group_src = {};
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
};
struct ObjectToRootOptions {
  std::optional<int> dst = {};
  std::optional<int> group_dst = {};
  ProcessGroup group = {};
  std::optional<Duration> timeout = {};
};

// The list becomes the objects of all ranks, by rank in the group.
template <object::Sendable T>
void all_gather_object(std::vector<T>& object_list, const std::type_identity_t<T>& object,
                       const ObjectOptions& options = {}) {
  const ObjectExchange exchange("all_gather_object", options.group, options.timeout);
  if (!exchange.member()) return;
  std::vector<T> objects;
  for (const IncomingObject& incoming : exchange.all_gather(exchange.pack<T>(object)))
    objects.push_back(exchange.unpack<T>(incoming));
  object_list = std::move(objects);
}

// The same on the root; elsewhere the list stays as it is.
template <object::Sendable T>
void gather_object(const std::type_identity_t<T>& object, std::vector<T>& object_gather_list,
                   const ObjectToRootOptions& options = {}) {
  const ObjectExchange exchange("gather_object", options.group, options.timeout);
  if (!exchange.member()) return;
  const int root = exchange.destination(options.dst, options.group_dst);
  std::vector<T> objects;
  for (const IncomingObject& incoming : exchange.gather(exchange.pack<T>(object), root))
    objects.push_back(exchange.unpack<T>(incoming));
  if (exchange.rank() == root) object_gather_list = std::move(objects);
}

// The root's list, everywhere. Elsewhere an empty list takes as many objects as come; one that has some must
// have as many.
template <object::Sendable T>
void broadcast_object_list(std::vector<T>& object_list, const ObjectFromRootOptions& options = {}) {
  const ObjectExchange exchange("broadcast_object_list", options.group, options.timeout);
  if (!exchange.member()) return;
  const int root = exchange.source(options.src, options.group_src);
  if (exchange.rank() == root) {
    if (object_list.empty()) exchange.refuse("object_list is empty.");
    exchange.broadcast(exchange.pack(object_list));
  } else {
    exchange.fill(object_list, exchange.receive_broadcast(root));
  }
}

// Rank r gets the root's scatter_object_input_list[r]; elsewhere that is empty.
template <object::Sendable T>
void scatter_object_list(T& scatter_object_output,
                         const std::type_identity_t<std::vector<T>>& scatter_object_input_list = {},
                         const ObjectFromRootOptions& options = {}) {
  const ObjectExchange exchange("scatter_object_list", options.group, options.timeout);
  if (!exchange.member()) return;
  const int root = exchange.source(options.src, options.group_src);
  const bool sends = exchange.rank() == root;
  if (!sends && !scatter_object_input_list.empty()) {
    exchange.refuse("scatter_object_input_list is given on a rank that is not the source; only rank ", root,
                    " of the group has one.");
  }
  if (sends && scatter_object_input_list.size() != static_cast<std::size_t>(exchange.size())) {
    exchange.refuse("scatter_object_input_list has ", scatter_object_input_list.size(),
                    " objects, but one for each of the ", exchange.size(), " ranks of the group is needed.");
  }
  std::vector<OutgoingObject> parts;
  for (const auto& object : scatter_object_input_list) parts.push_back(exchange.pack<T>(object));
  scatter_object_output = exchange.unpack<T>(exchange.scatter(parts, root));
}

// A message: a tag that is used for objects is not used for tensors at the same time, and one thread of a
// rank receives with it.
template <object::Sendable T>
void send_object_list(const std::vector<T>& object_list, const SendOptions& options) {
  const ObjectExchange exchange("send_object_list", options.group, options.timeout);
  if (!exchange.member()) return;
  if (!options.dst && !options.group_dst) exchange.refuse("neither dst nor group_dst is given.");
  if (exchange.destination(options.dst, options.group_dst) == exchange.rank())
    exchange.refuse("the peer is this rank itself.");
  if (object_list.empty()) exchange.refuse("object_list is empty.");
  exchange.send(exchange.pack(object_list), options);
}

// The sender's global rank; -1 on a rank that is no member. Without `src` and `group_src`, from whomever. The
// list as for broadcast_object_list().
template <object::Sendable T>
int recv_object_list(std::vector<T>& object_list, const RecvOptions& options = {}) {
  const ObjectExchange exchange("recv_object_list", options.group, options.timeout);
  if (!exchange.member()) return -1;
  if ((options.src || options.group_src) &&
      exchange.source(options.src, options.group_src) == exchange.rank())
    exchange.refuse("the peer is this rank itself.");
  const IncomingObject incoming = exchange.receive(options);
  exchange.fill(object_list, incoming);
  return incoming.from;
}

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::all_gather_object;
using tensor::broadcast_object_list;
using tensor::gather_object;
using tensor::ObjectFromRootOptions;
using tensor::ObjectOptions;
using tensor::ObjectToRootOptions;
using tensor::recv_object_list;
using tensor::scatter_object_list;
using tensor::send_object_list;
}  // namespace lockstep

#include "lockstep/tensor/object_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/tensor/operation.h"
#include "lockstep/tensor/overlap.h"

namespace lockstep::tensor {
namespace {

constexpr std::int64_t kAnnouncementWords = 2;
constexpr std::size_t kTypeText = 300;  // of a schema, in a message

at::Tensor bytes_at(const void* data, std::size_t size) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(size)},
                       at::TensorOptions().dtype(at::kByte));
}
// What lies there, as bytes: to be sent, or, of tensors that were made here, to be filled.
at::Tensor raw(const at::Tensor& plain) { return bytes_at(plain.const_data_ptr(), plain.nbytes()); }
at::Tensor raw(const Buffer& bytes) { return bytes_at(bytes.data(), bytes.size()); }

at::Tensor bytes_of_size(std::int64_t size) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte));
}
at::Tensor words() { return at::empty({kAnnouncementWords}, at::TensorOptions().dtype(at::kLong)); }

object::TensorHeader header_of(const at::Tensor& tensor) {
  return {.type = static_cast<std::uint8_t>(tensor.scalar_type()), .sizes = tensor.sizes().vec()};
}

bool is_known(std::uint8_t type) {
  return type < static_cast<std::uint8_t>(at::ScalarType::NumOptions) &&
         dtype_of(static_cast<at::ScalarType>(type)).has_value();
}

std::int64_t tensors_in(const at::Tensor& announced) { return announced.const_data_ptr<std::int64_t>()[1]; }

// The tensor with this number, or nothing where the rank has fewer than another.
at::Tensor nth_raw(const std::vector<at::Tensor>& tensors, std::int64_t index) {
  const auto i = static_cast<std::size_t>(index);
  return i < tensors.size() ? raw(tensors[i]) : bytes_of_size(0);
}

}  // namespace

ObjectExchange::ObjectExchange(const char* call, const ProcessGroup& group, std::optional<Duration> timeout)
    : group_(group),
      op_(std::make_unique<Operation>(call, group)),
      deadline_(timeout ? std::optional(Clock::steady().in(*timeout)) : std::nullopt) {
  if (member()) op_->check_timeout(timeout);
}

ObjectExchange::~ObjectExchange() = default;

bool ObjectExchange::member() const { return op_->member(); }
int ObjectExchange::rank() const { return op_->rank(); }
int ObjectExchange::size() const { return op_->size(); }
int ObjectExchange::own_global() const { return op_->state()->global_rank(); }

int ObjectExchange::source(std::optional<int> src, std::optional<int> group_src) const {
  return op_->root({.name = "src", .global = src, .group = group_src, .fallback = 0});
}

int ObjectExchange::destination(std::optional<int> dst, std::optional<int> group_dst) const {
  return op_->root({.name = "dst", .global = dst, .group = group_dst, .fallback = 0});
}

void ObjectExchange::throw_refused(const std::string& what) const { op_->refuse(what); }

std::optional<Duration> ObjectExchange::left() const {
  return deadline_ ? std::optional(deadline_->remaining()) : std::nullopt;
}

int ObjectExchange::global(int group_rank) const {
  return op_->state()->ranks()[static_cast<std::size_t>(group_rank)];
}

Status ObjectExchange::corrupt(int from) const {
  return Status::internal(
      cat("rank ", own_global(), ": ", op_->call(), ": what rank ", from, " has sent is no object."),
      {.failure = Failure::kCorruptFrame, .peer = Rank{from}, .op = op_->call()});
}

void ObjectExchange::throw_corrupt(int from) const { op_->throw_status(corrupt(from)); }

void ObjectExchange::end_group(const Status& why) const {
  op_->state()->any_backend(op_->call())->abort(why);
  op_->throw_status(why);
}

OutgoingObject ObjectExchange::pack(const std::string& schema, const object::Writer& out) const {
  const at::NoGradGuard no_grad;
  if (!out.readable()) {
    refuse("the object is nested more than ", object::kMaxDepth, " deep, or has a text or list of more than ",
           object::kMaxLength, " elements.");
  }
  if (schema.size() > object::kMaxSchema) {
    refuse("the type of the object takes ", schema.size(), " characters to describe; ", object::kMaxSchema,
           " may be sent.");
  }
  OutgoingObject outgoing;
  object::Envelope envelope{.schema = schema, .tensors = {}, .value = out.written()};
  for (const std::any& attached : out.attached()) {
    const auto& tensor = std::any_cast<const at::Tensor&>(attached);
    const Argument argument{"tensor", static_cast<int>(outgoing.tensors.size())};
    op_->check_tensor(tensor, argument);
    if (tensor.is_meta()) refuse(argument.text(), " of the object is on meta, and has no elements to send.");
    envelope.tensors.push_back(header_of(tensor));
    if (!acceptable(envelope.tensors.back()))
      refuse(argument.text(), " is too large: ", shape_text(tensor), ".");
    try {
      outgoing.tensors.push_back(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous());
    } catch (const std::exception&) {
      op_->throw_no_memory(cat("a plain copy of ", argument.text(), " of the object"));
    }
  }
  outgoing.envelope = write_envelope(envelope);
  if (outgoing.envelope.size() > object::kMaxEnvelope) {
    refuse("the object takes ", Bytes(outgoing.envelope.size()), " without its tensors; ",
           Bytes(object::kMaxEnvelope), " may be sent. Put what is large into a tensor.");
  }
  return outgoing;
}

void ObjectExchange::check_type(const IncomingObject& incoming, const std::string& wanted) const {
  if (incoming.envelope.schema == wanted) return;
  const Rank at{own_global()};
  throw ObjectTypeError(
      Status::invalid(
          cat("rank ", at, ": ", op_->call(), ": rank ", incoming.from, " has sent an object of type ",
              base::quoted(incoming.envelope.schema, kTypeText), ", but ", base::quoted(wanted, kTypeText),
              " is wanted here."),
          {.rank = at, .peer = Rank{incoming.from}, .op = op_->call(), .group = op_->state()->name()}),
      at);
}

at::Tensor ObjectExchange::announcement(std::size_t envelope, std::size_t tensors) {
  at::Tensor announced = words();
  auto* word = announced.mutable_data_ptr<std::int64_t>();
  word[0] = static_cast<std::int64_t>(envelope);
  word[1] = static_cast<std::int64_t>(tensors);
  return announced;
}

IncomingObject ObjectExchange::expect(int from, const at::Tensor& announced) const {
  const std::int64_t size = announced.const_data_ptr<std::int64_t>()[0];
  if (size < 0 || size > static_cast<std::int64_t>(object::kMaxEnvelope)) end_group(corrupt(from));
  return {.from = from, .bytes = bytes_of_size(size)};
}

// The tensors are as large as the envelope says, which parse_envelope() has bounded. Memory that is not there
// is an error; memory that is there is not touched before the bytes come.
void ObjectExchange::open(IncomingObject& incoming, std::int64_t most_tensors) const {
  const auto* data = static_cast<const std::byte*>(incoming.bytes.const_data_ptr());
  auto envelope = object::parse_envelope({data, incoming.bytes.nbytes()});
  if (!envelope || static_cast<std::int64_t>(envelope->tensors.size()) > most_tensors ||
      !std::ranges::all_of(envelope->tensors, [](const auto& header) { return is_known(header.type); }))
    end_group(corrupt(incoming.from));
  incoming.envelope = std::move(*envelope);
  for (const object::TensorHeader& header : incoming.envelope.tensors) {
    const auto type = static_cast<at::ScalarType>(header.type);
    try {
      incoming.tensors.push_back(at::empty(header.sizes, at::TensorOptions().dtype(type)));
    } catch (const std::exception&) {
      end_group(
          Status::internal(cat("rank ", own_global(), ": ", op_->call(),
                               ": there is no memory for a tensor that rank ", incoming.from, " sends."),
                           {.failure = Failure::kNoMemory, .peer = Rank{incoming.from}}));
    }
  }
}

void ObjectExchange::run(OpKind kind, int root, const Tensors& inputs, const Tensors& outputs) const {
  Operation op(op_->call(), group_);
  for (const at::Tensor& input : inputs) op.input(input, {"object"});
  for (const at::Tensor& output : outputs) {
    if (kind == OpKind::kBroadcast) {
      op.in_place(output, {"object"});
    } else {
      op.output(output, {"object"});
    }
  }
  op.issue(kind, root, {.timeout = left()});
}

std::vector<IncomingObject> ObjectExchange::collect(const OutgoingObject& own, std::optional<int> to) const {
  const OpKind kind = to ? OpKind::kGather : OpKind::kAllGather;
  const int root = to.value_or(0);
  // All ranks hear how many tensors the one with most of them has.
  Tensors announced;
  for (int r = 0; r < size(); ++r) announced.push_back(words());
  run(OpKind::kAllGather, 0, {announcement(own.envelope.size(), own.tensors.size())}, announced);
  std::int64_t most = 0;
  for (const at::Tensor& each : announced) most = std::max(most, tensors_in(each));

  std::vector<IncomingObject> incoming;
  Tensors envelopes;
  for (int r = 0; r < size() && (!to || root == rank()); ++r) {
    incoming.push_back(expect(global(r), announced[static_cast<std::size_t>(r)]));
    envelopes.push_back(incoming.back().bytes);
  }
  run(kind, root, {raw(own.envelope)}, envelopes);
  for (IncomingObject& each : incoming) open(each, most);

  if (most == 0) return incoming;
  Tensors inputs;
  Tensors outputs;
  for (std::int64_t i = 0; i < most; ++i) {
    inputs.push_back(nth_raw(own.tensors, i));
    for (const IncomingObject& each : incoming) outputs.push_back(nth_raw(each.tensors, i));
  }
  run(kind, root, inputs, outputs);
  return incoming;
}

void ObjectExchange::broadcast(const OutgoingObject& own) const {
  run(OpKind::kBroadcast, rank(), {}, {announcement(own.envelope.size(), own.tensors.size())});
  run(OpKind::kBroadcast, rank(), {}, {raw(own.envelope)});
  if (own.tensors.empty()) return;
  Tensors parts;
  for (const at::Tensor& tensor : own.tensors) {
    const at::Tensor part = raw(tensor);
    // Two tensors of one memory are two where they arrive, and so they must be here.
    const bool shared = std::ranges::any_of(parts, [&](const auto& other) { return overlap(part, other); });
    parts.push_back(shared ? part.clone() : part);
  }
  run(OpKind::kBroadcast, rank(), {}, parts);
}

IncomingObject ObjectExchange::receive_broadcast(int root) const {
  const at::Tensor announced = words();
  run(OpKind::kBroadcast, root, {}, {announced});
  IncomingObject incoming = expect(global(root), announced);
  run(OpKind::kBroadcast, root, {}, {incoming.bytes});
  open(incoming, tensors_in(announced));
  if (tensors_in(announced) == 0) return incoming;
  Tensors parts;
  for (const at::Tensor& tensor : incoming.tensors) parts.push_back(raw(tensor));
  run(OpKind::kBroadcast, root, {}, parts);
  return incoming;
}

IncomingObject ObjectExchange::scatter(const std::vector<OutgoingObject>& parts, int root) const {
  std::size_t most = 0;
  for (const OutgoingObject& part : parts) most = std::max(most, part.tensors.size());
  Tensors announcements;
  Tensors envelopes;
  for (const OutgoingObject& part : parts) {
    announcements.push_back(announcement(part.envelope.size(), most));
    envelopes.push_back(raw(part.envelope));
  }
  const at::Tensor announced = words();
  run(OpKind::kScatter, root, announcements, {announced});
  IncomingObject incoming = expect(global(root), announced);
  run(OpKind::kScatter, root, envelopes, {incoming.bytes});
  open(incoming, tensors_in(announced));

  Tensors inputs;
  Tensors outputs;
  for (std::int64_t i = 0; i < tensors_in(announced); ++i) {
    for (const OutgoingObject& part : parts) inputs.push_back(nth_raw(part.tensors, i));
    outputs.push_back(nth_raw(incoming.tensors, i));
  }
  if (!outputs.empty()) run(OpKind::kScatter, root, inputs, outputs);
  return incoming;
}

void ObjectExchange::send(const OutgoingObject& own, SendOptions options) const {
  options.timeout = left();
  std::vector<WorkHandle> works;
  works.push_back(isend(announcement(own.envelope.size(), own.tensors.size()), options));
  works.push_back(isend(raw(own.envelope), options));
  for (const at::Tensor& tensor : own.tensors) works.push_back(isend(raw(tensor), options));
  for (const WorkHandle& work : works) work.wait();
}

IncomingObject ObjectExchange::receive(RecvOptions options) const {
  const at::Tensor announced = words();
  options.timeout = left();
  const int from = recv(announced, options);
  options.src = from;
  options.group_src = {};
  const auto next = [&](const at::Tensor& tensor) {
    options.timeout = left();
    recv(tensor, options);
  };
  IncomingObject incoming = expect(from, announced);
  next(incoming.bytes);
  open(incoming, tensors_in(announced));
  for (const at::Tensor& tensor : incoming.tensors) next(raw(tensor));
  return incoming;
}

}  // namespace lockstep::tensor

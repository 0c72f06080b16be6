#include "object_calls.h"

#include <ATen/ATen.h>

#include <map>

#include "lockstep/tensor/objects.h"

namespace lockstep {
namespace {

struct Parcel {
  std::string name;
  std::vector<std::int64_t> numbers;
  at::Tensor tensor;
};

LOCKSTEP_OBJECT(Parcel, name, numbers, tensor)

using Tensors = std::vector<at::Tensor>;

// Another one for each rank and part.
Parcel parcel(const ParityCall& call, int part) {
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < part + 1; ++i) numbers.push_back(call.rank - i);
  return {.name = "of " + std::to_string(call.rank),
          .numbers = std::move(numbers),
          .tensor = call.make(part, call.sizes)};
}

std::vector<Parcel> parcels(const ParityCall& call, int count) {
  std::vector<Parcel> list;
  for (int part = 0; part < count; ++part) list.push_back(parcel(call, part));
  return list;
}

Tensors contents(const std::vector<Parcel>& list) {
  Tensors all;
  for (const Parcel& each : list) {
    all.push_back(at::tensor(std::vector<std::int64_t>(each.name.begin(), each.name.end())));
    all.push_back(at::tensor(each.numbers));
    all.push_back(each.tensor);
  }
  return all;
}

ObjectFromRootOptions from_root(const ParityCall& call) {
  return {.src = call.global_root, .group_src = call.group_root, .group = call.group};
}

Tensors gathered_by_all(const ParityCall& call) {
  std::vector<Parcel> list;
  all_gather_object(list, parcel(call, 0), {.group = call.group});
  return contents(list);
}

Tensors gathered(const ParityCall& call) {
  std::vector<Parcel> list;
  gather_object(parcel(call, 0), list,
                {.dst = call.global_root, .group_dst = call.group_root, .group = call.group});
  return contents(list);
}

Tensors broadcast_list(const ParityCall& call) {
  std::vector<Parcel> list = parcels(call, 2);
  broadcast_object_list(list, from_root(call));
  return contents(list);
}

Tensors scattered(const ParityCall& call) {
  Parcel own;
  scatter_object_list(own, call.is_root() ? parcels(call, call.size) : std::vector<Parcel>(),
                      from_root(call));
  return contents({own});
}

// Around the ring, from rank 0 to itself.
Tensors passed_on(const ParityCall& call) {
  SendOptions to{.group = call.group};
  RecvOptions from{.group = call.group};
  if (call.group_root) {
    to.group_dst = (call.rank + 1) % call.size;
    from.group_src = (call.rank + call.size - 1) % call.size;
  } else {
    to.dst = call.next();
    from.src = call.previous();
  }
  std::vector<Parcel> list(2);
  if (call.rank == 0) send_object_list(parcels(call, 2), to);
  const int sender = recv_object_list(list, from);
  if (call.rank != 0) send_object_list(parcels(call, 2), to);
  Tensors all = contents(list);
  all.push_back(at::scalar_tensor(sender));
  return all;
}

using ObjectFunction = Tensors (*)(const ParityCall&);

const std::map<std::string, ObjectFunction>& object_functions() {
  static const std::map<std::string, ObjectFunction> all = {{"all_gather_object", gathered_by_all},
                                                            {"gather_object", gathered},
                                                            {"broadcast_object_list", broadcast_list},
                                                            {"scatter_object_list", scattered},
                                                            {"pass_object_list", passed_on}};
  return all;
}

}  // namespace

bool is_object_call(const std::string& name) { return object_functions().contains(name); }

std::vector<at::Tensor> run_object_call(const ParityCall& call) {
  return object_functions().at(call.name)(call);
}

}  // namespace lockstep

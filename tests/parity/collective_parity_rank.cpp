// Lockstep's side of collective_parity.py, which says what a script and an answer look like: runs the calls
// of FOLDER/script, and writes FOLDER/lockstep.RANK.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <charconv>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "composed_calls.h"
#include "functional_calls.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/messages.h"
#include "object_calls.h"
#include "parity_call.h"
#include "wrong_calls.h"

namespace lockstep {
namespace {

using tensor::SplitSizes;
using tensor::Tensors;
using Sizes = std::vector<std::int64_t>;

const std::map<std::string, at::ScalarType> kTypes = {{"float32", at::kFloat},
                                                      {"float64", at::kDouble},
                                                      {"float16", at::kHalf},
                                                      {"bfloat16", at::kBFloat16},
                                                      {"int32", at::kInt},
                                                      {"int64", at::kLong},
                                                      {"int8", at::kChar},
                                                      {"uint8", at::kByte},
                                                      {"bool", at::kBool},
                                                      {"complex64", at::kComplexFloat},
                                                      {"complex128", at::kComplexDouble}};
const std::map<std::string, ReduceOp> kOps = {{"sum", ReduceOp::kSum},         {"avg", ReduceOp::kAvg},
                                              {"product", ReduceOp::kProduct}, {"min", ReduceOp::kMin},
                                              {"max", ReduceOp::kMax},         {"band", ReduceOp::kBand},
                                              {"bor", ReduceOp::kBor},         {"bxor", ReduceOp::kBxor}};

// The same numbers in memory of another layout.
at::Tensor laid_out(const at::Tensor& plain, const std::string& layout) {
  if (layout == "turned" && plain.dim() > 1) return plain.transpose(0, 1).contiguous().transpose(0, 1);
  if (layout != "strided" || plain.dim() == 0) return plain;
  Sizes sizes = plain.sizes().vec();
  sizes.back() *= 2;
  return at::zeros(sizes, plain.options()).slice(-1, 0, sizes.back(), 2).copy_(plain);
}

struct Call {
  int number;
  std::string name, group, dtype;
  ReduceOp op;
  int root;
  int seed;
  bool fractions;
  std::string layout;
  Sizes sizes;
};

class Side {
 public:
  Side() : rank_(get_rank()), size_(get_world_size()), all_(new_group()), pair_(new_group({0, size_ - 1})) {}

  Tensors run(const Call& call) {
    call_ = call;
    group_ = call.group == "all" ? ProcessGroup() : pair_;
    if (!group_.is_member()) return {};
    own_ = group_.rank();
    n_ = group_.size();
    members_ = group_.ranks();
    next_ = members_[static_cast<std::size_t>((own_ + 1) % n_)];
    previous_ = members_[static_cast<std::size_t>((own_ + n_ - 1) % n_)];
    if (is_functional(call.name)) return run_functional(described());
    if (is_composed(call.name)) return run_composed(described());
    if (is_object_call(call.name)) return run_object_call(described());
    return calls_.at(call.name)();
  }
  void run_wrong(const std::string& which) const { lockstep::run_wrong({which, rank_, size_, all_, pair_}); }

 private:
  at::Tensor make(int part, const Sizes& sizes) const {
    const std::int64_t count =
        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
    const at::Tensor numbers = at::empty({count}, at::kDouble);
    for (std::int64_t i = 0; i < count; ++i) {
      double value = static_cast<double>((i * 7 + rank_ * 5 + part * 3 + call_.seed) % 4);
      if (call_.dtype != "uint8") value -= 1;
      if (call_.fractions) value += static_cast<double>((i * 13 + rank_ * 11 + call_.seed) % 97) / 97;
      numbers.mutable_data_ptr<double>()[i] = value;
    }
    const at::Tensor real = numbers.reshape(sizes);
    const bool complex = call_.dtype.starts_with("complex");
    return laid_out((complex ? at::complex(real, 2 - real) : real).to(kTypes.at(call_.dtype)), call_.layout);
  }
  at::Tensor make(int part) const { return make(part, call_.sizes); }
  at::Tensor empty(const Sizes& sizes) const {
    return laid_out(at::zeros(sizes, kTypes.at(call_.dtype)), call_.layout);
  }
  Tensors empties() const {
    Tensors list;
    for (int r = 0; r < n_; ++r) list.push_back(empty(call_.sizes));
    return list;
  }
  Tensors parts() const {
    Tensors list;
    for (int r = 0; r < n_; ++r) list.push_back(make(r));
    return list;
  }
  bool async() const { return call_.seed % 2 == 1; }
  bool is_root() const { return rank_ == call_.root; }
  // Every other pair of calls has its root as a rank in the group.
  bool as_group_rank() const { return call_.seed / 2 % 2 == 1; }
  std::optional<int> global_root() const {
    return as_group_rank() ? std::nullopt : std::optional(call_.root);
  }
  std::optional<int> group_root() const {
    return as_group_rank() ? std::optional(get_group_rank(group_, call_.root)) : std::nullopt;
  }
  ParityCall described() const {
    return {.name = call_.name,
            .number = call_.number,
            .group = group_,
            .members = members_,
            .rank = own_,
            .size = n_,
            .root = call_.root,
            .global_root = global_root(),
            .group_root = group_root(),
            .op = call_.op,
            .async_op = async(),
            .sizes = call_.sizes,
            .make = [this](int part, const Sizes& sizes) { return make(part, sizes); },
            .empty = [this](const Sizes& sizes) { return empty(sizes); }};
  }
  Tensors all_to_all_uneven() const {
    const std::int64_t rows = call_.sizes[0];
    SplitSizes send;
    for (int r = 0; r < n_; ++r) send.push_back(rows * (r + 1));
    const SplitSizes receive(static_cast<std::size_t>(n_), rows * (own_ + 1));
    Sizes in = call_.sizes;
    Sizes out = call_.sizes;
    in[0] = std::accumulate(send.begin(), send.end(), std::int64_t{0});
    out[0] = rows * (own_ + 1) * n_;
    const at::Tensor output = empty(out);
    all_to_all_single(output, make(0, in), receive, send, {.group = group_, .async_op = async()}).wait();
    return {output};
  }
  Tensors whole_gathered() const {
    Sizes whole = call_.sizes;
    whole[0] *= n_;
    const at::Tensor output = empty(whole);
    all_gather_single(output, make(0), {.group = group_, .async_op = async()}).wait();
    return {output};
  }
  Tensors ring() const {
    const at::Tensor output = empty(call_.sizes);
    const std::vector<P2POp> ops = {P2POp::isend(make(0), {.dst = next_, .group = group_}),
                                    P2POp::irecv(output, {.src = previous_, .group = group_})};
    for (const WorkHandle& work : batch_isend_irecv(ops)) work.wait();
    return {output};
  }
  Tensors from_any_source() const {
    const auto tag = static_cast<std::uint64_t>(call_.number);
    if (!is_root()) {
      send(make(0), {.dst = global_root(), .group_dst = group_root(), .group = group_, .tag = tag});
      return {};
    }
    std::map<int, at::Tensor> found;
    for (int i = 1; i < n_; ++i) {
      const at::Tensor tensor = empty(call_.sizes);
      found[recv(tensor, {.group = group_, .tag = tag})] = tensor;
    }
    Tensors outputs;
    for (const auto& [sender, tensor] : found) outputs.push_back(tensor);
    return outputs;
  }
  Tensors sparse_sum() const {
    const at::Tensor tensor = make(0).to_sparse();
    all_reduce(tensor, {.group = group_, .async_op = async()}).wait();
    return {tensor.to_dense()};
  }
  // `call` writes to the tensor that it is given.
  template <typename Function>
  Tensors on(const at::Tensor& tensor, const Function& call) const {
    call(tensor);
    return {tensor};
  }

  const int rank_;
  const int size_;
  const ProcessGroup all_;
  const ProcessGroup pair_;
  Call call_;
  ProcessGroup group_;
  std::vector<int> members_;
  int own_ = 0;
  int n_ = 0;
  int next_ = 0;
  int previous_ = 0;

  const std::map<std::string, std::function<Tensors()>> calls_ = {
      {"broadcast",
       [this] {
         return on(make(0), [&](const auto& t) {
           broadcast(t,
                     {.src = global_root(), .group_src = group_root(), .group = group_, .async_op = async()})
               .wait();
         });
       }},
      {"all_reduce",
       [this] {
         return on(make(0), [&](const auto& t) {
           all_reduce(t, {.op = call_.op, .group = group_, .async_op = async()}).wait();
         });
       }},
      {"all_reduce_coalesced",
       [this] {
         const Tensors two = {make(0), make(1)};
         all_reduce_coalesced(two, {.op = call_.op, .group = group_, .async_op = async()}).wait();
         return two;
       }},
      {"reduce",
       [this] {
         const at::Tensor tensor = make(0);
         reduce(tensor, {.dst = global_root(),
                         .group_dst = group_root(),
                         .op = call_.op,
                         .group = group_,
                         .async_op = async()})
             .wait();
         return is_root() ? Tensors{tensor} : Tensors{};
       }},
      {"all_gather",
       [this] {
         const Tensors outputs = empties();
         all_gather(outputs, make(0), {.group = group_, .async_op = async()}).wait();
         return outputs;
       }},
      {"all_gather_single", [this] { return whole_gathered(); }},
      {"gather",
       [this] {
         const Tensors outputs = is_root() ? empties() : Tensors();
         gather(make(0), outputs,
                {.dst = global_root(), .group_dst = group_root(), .group = group_, .async_op = async()})
             .wait();
         return outputs;
       }},
      {"scatter",
       [this] {
         return on(empty(call_.sizes), [&](const auto& t) {
           scatter(t, is_root() ? parts() : Tensors(),
                   {.src = global_root(), .group_src = group_root(), .group = group_, .async_op = async()})
               .wait();
         });
       }},
      {"reduce_scatter",
       [this] {
         return on(empty(call_.sizes), [&](const auto& t) {
           reduce_scatter(t, parts(), {.op = call_.op, .group = group_, .async_op = async()}).wait();
         });
       }},
      {"reduce_scatter_single",
       [this] {
         return on(empty(call_.sizes), [&](const auto& t) {
           reduce_scatter_single(t, at::cat(parts()), {.op = call_.op, .group = group_, .async_op = async()})
               .wait();
         });
       }},
      {"all_to_all",
       [this] {
         const Tensors outputs = empties();
         all_to_all(outputs, parts(), {.group = group_, .async_op = async()}).wait();
         return outputs;
       }},
      {"all_to_all_single", [this] { return all_to_all_uneven(); }},
      {"ring", [this] { return ring(); }},
      {"any_source", [this] { return from_any_source(); }},
      {"sparse_all_reduce", [this] { return sparse_sum(); }},
      {"barrier", [this] {
         barrier({.group = group_, .async_op = async()}).wait();
         return Tensors();
       }}};
};

Call parse(std::istringstream& words, const std::string& number, const std::string& name) {
  Call call{.number = std::stoi(number), .name = name};
  std::string op;
  std::string values;
  words >> call.group >> call.dtype >> op >> call.root >> call.seed >> values >> call.layout;
  call.op = kOps.at(op);
  call.fractions = values == "fractions";
  for (std::int64_t size = 0; words >> size;) call.sizes.push_back(size);
  return call;
}

// As Python's repr() writes it: the shortest that reads back as the same.
std::string number_text(double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  std::string text(digits, end.ptr);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// "ok", "refused" before anything was sent, or "failed".
std::string outcome_of_wrong(const Side& side, const std::string& which) {
  try {
    side.run_wrong(which);
    return "ok";
  } catch (const InvalidArgument&) {
    return "refused";
  } catch (const DistError&) {
    return "failed";
  }
}

void run(const std::string& folder) {
  at::set_num_threads(1);
  const auto world = init_process_group();
  Side side;
  std::ifstream script(folder + "/script");
  std::ofstream answers(folder + "/lockstep." + std::to_string(get_rank()));
  for (std::string line; std::getline(script, line);) {
    std::istringstream words(line);
    std::string number;
    std::string name;
    words >> number >> name;
    answers << number << ' ' << get_rank();
    if (name == "wrong") {
      std::string which;
      words >> which;
      answers << ' ' << outcome_of_wrong(side, which) << '\n';
      continue;
    }
    answers << " ok";
    for (const at::Tensor& tensor : side.run(parse(words, number, name))) {
      const at::Tensor values =
          (tensor.is_complex() ? at::view_as_real(tensor.contiguous()) : tensor).to(at::kDouble).contiguous();
      for (std::int64_t i = 0; i < values.numel(); ++i)
        answers << ' ' << number_text(values.const_data_ptr<double>()[i]);
    }
    answers << '\n';
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: collective_parity_rank FOLDER\n";
    return 2;
  }
  try {
    lockstep::run(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}

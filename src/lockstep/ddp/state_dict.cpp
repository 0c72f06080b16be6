#include "lockstep/ddp/state_dict.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/unpickler.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::ddp {
namespace {

using namespace std::string_view_literals;

constexpr auto kPrefix = "module."sv;

constexpr auto kHowToSave = "Save it in Python with torch.save(model.state_dict(), path)."sv;

[[noreturn]] void refuse_state(const std::string& what) {
  throw tensor::InvalidArgument(Status::invalid(cat("load_state_dict: ", what), {.op = "load_state_dict"}),
                                {});
}

// A state_dict() is an OrderedDict with an attribute, _metadata, neither of which torch's reader in C++
// knows. This is its pickle (protocol 2, as torch.save() writes it) as a pair: the class of the OrderedDict,
// and a plain dictionary of what it holds. Nothing if it is not of that kind.
std::optional<std::string> as_plain_dictionary(const std::string& pickle) {
  constexpr auto kClass =
      "\x80\x02"
      "ccollections\nOrderedDict\nq\0"sv;
  constexpr auto kMade = ")R"sv;  // called without arguments
  constexpr auto kMetadata = "X\x09\0\0\0_metadata"sv;
  constexpr auto kPair = "\x86."sv;
  if (!pickle.starts_with(std::string(kClass) + std::string(kMade)) || !pickle.ends_with('.')) return {};
  std::size_t end = pickle.size() - 1;
  if (const std::size_t metadata = pickle.rfind(kMetadata); metadata != std::string::npos) {
    // Before it, the dictionary of attributes is begun, and numbered in 1 byte or 4.
    end = pickle.compare(metadata - 3, 2, "}q") == 0 ? metadata - 3 : metadata - 6;
    if (pickle[end] != '}') return {};
  }
  const std::size_t rest = kClass.size() + kMade.size();
  return cat(kClass, '}', pickle.substr(rest, end - rest), kPair);
}

struct Unpickled {
  c10::IValue value;
  std::map<const void*, std::size_t> bytes;  // of each storage, by where it begins
};

Unpickled unpickled(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader file(path);
  const auto [data, size] = file.getRecord("data.pkl");
  const std::string whole(static_cast<const char*>(data.get()), size);
  const std::optional<std::string> plain = as_plain_dictionary(whole);
  const std::string& pickle = plain ? *plain : whole;
  std::size_t at = 0;
  const auto next = [&](char* to, std::size_t most) {
    const std::size_t count = pickle.copy(to, most, at);
    at += count;
    return count;
  };
  std::map<const void*, std::size_t> bytes;
  const auto bytes_of = [&](const std::string& name) {
    auto [storage, count] = file.getRecord("data/" + name);
    bytes.emplace(storage.get(), count);
    return std::move(storage);
  };
  torch::jit::Unpickler unpickler(next, nullptr, nullptr, bytes_of, at::kCPU);
  unpickler.set_version(file.version());
  const c10::IValue value = unpickler.parse_ivalue();
  return {plain ? value.toTupleRef().elements()[1] : value, std::move(bytes)};
}

// Whether the file has all of the tensor's elements. torch's reader in C++ believes what a file says of how
// large a storage is.
bool is_whole(const at::Tensor& tensor, const std::map<const void*, std::size_t>& bytes) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.storage_offset() < 0) return false;
  const c10::Storage& storage = tensor.storage();
  const auto read = bytes.find(storage.data());
  const std::size_t most = read == bytes.end() ? storage.nbytes() : std::min(read->second, storage.nbytes());
  try {
    return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                            static_cast<std::size_t>(tensor.storage_offset())) <= most;
  } catch (const c10::Error&) {  // more than a number can say
    return false;
  }
}

// Of a file that cannot be read: what it is instead.
std::string why_not(const std::string& path) {
  constexpr auto kLegacy =
      "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19."sv;  // a number that torch begins with
  std::string begin(kLegacy.size(), '\0');
  std::ifstream(path, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (begin == kLegacy)
    return "is in torch's older format (_use_new_zipfile_serialization=False), which is not read here.";
  if (!begin.starts_with("PK")) return "is no file of torch.save().";
  std::string pickle;
  try {
    caffe2::serialize::PyTorchStreamReader file(path);
    const auto [data, size] = file.getRecord("data.pkl");
    pickle.assign(static_cast<const char*>(data.get()), size);
  } catch (const std::exception&) {
    return "is an archive, but not one of torch.save(), or it is damaged.";
  }
  if (pickle.size() > 1 && pickle[0] == '\x80' && pickle[1] != '\x02')
    return cat("was pickled with protocol ", static_cast<int>(pickle[1]),
               "; protocol 2 is read here, which torch.save() takes by itself.");
  if (pickle.starts_with("\x80\x02}"))
    return "holds a dictionary of other things than tensors, such as {\"model\": ..., \"epoch\": ...}.";
  return "holds other things than tensors by name, such as a whole model or parameters.";
}

std::map<std::string, at::Tensor> read(const std::string& path) {
  if (!std::ifstream(path, std::ios::binary)) refuse_state(cat("cannot read ", base::quoted(path), '.'));
  Unpickled file;
  try {
    file = unpickled(path);
  } catch (const std::exception&) {
    refuse_state(cat(base::quoted(path), ' ', why_not(path), ' ', kHowToSave));
  }
  if (!file.value.isGenericDict())
    refuse_state(cat(base::quoted(path), " holds no dictionary of tensors. ", kHowToSave));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : file.value.toGenericDict()) {
    if (!item.key().isString() || !item.value().isTensor())
      refuse_state(cat(base::quoted(path), " holds ",
                       item.key().isString() ? base::quoted(item.key().toStringRef()) : "a key",
                       item.key().isString() ? ", which is no tensor. " : " that is no name. ", kHowToSave));
    if (!is_whole(item.value().toTensor(), file.bytes))
      refuse_state(cat(base::quoted(path), " has not all elements of ",
                       base::quoted(item.key().toStringRef()),
                       ", or they are sparse; it is damaged, or was not made by torch.save()."));
    tensors.emplace(item.key().toStringRef(), item.value().toTensor());
  }
  return tensors;
}

// As the wrapper of Python's DistributedDataParallel names them; a module may have such names of its own.
bool is_wrapped(const std::map<std::string, at::Tensor>& given, const torch::nn::Module& module) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  return std::all_of(given.begin(), given.end(), [&](const auto& item) {
    return item.first.starts_with(kPrefix) && !parameters.contains(item.first) &&
           !buffers.contains(item.first);
  });
}

std::map<std::string, at::Tensor> unwrapped(const std::map<std::string, at::Tensor>& given) {
  std::map<std::string, at::Tensor> plain;
  for (const auto& [name, tensor] : given) plain.emplace(name.substr(kPrefix.size()), tensor);
  return plain;
}

}  // namespace

void load_state_dict(torch::nn::Module& module, const std::string& path) {
  std::map<std::string, at::Tensor> given = read(path);
  if (is_wrapped(given, module)) given = unwrapped(given);
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  const auto pair = [&](const std::string& name, const at::Tensor& own) {
    const auto found = given.find(name);
    if (found == given.end()) refuse_state(cat(base::quoted(path), " has no ", base::quoted(name), '.'));
    if (found->second.sizes() != own.sizes())
      refuse_state(
          cat(base::quoted(path), " has ", base::quoted(name), " in another shape than the module."));
    pairs.emplace_back(own, found->second);
    given.erase(found);
  };
  for (const auto& item : module.named_parameters()) pair(item.key(), item.value());
  for (const auto& item : module.named_buffers()) pair(item.key(), item.value());
  if (!given.empty())
    refuse_state(
        cat(base::quoted(path), " has ", base::quoted(given.begin()->first), ", which the module has not."));
  const at::NoGradGuard no_grad;
  for (const auto& [own, other] : pairs) own.copy_(other);
}

}  // namespace lockstep::ddp

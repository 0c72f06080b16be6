// The parameters and buffers of a wrapped model: which are rank 0's, which stay the rank's own, and how they
// are saved.
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/utils.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/state_dict.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using tensor::run_world;
using ::testing::ElementsAre;

TEST(Model, SavedStateHasNoPrefix) {
  run_world(2, [](int rank) {
    nn::Sequential plain(nn::Linear(3, 4), nn::BatchNorm1d(4));
    nn::Sequential wrapped(nn::Linear(3, 4), nn::BatchNorm1d(4));
    DistributedDataParallel model(wrapped);
    std::stringstream bytes;
    torch::save(std::shared_ptr<nn::Module>(std::shared_ptr<nn::Module>(), &model), bytes);
    torch::load(plain, bytes);
    EXPECT_TRUE(at::equal(plain[0]->as<nn::Linear>()->weight, wrapped[0]->as<nn::Linear>()->weight));
    {
      const torch::NoGradGuard no_grad;
      plain[0]->as<nn::Linear>()->weight.fill_(rank + 1);
    }
    std::stringstream back;
    torch::save(plain, back);
    torch::serialize::InputArchive archive;
    archive.load_from(back);
    model.load(archive);
    EXPECT_TRUE(tensor::all_equal(wrapped[0]->as<nn::Linear>()->weight, rank + 1));
  });
}

// As a Python program saves it.
struct SavedState {
  explicit SavedState(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    c10::Dict<std::string, at::Tensor> state;
    for (const auto& [name, tensor] : tensors) state.insert(name, tensor);
    const std::vector<char> bytes = torch::jit::pickle_save(state);
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;
  ~SavedState() { std::filesystem::remove(path); }
  const std::filesystem::path path = cat(::testing::TempDir(), "lockstep_state_", ::getpid(), ".pt");
};

TEST(Model, LoadsWhatPythonHasSaved) {
  const at::Tensor weight = torch::full({1, 2}, 3.);
  const at::Tensor bias = torch::full({1}, 4.);
  const auto loads = [&](nn::Module& net, const SavedState& state) {
    {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : net.parameters()) parameter.zero_();
    }
    load_state_dict(net, state.path);
    return tensor::all_equal(net.parameters()[0], 3) && tensor::all_equal(net.parameters()[1], 4);
  };
  nn::Linear net(2, 1);
  EXPECT_TRUE(loads(*net, SavedState({{"weight", weight}, {"bias", bias}})));
  EXPECT_TRUE(loads(*net, SavedState({{"module.weight", weight}, {"module.bias", bias}})));
  struct Inside : nn::Module {
    Inside() { register_module("module", module); }
    nn::Linear module{2, 1};
  } inside;
  EXPECT_TRUE(loads(inside, SavedState({{"module.weight", weight}, {"module.bias", bias}})));
  EXPECT_TRUE(loads(inside, SavedState({{"module.module.weight", weight}, {"module.module.bias", bias}})));

  const auto refused = [&](const SavedState& state, const std::vector<std::string>& words) {
    tensor::expect_error([&] { load_state_dict(*net, state.path); }, words);
    EXPECT_TRUE(tensor::all_equal(net->weight, 3) && tensor::all_equal(net->bias, 4));
  };
  refused(SavedState({{"weight", torch::ones({1, 2})}}), {"no \"bias\""});
  refused(SavedState({{"weight", torch::ones({1, 3})}, {"bias", bias}}), {"\"weight\"", "another shape"});
  refused(SavedState({{"weight", torch::ones({1, 2})}, {"bias", bias}, {"scale", bias}}),
          {"\"scale\", which the module has not"});
  tensor::expect_error([&] { load_state_dict(*net, "/nowhere"); }, {"cannot read", "/nowhere"});

  // What torch.save() writes besides.
  const std::string how = "torch.save(model.state_dict(), path)";
  const auto file_of = [](const SavedState& state, const std::string& bytes) {
    std::ofstream(state.path, std::ios::binary) << bytes;
  };
  const auto archive_of = [](const SavedState& state, const std::string& pickle) {
    caffe2::serialize::PyTorchStreamWriter writer(state.path);
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    writer.writeEndOfFile();
  };
  using namespace std::string_literals;
  const auto refused_as = [&](const auto& writes, const std::string& bytes, const std::string& word) {
    const SavedState state({});
    writes(state, bytes);
    refused(state, {word, how});
  };
  refused_as(file_of, "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "older format");
  refused_as(file_of, "weights", "no file of torch.save()");
  refused_as(archive_of, "\x80\x04}."s, "protocol 4");
  refused_as(
      archive_of,
      "\x80\x02}q\0X\x05\0\0\0modelccollections\nOrderedDict\nq\1)Rq\2}q\3X\x09\0\0\0_metadataq\4}q\5sbs."s,
      "\"model\"");
  refused_as(archive_of, "\x80\x02}q\0X\x05\0\0\0epochK\3s."s, "\"epoch\", which is no tensor");
}

TEST(Model, DoesNotReadBeyondWhatAFileHasOfATensor) {
  const at::Tensor bias = torch::ones({1});
  const auto refused = [&](const SavedState& state, const std::string& words) {
    nn::Linear net(2, 1);
    const at::Tensor before = net->weight.clone();
    tensor::expect_error([&] { load_state_dict(*net, state.path); }, {"load_state_dict", words});
    EXPECT_TRUE(at::equal(net->weight, before));
  };
  const auto laid_out = [](std::int64_t offset, std::int64_t stride) {
    const at::Tensor weight = torch::ones({1, 2});
    weight.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef({1, 2}),
                                                        at::IntArrayRef({2, stride}));
    weight.unsafeGetTensorImpl()->set_storage_offset(offset);
    return weight;
  };
  using Layout = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [offset, stride] : {Layout{1, 1}, Layout{-1, 1}, Layout{0, 2}, Layout{0, INT64_MAX}})
    refused(SavedState({{"weight", laid_out(offset, stride)}, {"bias", bias}}), "");

  const SavedState shortened({{"weight", torch::ones({1, 2})}, {"bias", bias}});
  std::map<std::string, std::string> records;
  {
    caffe2::serialize::PyTorchStreamReader reader(shortened.path);
    for (const char* name : {"data.pkl", "data/0", "data/1"}) {
      const auto [bytes, size] = reader.getRecord(name);
      records[name].assign(static_cast<const char*>(bytes.get()), size);
    }
  }
  {
    caffe2::serialize::PyTorchStreamWriter writer(shortened.path);
    for (const auto& [name, bytes] : records)
      writer.writeRecord(name, bytes.data(),
                         std::min<std::size_t>(bytes.size(), name == "data.pkl" ? 9999 : 4));
    writer.writeEndOfFile();
  }
  refused(shortened, "not all elements of \"weight\"");
}

TEST(Model, StartsWithTheValuesOfRankZero) {
  run_world(3, [](int rank) {
    torch::manual_seed(rank);
    nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4));
    net[1]->as<nn::BatchNorm1d>()->running_mean.fill_(rank);
    DistributedDataParallel model(net);
    torch::manual_seed(0);
    const nn::Linear same(3, 4);
    EXPECT_TRUE(at::equal(net[0]->as<nn::Linear>()->weight, same->weight));
    EXPECT_TRUE(tensor::all_equal(net[1]->as<nn::BatchNorm1d>()->running_mean, 0));
  });
}

TEST(Model, BuffersAreThoseOfRankZeroBeforeForward) {
  run_world(2, [](int rank) {
    nn::BatchNorm1d net(2);
    DistributedDataParallel model(net);
    net->running_mean.fill_(rank + 5);
    const auto version = net->running_var._version();
    net->train(false);
    model.train();
    net->options.momentum(0);
    model(torch::randn({4, 2}));
    EXPECT_TRUE(tensor::all_equal(net->running_mean, 5));
    EXPECT_LE(net->running_var._version(), version + 1);  // by the module's own update

    nn::BatchNorm1d own(2);
    DistributedDataParallel apart(own, {.forward_sync_buffers = false});
    own->options.momentum(0);
    own->running_mean.fill_(rank + 5);
    apart(torch::randn({4, 2})).sum().backward();
    EXPECT_TRUE(tensor::all_equal(own->running_mean, rank + 5));

    std::vector<std::string> seen;
    nn::BatchNorm1d hooked(2);
    DistributedDataParallel with_hook(hooked);
    with_hook.register_buffer_comm_hook(
        [&](const ddp::NamedTensors& buffers) {
          for (const auto& [name, buffer] : buffers) seen.push_back(name);
        },
        BufferHookLocation::kPostForward);
    with_hook(torch::randn({4, 2}));
    EXPECT_THAT(seen, ElementsAre("running_mean", "running_var", "num_batches_tracked"));
    with_hook.register_buffer_comm_hook([&](const ddp::NamedTensors&) { hooked->running_mean.fill_(7); },
                                        BufferHookLocation::kPreForward);
    hooked->options.momentum(0);
    with_hook(torch::randn({4, 2}));
    EXPECT_TRUE(tensor::all_equal(hooked->running_mean, 7));
  });
}

// A layer, and a buffer that is the rank's number when it is made.
struct NumberedImpl : nn::Module {
  explicit NumberedImpl(int rank) : layer(register_module("layer", nn::Linear(2, 2))) {
    number = register_buffer("number", torch::full({2}, rank));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  nn::Linear layer;
  at::Tensor number;
};
TORCH_MODULE(Numbered);

TEST(Model, OptionsSayWhichBuffersAreRankZeros) {
  struct Case {
    DataParallelOptions options;
    bool at_construction;
    bool before_forward;
  };
  const std::vector<Case> cases = {
      {{}, true, true},
      {{.forward_sync_buffers = false}, true, false},
      {{.broadcast_buffers = false}, false, false},
      {{.forward_sync_buffers = true, .broadcast_buffers = false}, true, true},
      {{.init_sync = false}, false, true},
      {{.parameters_and_buffers_to_ignore = {"number"}}, false, false},
  };
  run_world(2, [&](int rank) {
    for (const Case& each : cases) {
      torch::manual_seed(rank);
      Numbered net(rank);
      const at::Tensor weight = net->layer->weight.detach().clone();
      DistributedDataParallel model(net, each.options);
      EXPECT_TRUE(tensor::all_equal(net->number, each.at_construction ? 0 : rank));
      EXPECT_EQ(at::equal(net->layer->weight, weight), rank == 0 || !each.options.init_sync);
      net->number.fill_(rank + 5);
      const auto version = net->number._version();
      model(torch::ones({1, 2})).sum().backward();
      EXPECT_TRUE(tensor::all_equal(net->number, each.before_forward ? 5 : rank + 5));
      EXPECT_EQ(net->number._version(), version);
      // Another tensor in its place, and one that is new.
      net->number.set_data(torch::full({3}, rank + 9));
      const at::Tensor later = net->register_buffer("later", torch::full({2}, rank + 7));
      model(torch::ones({1, 2})).sum().backward();
      const bool is_ignored = !each.options.parameters_and_buffers_to_ignore.empty();
      EXPECT_TRUE(tensor::all_equal(net->number, each.before_forward ? 9 : rank + 9));
      EXPECT_TRUE(tensor::all_equal(later, each.before_forward || is_ignored ? 7 : rank + 7));
    }
  });
}

TEST(Model, IgnoredAndFrozenParametersStayAsTheyAre) {
  run_world(2, [](int rank) {
    nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2));
    net[0]->as<nn::Linear>()->bias.requires_grad_(false);
    {
      const torch::NoGradGuard no_grad;
      net[1]->as<nn::Linear>()->weight.fill_(rank);
    }
    DistributedDataParallel model(net, {.parameters_and_buffers_to_ignore = {"1.weight"}});
    EXPECT_TRUE(tensor::all_equal(net[1]->as<nn::Linear>()->weight, rank));
    model(torch::full({1, 2}, 1.)).sum().backward();
    model(torch::full({1, 2}, 1.)).sum().backward();
    EXPECT_FALSE(net[0]->as<nn::Linear>()->bias.grad().defined());
  });
}

// Keeps something besides its parameters and buffers, and says so in words of its own.
struct Counting : nn::Module {
  Counting() { weight = register_parameter("weight", torch::ones({2})); }
  at::Tensor forward(const at::Tensor& x) { return (x * weight).sum(); }
  void save(torch::serialize::OutputArchive& archive) const override {
    nn::Module::save(archive);
    archive.write("count", torch::full({1}, count), /*is_buffer=*/true);
  }
  void load(torch::serialize::InputArchive& archive) override {
    nn::Module::load(archive);
    at::Tensor read;
    archive.read("count", read, /*is_buffer=*/true);
    count = read.item<int>();
  }
  at::Tensor weight;
  int count = 0;
};

TEST(Model, AnAnyModuleIsSavedAndLoadedAsItWouldItself) {
  run_world(2, [](int) {
    auto net = std::make_shared<Counting>();
    auto model = std::make_shared<DistributedDataParallel<nn::AnyModule>>(nn::AnyModule(net));
    net->count = 3;
    std::stringstream bytes;
    torch::save(model, bytes);
    net->count = 0;
    torch::load(model, bytes);
    EXPECT_EQ(net->count, 3);
  });
}

TEST(Model, GoesOnAfterItsParametersWereLoadedOrConvertedAndBack) {
  for (const DataParallelOptions& each :
       {DataParallelOptions{}, DataParallelOptions{.find_unused_parameters = true},
        DataParallelOptions{.static_graph = true}}) {
    run_world(2, [&](int rank) {
      nn::Linear net(2, 1);
      DistributedDataParallel model(net, each);
      const at::Tensor x = torch::full({1, 2}, rank + 1.);
      const auto expect_reduced = [&](bool accumulates) {
        net->zero_grad();
        if (accumulates) {
          const auto guard = model.no_sync();
          model(x).sum().backward();
        }
        model(x).sum().backward();
        EXPECT_TRUE(tensor::all_equal(net->weight.grad(), accumulates ? 3 : 1.5));
      };
      expect_reduced(false);
      std::stringstream bytes;
      torch::save(net, bytes);
      const at::Tensor before = model(x).sum();  // its graph is that of the parameters as they were
      for (const bool accumulates : {false, true, false}) {
        bytes.seekg(0);
        torch::load(net, bytes);
        expect_reduced(accumulates);
        net->to(at::kDouble);
        net->to(at::kFloat);
        expect_reduced(accumulates);
      }
      net->zero_grad();
      before.backward();
      EXPECT_TRUE(tensor::all_equal(net->weight.grad(), 1.5));
    });
  }
}

TEST(Model, ABufferThatAScriptReassignsIsSeenSavedAndLoaded) {
  struct Same : nn::Module {
    Same() {
      register_parameter("weight", torch::zeros({2}));
      register_buffer("mean", torch::zeros({2}));
    }
  };
  run_world(2, [](int rank) {
    torch::jit::Module script("Averaging");
    script.register_parameter("weight", torch::ones({2}).requires_grad_(), false);
    script.register_buffer("mean", torch::zeros({2}));
    script.define(
        "def forward(self, x):\n  self.mean = self.mean + x.mean(0)\n  return (x * self.weight).sum()\n");
    auto model = std::make_shared<DistributedDataParallel<torch::jit::Module>>(script);
    const auto live = [&] { return script.attr("mean").toTensor(); };
    for (int step = 0; step < 2; ++step)
      model->forward(std::vector<c10::IValue>{torch::full({3, 2}, rank + 1.)}).toTensor().backward();
    EXPECT_TRUE(tensor::all_equal(live(), rank + 2));  // rank 0's, and one more of its own
    EXPECT_TRUE(at::equal(model->named_buffers()["mean"], live()));
    std::stringstream bytes;
    torch::save(model, bytes);
    auto plain = std::make_shared<Same>();
    torch::load(plain, bytes);
    EXPECT_TRUE(at::equal(plain->named_buffers()["mean"], live()));
    plain->named_buffers()["mean"].fill_(9);
    std::stringstream back;
    torch::save(plain, back);
    torch::load(model, back);
    EXPECT_TRUE(tensor::all_equal(live(), 9));
    model->named_buffers()["mean"].fill_(5);
    EXPECT_TRUE(tensor::all_equal(live(), 5));
    // One that the script was given since is rank 0's too, but none of the model's.
    script.register_buffer("later", torch::full({3}, rank + 1.));
    model->forward(std::vector<c10::IValue>{torch::ones({3, 2})});
    EXPECT_TRUE(tensor::all_equal(live(), 6));
    EXPECT_TRUE(at::equal(model->named_buffers()["mean"], live()));
    EXPECT_TRUE(tensor::all_equal(script.attr("later").toTensor(), 1));
    model->to(at::kDouble);
    EXPECT_EQ(live().scalar_type(), at::kDouble);
  });
}

TEST(Model, AParameterWithTwoNamesIsIgnoredByEither) {
  struct Tied : nn::Module {
    Tied() {
      register_module("one", layer);
      register_module("other", layer);
      register_module("last", last);
    }
    at::Tensor forward(const at::Tensor& x) { return last(layer(x)).sum(); }
    nn::Linear layer{2, 2};
    nn::Linear last{2, 1};
  };
  run_world(2, [](int rank) {
    for (const char* name : {"one.bias", "other.bias"}) {
      auto net = std::make_shared<Tied>();
      {
        const torch::NoGradGuard no_grad;
        net->last->weight.fill_(1);
      }
      DistributedDataParallel model(net, {.parameters_and_buffers_to_ignore = {name}});
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        ((rank + 1) * model(torch::ones({1, 2}))).backward();
        EXPECT_TRUE(tensor::all_equal(net->layer->bias.grad(), rank + 1)) << name;
        EXPECT_TRUE(tensor::all_equal(net->layer->weight.grad(), 1.5)) << name;
      }
    }
  });
}

}  // namespace
}  // namespace lockstep

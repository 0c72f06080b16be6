// Object collectives on worlds of real processes.
#include "lockstep/tensor/objects.h"

#include <map>
#include <optional>
#include <string>
#include <variant>

#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep::tensor {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

struct Inner {
  std::map<std::string, at::Tensor> tensors;
  std::optional<int> number;
};
LOCKSTEP_OBJECT(Inner, tensors, number)

struct Sample {
  std::string name;
  std::vector<float> weights;
  at::Tensor image;
  Inner inner;
  std::variant<int, std::string> either;
};
LOCKSTEP_OBJECT(Sample, name, weights, image, inner, either)

struct Other {
  std::string name;
};
LOCKSTEP_OBJECT(Other, name)

// Of rank r: r tensors in its map, and an image of r rows.
Sample sample_of(int rank) {
  Sample sample{.name = "rank " + std::to_string(rank),
                .weights = std::vector<float>(static_cast<std::size_t>(1000 * rank), 0.5F),
                .image = at::full({rank, 3}, rank, at::kFloat),
                .inner = {.number = rank % 2 == 0 ? std::optional(rank) : std::nullopt},
                .either = {}};
  for (int i = 0; i < rank; ++i)
    sample.inner.tensors[std::to_string(i)] = at::full({i, 2}, i, at::kLong).t();  // not contiguous
  if (rank == 2) sample.either = std::string(100000, '2');
  return sample;
}

void expect_same(const Sample& actual, const Sample& expected) {
  EXPECT_EQ(actual.name, expected.name);
  EXPECT_EQ(actual.weights, expected.weights);
  EXPECT_TRUE(at::equal(actual.image, expected.image));
  EXPECT_EQ(actual.inner.number, expected.inner.number);
  EXPECT_EQ(actual.either, expected.either);
  ASSERT_EQ(actual.inner.tensors.size(), expected.inner.tensors.size());
  for (const auto& [key, tensor] : expected.inner.tensors) {
    EXPECT_TRUE(at::equal(actual.inner.tensors.at(key), tensor));
    EXPECT_TRUE(actual.inner.tensors.at(key).is_contiguous());
  }
}

TEST(Objects, OfAllRanksAreGathered) {
  for (const int size : {1, 2, 3}) {
    run_world(size, [size](int rank) {
      std::vector<Sample> all;
      all_gather_object(all, sample_of(rank));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
      for (int r = 0; r < size; ++r) expect_same(all[static_cast<std::size_t>(r)], sample_of(r));
      std::vector<std::string> names{"what was there before"};
      all_gather_object(names, std::to_string(rank));
      EXPECT_EQ(names.size(), static_cast<std::size_t>(size));
      EXPECT_EQ(names.back(), std::to_string(size - 1));

      std::vector<Sample> at_root;
      gather_object(sample_of(rank), at_root, {.dst = size - 1});
      ASSERT_EQ(at_root.size(), rank == size - 1 ? static_cast<std::size_t>(size) : 0);
      for (std::size_t r = 0; r < at_root.size(); ++r)
        expect_same(at_root[r], sample_of(static_cast<int>(r)));
      std::vector<int> numbers{-1};
      gather_object(rank, numbers);  // at rank 0
      EXPECT_EQ(numbers.size(), rank == 0 ? static_cast<std::size_t>(size) : 1);
      barrier();
    });
  }
}

TEST(Objects, OfTheRootAreBroadcastAndScattered) {
  for (const int size : {1, 2, 3}) {
    run_world(size, [size](int rank) {
      const int root = size - 1;
      std::vector<Sample> list;
      if (rank == root) list = {sample_of(0), sample_of(2), sample_of(1)};
      broadcast_object_list(list, {.src = root});
      ASSERT_EQ(list.size(), 3U);
      expect_same(list[0], sample_of(0));
      expect_same(list[1], sample_of(2));
      std::vector<int> numbers(2, rank);
      broadcast_object_list(numbers);
      EXPECT_THAT(numbers, ElementsAre(0, 0));

      std::vector<Sample> parts;
      for (int r = 0; rank == root && r < size; ++r) parts.push_back(sample_of(r));
      Sample own;
      scatter_object_list(own, parts, {.group_src = root});
      expect_same(own, sample_of(rank));
      std::string text;
      if (rank == 0) {
        scatter_object_list(text, std::vector<std::string>(static_cast<std::size_t>(size), "text"));
      } else {
        scatter_object_list(text);
      }
      EXPECT_EQ(text, "text");
      barrier();
    });
  }
}

TEST(Objects, AreSentAndTakenFromAnyone) {
  run_world(3, [](int rank) {
    if (rank != 0) {
      send_object_list(std::vector<Sample>{sample_of(rank), sample_of(0)}, {.dst = 0});
      send_object_list(std::vector<int>{rank}, {.group_dst = 0, .tag = 7});
      barrier();
      return;
    }
    std::vector<int> senders;
    for (int i = 0; i < 2; ++i) {
      std::vector<Sample> list;
      senders.push_back(recv_object_list(list));
      ASSERT_EQ(list.size(), 2U);
      expect_same(list[0], sample_of(senders.back()));
    }
    EXPECT_THAT(senders, UnorderedElementsAre(1, 2));
    std::vector<int> number;
    EXPECT_EQ(recv_object_list(number, {.src = 2, .tag = 7}), 2);
    EXPECT_THAT(number, ElementsAre(2));
    EXPECT_EQ(recv_object_list(number, {.group_src = 1, .tag = 7}), 1);
    barrier();
  });
}

TEST(Objects, KeepTensorsOfEveryType) {
  run_world(2, [](int rank) {
    std::vector<at::Tensor> tensors;
    for (const at::ScalarType type :
         {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32,
          at::kUInt64, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat,
          at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      tensors.push_back(at::arange(6, at::kFloat).view({2, 3}).t().to(type));
    }
    tensors.push_back(at::full({}, 4.5, at::kDouble));
    tensors.push_back(at::empty({0, 5}, at::kFloat));
    tensors.push_back(at::ones({1}).expand({3}));
    tensors.push_back(at::conj(at::full({2}, c10::complex<float>(1, 2), at::kComplexFloat)));
    tensors.push_back(at::ones({2}).requires_grad_());
    tensors.push_back(tensors.back());
    tensors.emplace_back();
    std::vector<at::Tensor> list;
    if (rank == 0) list = tensors;
    broadcast_object_list(list);
    std::vector<std::vector<at::Tensor>> all;
    all_gather_object(all, tensors);
    all.push_back(list);
    for (const std::vector<at::Tensor>& got : all) {
      ASSERT_EQ(got.size(), tensors.size());
      EXPECT_FALSE(got.back().defined());
      for (std::size_t i = 0; i + 1 < got.size(); ++i) {
        EXPECT_EQ(got[i].scalar_type(), tensors[i].scalar_type());
        EXPECT_EQ(got[i].sizes(), tensors[i].sizes());
        if (tensors[i].is_complex()) {
          EXPECT_TRUE(at::equal(got[i], tensors[i]));
        } else {
          EXPECT_TRUE(at::equal(got[i].to(at::kDouble), tensors[i].to(at::kDouble)));
        }
      }
    }
    EXPECT_FALSE(all[0][tensors.size() - 2].requires_grad());
    EXPECT_TRUE(at::equal(all[1][20], at::full({2}, c10::complex<float>(1, -2), at::kComplexFloat)));
    // What lay in one place does no longer.
    all[0][tensors.size() - 2].fill_(5);
    EXPECT_TRUE(all_equal(all[0][tensors.size() - 3], 1));
    barrier();
  });
}

TEST(Objects, OfAGroupAreForItsMembers) {
  run_world(3, [](int rank) {
    const ProcessGroup pair = new_group({1, 2});
    std::vector<int> numbers;
    all_gather_object(numbers, rank, {.group = pair});
    EXPECT_EQ(numbers, rank == 0 ? std::vector<int>() : (std::vector<int>{1, 2}));
    std::vector<std::string> list(1, std::to_string(rank));
    broadcast_object_list(list, {.src = 2, .group = pair});
    EXPECT_EQ(list[0], rank == 0 ? "0" : "2");
    int part = -1;
    scatter_object_list(part, rank == 1 ? std::vector<int>{10, 20} : std::vector<int>(),
                        {.group_src = 0, .group = pair});
    EXPECT_EQ(part, rank == 0 ? -1 : 10 * rank);
    if (rank == 1) send_object_list(numbers, {.dst = 2, .group = pair});
    if (rank != 1) {
      EXPECT_EQ(recv_object_list(numbers, {.group = pair}), rank == 0 ? -1 : 1);
    }
    if (rank != 0)
      expect_error([&] { broadcast_object_list(list, {.group = pair}); }, {"src is 0", "global ranks 1, 2"});
    barrier();
  });
}

TEST(Objects, OfAnotherTypeAreAnErrorThatNamesBoth) {
  run_world(2, [](int rank) {
    std::vector<Other> others{{"other"}};
    std::vector<Sample> samples;
    const std::vector<std::string> words{"rank 1: ", "rank 0 has sent", "list<Other{name: string}>",
                                         "list<Sample{name: string, weights: list<float32>, image: tensor"};
    if (rank == 0) {
      broadcast_object_list(others);
      send_object_list(others, {.dst = 1});
      send_object_list(std::vector<Sample>{sample_of(2)}, {.dst = 1});
      expect_error<ObjectTypeError>([&] { all_gather_object(others, others[0]); },
                                    {"rank 1", "all_gather_object"});
    } else {
      expect_error<ObjectTypeError>([&] { broadcast_object_list(samples); }, words);
      expect_error<ObjectTypeError>([&] { recv_object_list(samples, {.src = 0}); }, words);
      expect_error<ObjectTypeError>([&] { recv_object_list(others, {.src = 0}); }, {"recv_object_list"});
      expect_error<ObjectTypeError>([&] { all_gather_object(samples, sample_of(1)); },
                                    {"rank 0 has sent", "Other{name: string}"});
      EXPECT_THAT(samples, IsEmpty());
    }
    // The group lives on.
    std::vector<int> numbers;
    all_gather_object(numbers, rank);
    EXPECT_THAT(numbers, ElementsAre(0, 1));
  });
}

TEST(Objects, RefuseWhatIsWrong) {
  run_world(2, [](int rank) {
    const std::string own = "rank " + std::to_string(rank) + ": ";
    std::vector<int> list;
    std::vector<int> numbers{1, 2, 3};
    int part = 0;
    expect_error([&] { broadcast_object_list(list, {.src = rank}); },
                 {own, "broadcast_object_list", "empty"});
    expect_error([&] { broadcast_object_list(list, {.src = 0, .group_src = 0}); }, {"src and group_src"});
    expect_error([&] { gather_object(rank, list, {.dst = 5}); }, {own, "gather_object", "dst is 5"});
    expect_error([&] { scatter_object_list(part, numbers, {.src = rank}); },
                 {own, "scatter_object_list", "has 3 objects", "2 ranks"});
    expect_error([&] { scatter_object_list(part, numbers, {.src = 1 - rank}); }, {own, "not the source"});
    expect_error([&] { send_object_list(list, {.dst = 1 - rank}); }, {own, "send_object_list", "empty"});
    expect_error([&] { send_object_list(numbers, {.dst = rank}); }, {own, "this rank itself"});
    expect_error([&] { send_object_list(numbers, {}); }, {own, "neither dst nor group_dst"});
    expect_error([&] { recv_object_list(list, {.src = rank}); }, {own, "this rank itself"});
    expect_error([&] { broadcast_object_list(numbers, {.timeout = -1s}); },
                 {own, "timeout is -1", "negative"});
    std::vector<at::Tensor> tensors;
    expect_error([&] { all_gather_object(tensors, at::eye(2).to_sparse()); }, {own, "tensor[0]", "sparse"});
    expect_error([&] { all_gather_object(tensors, at::ones({2}, at::TensorOptions(at::kMeta))); },
                 {own, "all_gather_object", "tensor[0] of the object is on meta"});
    if (rank == 0) {
      broadcast_object_list(numbers);
    } else {
      std::vector<int> two(2);
      expect_error([&] { broadcast_object_list(two); }, {own, "has 2 objects", "rank 0 has sent 3"});
      EXPECT_THAT(two, ElementsAre(0, 0));
    }
    expect_error<TimeoutError>([&] { recv_object_list(list, {.src = 1 - rank, .timeout = 50ms}); }, {"recv"});
    barrier();
  });
}

// A rank that sends anything else at the place of an object.
void expect_corrupt(std::int64_t size, std::int64_t tensors, const Buffer& bytes) {
  run_world(2, [&](int rank) {
    if (rank == 0) {
      broadcast(at::tensor({size, tensors}), {.src = 0});
      if (!bytes.empty()) {
        const at::Tensor sent = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
        std::memcpy(sent.mutable_data_ptr(), bytes.data(), bytes.size());
        broadcast(sent, {.src = 0});
      }
      // The group has ended, and this rank hears why.
      expect_error<DistError>([] { barrier(); }, {"rank 1", "is no object"});
    } else {
      std::vector<Sample> list;
      expect_error<CorruptFrame>([&] { broadcast_object_list(list); },
                                 {"rank 1: broadcast_object_list", "rank 0 has sent is no object"});
    }
  });
}

TEST(Objects, ThatAreNoneEndTheGroup) {
  expect_corrupt(std::int64_t{1} << 50, 0, {});
  expect_corrupt(-1, 0, {});
  expect_corrupt(100, 0, Buffer(100, std::byte{255}));
  // A tensor of 2^62 elements.
  const Buffer envelope = object::write_envelope(
      {.schema = object::schema_of<std::vector<Sample>>(), .tensors = {{.type = 6, .sizes = {1LL << 62}}}});
  expect_corrupt(static_cast<std::int64_t>(envelope.size()), 1, envelope);
}

}  // namespace
}  // namespace lockstep::tensor

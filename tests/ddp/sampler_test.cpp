#include "lockstep/ddp/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/serialize.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/tensor_test_support.h"

namespace lockstep {
namespace {

using Indices = std::vector<std::size_t>;
using ::testing::ElementsAre;

Indices all_of(ddp::RankSampler& sampler) {
  Indices all;
  sampler.reset();
  while (const auto next = sampler.next(3)) all.insert(all.end(), next->begin(), next->end());
  return all;
}

void copy_through_archive(const ddp::RankSampler& from, ddp::RankSampler& to) {
  torch::serialize::OutputArchive saved;
  from.save(saved);
  std::stringstream bytes;
  saved.save_to(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  to.load(archive);
}

SamplerOptions of(int rank, int replicas) { return {.num_replicas = replicas, .rank = rank}; }

TEST(Sampler, RanksShareTheIndicesOfAnEpoch) {
  for (const std::size_t size : {0U, 1U, 7U, 12U}) {
    for (const int replicas : {1, 2, 5}) {
      std::multiset<std::size_t> seen;
      std::size_t share = 0;
      for (int rank = 0; rank < replicas; ++rank) {
        DistributedSampler sampler(size, of(rank, replicas));
        const Indices own = all_of(sampler);
        EXPECT_EQ(own.size(), sampler.size());
        EXPECT_TRUE(rank == 0 || own.size() == share);
        share = own.size();
        seen.insert(own.begin(), own.end());
      }
      for (std::size_t i = 0; i < size; ++i) EXPECT_GE(seen.count(i), 1U);
    }
  }
}

TEST(Sampler, OrdersFollowSeedAndEpoch) {
  DistributedSampler sampler(50, of(0, 2));
  const Indices first = all_of(sampler);
  sampler.set_epoch(1);
  EXPECT_NE(all_of(sampler), first);
  sampler.set_epoch(0);
  EXPECT_EQ(all_of(sampler), first);
  SamplerOptions plain = of(1, 3);
  plain.shuffle = false;
  DistributedSampler in_order(7, plain);
  EXPECT_THAT(all_of(in_order), ElementsAre(1, 4, 0));
  plain.drop_last = true;
  DistributedSampler dropping(7, plain);
  EXPECT_THAT(all_of(dropping), ElementsAre(1, 4));
}

TEST(Sampler, AFreshOneBeginsItsFirstEpoch) {
  DistributedSampler sampler(8, of(0, 2));
  const auto by_hand = sampler.next(8);
  ASSERT_TRUE(by_hand.has_value());
  EXPECT_EQ(sampler.next(8), std::nullopt);
  DistributedSampler other(8, of(0, 2));
  EXPECT_EQ(all_of(other), *by_hand);
  DistributedSampler later(8, of(0, 2));
  later.set_epoch(3);
  const auto of_third = later.next(8);
  other.set_epoch(3);
  EXPECT_EQ(of_third, all_of(other));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(all_of(later), *of_third);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("call set_epoch() before"));
}

TEST(Sampler, AnEpochThatHasNotBegunIsSavedAsWhole) {
  DistributedSampler sampler(8, of(0, 2));
  all_of(sampler);
  sampler.set_epoch(1);
  DistributedSampler other(8, of(0, 2));
  copy_through_archive(sampler, other);
  EXPECT_EQ(other.epoch(), 1U);
  EXPECT_EQ(all_of(other), all_of(sampler));
}

TEST(Sampler, GoesOnInTheMiddleOfAnEpoch) {
  DistributedSampler sampler(20, of(1, 2));
  sampler.set_epoch(3);
  const Indices whole = all_of(sampler);
  sampler.reset();
  ASSERT_TRUE(sampler.next(4).has_value());
  DistributedSampler other(20, of(1, 2));
  copy_through_archive(sampler, other);
  EXPECT_EQ(all_of(other), Indices(whole.begin() + 4, whole.end()));
  EXPECT_EQ(all_of(other), whole);
  // The place is one of its epoch: another epoch begins at its beginning.
  other.resume_at(3, 10);
  other.set_epoch(4);
  EXPECT_EQ(all_of(other).size(), 10U);
  other.resume_at(3, 10);
  EXPECT_TRUE(all_of(other).empty());
  EXPECT_THROW(other.resume_at(3, 11), InvalidArgument);
}

TEST(Sampler, GoesOnByHandForOneEpoch) {
  SamplerOptions plain = of(0, 2);
  plain.shuffle = false;
  DistributedSampler sampler(8, plain);
  ASSERT_TRUE(sampler.next(1).has_value());
  DistributedSampler other(8, plain);
  copy_through_archive(sampler, other);
  EXPECT_THAT(other.next(8), ::testing::Optional(ElementsAre(2, 4, 6)));
  EXPECT_EQ(other.next(8), std::nullopt);
  EXPECT_THAT(all_of(other), ElementsAre(0, 2, 4, 6));
}

// Every index once, or as often as the world of `replicas` gives it, also where they come from two worlds.
TEST(Sampler, GoesOnInAnotherWorldBehindWhatAllRanksOfTheFirstHaveTaken) {
  for (const bool drop_last : {false, true}) {
    for (const std::size_t size : {24U, 25U}) {
      for (const int replicas : {1, 2, 4}) {
        std::vector<std::size_t> seen;
        const auto options = [&](int rank, int world) {
          SamplerOptions all = of(rank, world);
          all.drop_last = drop_last;
          return all;
        };
        std::unique_ptr<DistributedSampler> saved;
        for (int rank = 0; rank < 2; ++rank) {
          saved = std::make_unique<DistributedSampler>(size, options(rank, 2));
          saved->set_epoch(3);
          const auto part = saved->next(4);
          seen.insert(seen.end(), part->begin(), part->end());
        }
        std::size_t first_share = 0;
        for (int rank = 0; rank < replicas; ++rank) {
          DistributedSampler other(size, options(rank, replicas));
          copy_through_archive(*saved, other);
          DistributedSampler third(size, options(rank, replicas));  // and is saved again in between
          const auto part = other.next(2);
          copy_through_archive(other, third);
          const Indices rest = all_of(third);
          EXPECT_EQ(other.epoch(), 3U);
          EXPECT_TRUE(rank == 0 || rest.size() == first_share);
          first_share = rest.size();
          seen.insert(seen.end(), part->begin(), part->end());
          seen.insert(seen.end(), rest.begin(), rest.end());
        }
        const std::set<std::size_t> once(seen.begin(), seen.end());
        const bool is_even = (size - 8) % static_cast<std::size_t>(replicas) == 0;
        EXPECT_EQ(once.size(), is_even || !drop_last ? size : size - 1);
        EXPECT_LT(seen.size(), size + static_cast<std::size_t>(replicas));
        EXPECT_TRUE(drop_last || seen.size() % static_cast<std::size_t>(replicas) == 0);
      }
    }
  }
}

TEST(Sampler, AnEpochThatIsOverIsOverInAnotherWorldToo) {
  SamplerOptions dropping = of(0, 4);
  dropping.drop_last = true;
  DistributedSampler sampler(7, dropping);
  ASSERT_EQ(all_of(sampler).size(), 1U);
  dropping = of(0, 1);
  dropping.drop_last = true;
  DistributedSampler other(7, dropping);
  copy_through_archive(sampler, other);
  EXPECT_TRUE(all_of(other).empty());
  EXPECT_EQ(all_of(other).size(), 7U);
}

TEST(Sampler, OnlyThePlaceOfASamplerOfTheSameOrderIsLoaded) {
  const auto refused = [](const ddp::RankSampler& from, ddp::RankSampler& to,
                          const std::vector<std::string>& words) {
    tensor::expect_error<InvalidArgument>([&] { copy_through_archive(from, to); }, words);
  };
  DistributedSampler sampler(8, of(0, 2));
  DistributedSampler larger(9, of(0, 2));
  refused(sampler, larger, {"8 examples", "this one gives those of 9 examples", "the same arguments"});
  SamplerOptions options = of(0, 2);
  options.shuffle = false;
  DistributedSampler in_order(8, options);
  refused(sampler, in_order, {"shuffled with the seed 0", "in their own order"});
  options = of(0, 2);
  options.drop_last = true;
  DistributedSampler dropping(8, options);
  refused(sampler, dropping, {"drop_last"});
  DistributedWeightedSampler weighted({1, 2}, {.num_samples = 8}, of(0, 2));
  refused(sampler, weighted, {"8 examples", "8 samples"});
  DistributedWeightedSampler same({1, 2}, {.num_samples = 8}, of(1, 2));
  copy_through_archive(weighted, same);
  DistributedWeightedSampler other({2, 1}, {.num_samples = 8}, of(0, 2));
  refused(weighted, other, {"2 weights", "checksum"});
  DistributedWeightedSampler fewer({1, 2}, {.num_samples = 2, .replacement = false}, of(0, 2));
  refused(weighted, fewer, {"2 samples without replacement"});
}

TEST(Sampler, OnlyThePlaceOfASamplerWithTheSameSeedIsLoaded) {
  constexpr std::uint64_t kLargest = ~std::uint64_t{0};
  SamplerOptions seeded = of(0, 2);
  seeded.seed = kLargest;
  DistributedSampler sampler(8, seeded);
  sampler.set_epoch(1);
  const Indices whole = all_of(sampler);
  DistributedSampler same(8, seeded);
  copy_through_archive(sampler, same);
  EXPECT_EQ(same.epoch(), 1U);

  DistributedSampler other(8, of(0, 2));
  other.set_epoch(5);
  const auto refused = [&](const std::function<void(torch::serialize::OutputArchive&)>& write,
                           const std::vector<std::string>& words) {
    torch::serialize::OutputArchive saved;
    write(saved);
    std::stringstream bytes;
    saved.save_to(bytes);
    torch::serialize::InputArchive archive;
    archive.load_from(bytes);
    tensor::expect_error<InvalidArgument>([&] { other.load(archive); }, words);
    EXPECT_EQ(other.epoch(), 5U);
  };
  refused([&](auto& archive) { sampler.save(archive); },
          {"the seed 18446744073709551615", "the seed 0", "the same arguments"});
  refused([](auto& archive) { archive.write("weight", torch::ones({2})); },
          {"no \"epoch_and_taken\"", "what save() of one has written"});
  refused([](auto& archive) { archive.write("epoch_and_taken", torch::ones({2})); }, {"\"epoch_and_taken\""});
  refused(
      [](auto& archive) {
        archive.write("epoch_and_taken", torch::tensor({1, 2}, at::kLong), true);
      },
      {"no \"order\""});
  const auto write = [](auto& archive, const at::Tensor& place) {
    archive.write("epoch_and_taken", place, true);
    archive.write("order", c10::IValue("8 examples, shuffled with the seed 0"));
  };
  refused([&](auto& archive) { write(archive, torch::tensor({1, 2, 3}, at::kLong)); }, {"epoch_and_taken"});
  refused(
      [&](auto& archive) {
        write(archive, torch::tensor({-2, 1}, at::kLong));
      },
      {"damaged", "epoch -2, of which 1 indices were taken"});
  refused([&](auto& archive) { write(archive, torch::tensor({2, -1}, at::kLong)); }, {"-1 indices"});
  refused(
      [&](auto& archive) {
        write(archive, torch::tensor({2, 9}, at::kLong));
      },
      {"9 indices", "all are 8"});
}

TEST(Sampler, GoesOnBehindALoaderThatAsksAhead) {
  const auto seen = [](DistributedSampler sampler, std::size_t batches) {
    const auto loader = torch::data::make_data_loader(
        torch::data::datasets::TensorDataset(torch::arange(40)), std::move(sampler),
        torch::data::DataLoaderOptions().batch_size(2).workers(1).max_jobs(4));
    Indices all;
    for (auto batch = loader->begin(); batch != loader->end() && batches > 0; --batches) {
      for (const auto& example : *batch)
        all.push_back(static_cast<std::size_t>(example.data.item<std::int64_t>()));
      if (batches > 1) ++batch;
    }
    return all;
  };
  DistributedSampler sampler(40, of(0, 2));
  const Indices whole = seen(sampler, 100);
  ASSERT_EQ(whole.size(), 20U);
  EXPECT_EQ(seen(sampler, 3), Indices(whole.begin(), whole.begin() + 6));
  sampler.resume_at(0, 6);
  EXPECT_EQ(seen(sampler, 100), Indices(whole.begin() + 6, whole.end()));
}

TEST(Sampler, WithoutSetEpochItWarnsOnce) {
  const auto said = [](const auto& use) {
    ::testing::internal::CaptureStderr();
    use();
    return ::testing::internal::GetCapturedStderr();
  };
  DistributedSampler sampler(8, of(0, 2));
  EXPECT_EQ(said([&] { all_of(sampler); }), "");
  EXPECT_THAT(said([&] { all_of(sampler); }), ::testing::HasSubstr("call set_epoch() before"));
  EXPECT_EQ(said([&] { all_of(sampler); }), "");
  SamplerOptions plain = of(0, 2);
  plain.shuffle = false;
  DistributedSampler in_order(8, plain);
  EXPECT_EQ(said([&] {
              for (int i = 0; i < 2; ++i) all_of(in_order);
            }),
            "");
}

TEST(Sampler, ALoadersCopyIsTheUsersSampler) {
  DistributedSampler sampler(8, of(0, 2));
  const auto loader = torch::data::make_data_loader(torch::data::datasets::TensorDataset(torch::arange(8)),
                                                    sampler, torch::data::DataLoaderOptions().batch_size(8));
  const auto epoch = [&](std::size_t number) {
    sampler.set_epoch(number);
    Indices seen;
    for (const auto& batch : *loader) {
      for (const auto& example : batch)
        seen.push_back(static_cast<std::size_t>(example.data.item<std::int64_t>()));
    }
    return seen;
  };
  const Indices first = epoch(0);
  EXPECT_EQ(first.size(), 4U);
  EXPECT_NE(epoch(1), first);
  EXPECT_EQ(epoch(0), first);
}

TEST(Sampler, WeightsSayWhatIsDrawn) {
  std::vector<double> weights(10, 0);
  weights[3] = weights[8] = 1;
  DistributedWeightedSampler sampler(weights, {.num_samples = 40}, of(0, 2));
  const Indices drawn = all_of(sampler);
  EXPECT_EQ(drawn.size(), 20U);
  EXPECT_TRUE(std::all_of(drawn.begin(), drawn.end(), [](std::size_t i) { return i == 3 || i == 8; }));
  DistributedWeightedSampler once(weights, {.num_samples = 2, .replacement = false}, of(0, 1));
  const Indices both = all_of(once);
  EXPECT_EQ(std::set<std::size_t>(both.begin(), both.end()).size(), 2U);
  EXPECT_THROW(DistributedWeightedSampler(weights, {.num_samples = 3, .replacement = false}, of(0, 1)),
               InvalidArgument);
}

TEST(Sampler, WrongArgumentsAreRefused) {
  EXPECT_THROW(DistributedSampler(8, of(2, 2)), InvalidArgument);
  EXPECT_THROW(DistributedSampler(8, of(0, 0)), InvalidArgument);
  tensor::expect_error<InvalidArgument>([] { DistributedSampler(SIZE_MAX, of(0, 2)); },
                                        {"18446744073709551615 indices", "memory"});
  EXPECT_THROW(DistributedWeightedSampler({1, 1}, {.num_samples = SIZE_MAX}, of(0, 2)), InvalidArgument);
  DistributedSampler endless(8, of(0, 2));
  EXPECT_THROW(endless.reset(SIZE_MAX / 2), InvalidArgument);
  EXPECT_EQ(all_of(endless).size(), 4U);  // as it was
  EXPECT_THROW(DistributedWeightedSampler({1, -1}, {.num_samples = 3}, of(0, 1)), InvalidArgument);
  EXPECT_THROW(DistributedWeightedSampler({1, NAN}, {.num_samples = 3}, of(0, 1)), InvalidArgument);
  EXPECT_THROW(DistributedWeightedSampler({1, 1}, {.num_samples = 0}, of(0, 1)), InvalidArgument);
  DistributedWeightedSampler resized({1, 1, 0}, {.num_samples = 2, .replacement = false}, of(0, 1));
  tensor::expect_error<InvalidArgument>([&] { resized.reset(3); },
                                        {"num_samples is 3", "only 2 have a weight above 0"});
  EXPECT_EQ(all_of(resized).size(), 2U);  // as it was
  constexpr std::size_t kTooMany = (std::size_t{1} << 24U) + 1;
  tensor::expect_error<InvalidArgument>(
      [&] {
        DistributedWeightedSampler many(std::vector<double>(kTooMany, 1.0), {.num_samples = 2}, of(0, 1));
      },
      {"16777217 weights", "16777216"});
}

}  // namespace
}  // namespace lockstep

#include "learn/data/feature_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <thread>

#include "base/os/file.h"
#include "base/rng.h"
#include "learn/data/audio/parsers.h"
#include "learn/data/recordings.h"
#include "learn/train/commands/experiment.h"
#include "support/file_size_limit.h"
#include "support/files.h"
#include "support/tensors.h"

namespace segfuse::data {
namespace {

using segfuse::testing::same_bits;
using ::testing::HasSubstr;

Tensor matrix(std::uint64_t seed, std::int64_t rows, std::int64_t width) {
  Rng rng(seed, 0);
  return segfuse::testing::uniform(rng, DType::kF32, {rows, width});
}

void add_one(Tensor& rows) {
  for (float& value : rows.span<float>()) value += 1;
}

TEST(FeatureStore, WhatIsBeyondTheBudgetIsReadFromTheFile) {
  const test::TemporaryDirectory folder;
  std::vector<Tensor> kept;
  {
    FeatureStore store(folder.path(), 4000);
    for (std::uint64_t i = 0; i < 8; ++i) {
      kept.push_back(store.keep(matrix(i, 100, 3)));  // 1200 bytes
      EXPECT_EQ(store.bytes_in_file() > 0, i >= 3) << i;
    }
    kept.push_back(store.keep(matrix(8, 0, 3)));
    for (Tensor& each : kept) store.change(each, add_one);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
  for (std::uint64_t i = 0; i < kept.size(); ++i) {
    Tensor expected = matrix(i, i < 8 ? 100 : 0, 3);
    add_one(expected);
    EXPECT_TRUE(same_bits(kept[i], expected)) << i;
  }
}

TEST(FeatureStore, MatricesThatAreLargerThanAPartOfTheFile) {
  const test::TemporaryDirectory folder;
  FeatureStore store(folder.path(), 0);
  constexpr std::int64_t kRows = (std::int64_t{80} << 20) / 4 / 64;
  std::vector<Tensor> kept;
  for (const std::int64_t rows : {std::int64_t{5}, kRows, std::int64_t{5}, kRows})
    kept.push_back(store.keep(Tensor::full(DType::kF32, {rows, 64}, static_cast<double>(rows))));
  for (Tensor& each : kept) store.change(each, add_one);
  for (const Tensor& each : kept) {
    const float expected = static_cast<float>(each.shape()[0]) + 1;
    EXPECT_TRUE(std::ranges::all_of(each.span<float>(), [&](float x) { return x == expected; }));
  }
}

TEST(FeatureStore, RowsThatComeInPieces) {
  const test::TemporaryDirectory folder;
  const Tensor whole = matrix(1, 1000, 7);
  for (const std::uint64_t budget : {std::uint64_t{0}, FeatureStore::kBudget})
    for (const std::int64_t announced : {1000, 1003}) {
      FeatureStore store(folder.path(), budget);
      std::int64_t at = 0;
      const Tensor kept = store.keep(announced, [&] {
        const std::int64_t first = at;
        at = std::min<std::int64_t>(1000, at + 300);
        return rows_of(whole, first, at - first);
      });
      EXPECT_TRUE(same_bits(kept, whole));
      Tensor part = rows_of(kept, 10, 20);
      store.change(part, add_one);
      Tensor changed = rows_of(whole, 10, 20).clone();
      add_one(changed);
      EXPECT_TRUE(same_bits(rows_of(kept, 10, 20), changed));
      EXPECT_TRUE(same_bits(rows_of(kept, 30, 970), rows_of(whole, 30, 970)));
    }
}

TEST(FeatureStore, ThreadsKeepBesideEachOther) {
  const test::TemporaryDirectory folder;
  FeatureStore store(folder.path(), 10'000);
  std::vector<Tensor> kept(64);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < kept.size(); i += 4) {
        kept[i] = store.keep(matrix(i, 50, 4));
        store.change(kept[i], add_one);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    Tensor expected = matrix(i, 50, 4);
    add_one(expected);
    EXPECT_TRUE(same_bits(kept[i], expected)) << i;
  }
}

TEST(FeatureStore, AFullDiskIsSaid) {
  const test::TemporaryDirectory folder;
  FeatureStore store(folder.path(), 0);
  const test::FileSizeLimit limit(4096);
  try {
    (void)store.keep(matrix(1, 1000, 10));
    FAIL() << "no error";
  } catch (const FileError& error) {
    EXPECT_EQ(error.error_number(), EFBIG);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(folder.path().string()), HasSubstr("ulimit")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FeatureStore, AFolderThatIsNoneIsNamed) {
  FeatureStore store("/no/such/folder", 0);
  EXPECT_THROW((void)store.keep(matrix(1, 1, 1)), FileError);
}

/// A recording of nine minutes, more than what is read whole where a store has a folder.
TEST(FeatureStore, LongRecordingsGiveTheSameBits) {
  const test::TemporaryDirectory folder;
  std::vector<float> samples(std::size_t{9} << 20);
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<float>(0.3 * std::sin(static_cast<double>(i % 997)));
  folder.write("x.wav", format_wav("x.wav", samples, 16000));
  ASSERT_GT(std::filesystem::file_size(folder / "x.wav"), std::uint64_t{16} << 20);
  std::vector<Recording> recordings(1);
  recordings[0].id = "x";
  recordings[0].audio = folder / "x.wav";
  FeatureConfig config;
  config.sample_rate = 8000;
  config.deltas = 1;
  config.normalise_recording = true;
  const FeatureExtractor extractor(config);
  FeatureStore store(folder.path(), 0);
  const std::vector<Example> stored = load_examples(recordings, extractor, {}, {}, {}, store);
  const std::vector<Example> held = segfuse::load_examples(recordings, extractor, {}, {});
  EXPECT_GT(store.bytes_in_file(), 0);
  EXPECT_TRUE(same_bits(stored.at(0).features, held.at(0).features));
  EXPECT_EQ(stored[0].seconds, held[0].seconds);
  EXPECT_EQ(stored[0].sample_rate, held[0].sample_rate);
}

/// A training on a corpus in memory, and on one in a file.
TEST(FeatureStore, TheTrainedModelHasTheSameBits) {
  const test::TemporaryDirectory folder;
  SynthConfig synth = random_synth_config(3, 9);
  synth.train = 6;
  synth.test = 2;
  write_synthetic_corpus(synth, folder / "corpus");
  for (const std::string more : {"", "fixed_length = 50\n"}) {
    const learn::TrainConfig config = learn::parse_train_config(
        "[data]\npath = \"" + (folder / "corpus").string() +
            "\"\n[model]\nwidth = 8\ndilations = [1]\n[training]\nepochs = 2\n" + more,
        "x.toml", {});
    std::vector<learn::System> systems;
    for (const std::uint64_t budget : {FeatureStore::kBudget, std::uint64_t{0}}) {
      FeatureStore store(folder.path(), budget);
      learn::Corpus corpus = learn::load_corpus(config, store, {});
      EXPECT_EQ(store.bytes_in_file() > 0, budget == 0);
      learn::TrainerOptions options;
      options.quiet = true;
      options.checkpoint = folder / std::to_string(budget);
      systems.push_back(learn::run_system(config, config.model.head, corpus, options));
    }
    for (std::size_t i = 0; i < systems[0].model.parameters.size(); ++i)
      EXPECT_TRUE(same_bits(systems[0].model.parameters[i], systems[1].model.parameters[i])) << i;
    EXPECT_EQ(systems[0].model.normalisation.mean, systems[1].model.normalisation.mean);
    EXPECT_EQ(systems[0].evaluation.metrics.to_json(), systems[1].evaluation.metrics.to_json());
  }
}

}  // namespace
}  // namespace segfuse::data

#include "learn/train/files/safetensors.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/os/file.h"
#include "base/rng.h"
#include "segfuse/error.h"
#include "support/files.h"

namespace segfuse::learn {
namespace {

namespace fs = std::filesystem;

class Safetensors : public ::testing::Test {
 protected:
  test::TemporaryDirectory folder_;
  fs::path path_ = folder_ / "segfuse_safetensors_test.safetensors";
};

std::string file_with_header(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\1');
}

TEST_F(Safetensors, RoundTripKeepsBitsNamesOrderAndMetadata) {
  TensorFile file;
  file.metadata = {{"config", "a = \"ü\"\n"}, {"empty", ""}};
  file.tensors.emplace_back("z",
                            Tensor::from(std::vector<float>{1.5F, -0.0F, std::nanf("")}, {3, 1}));
  file.tensors.emplace_back("a", Tensor::from(std::vector<std::int64_t>{1, -2}, {2}));
  file.tensors.emplace_back("nothing", Tensor::zeros(DType::kF64, {0, 4}));
  file.tensors.emplace_back("scalar", Tensor::full(DType::kBF16, {}, 2));
  write_safetensors(path_, file);
  const TensorFile back = read_safetensors(path_);
  EXPECT_EQ(back.metadata, file.metadata);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    const auto& [name, tensor] = file.tensors[i];
    EXPECT_EQ(back.tensors[i].first, name);
    EXPECT_EQ(back.tensors[i].second.shape(), tensor.shape());
    EXPECT_EQ(back.tensors[i].second.dtype(), tensor.dtype());
    EXPECT_EQ(std::memcmp(back.tensors[i].second.data(), tensor.data(), tensor.bytes()), 0);
  }
}

TEST_F(Safetensors, TheSameContentGivesTheSameBytes) {
  TensorFile file;
  file.metadata = {{"b", "2"}, {"a", "1"}};
  file.tensors.emplace_back("x", Tensor::full(DType::kF32, {5}, 3));
  write_safetensors(path_, file);
  const std::string first = read_file(path_);
  write_safetensors(path_, file);
  EXPECT_EQ(read_file(path_), first);
}

TEST_F(Safetensors, MalformedFilesAreNamedWithTheirFault) {
  struct Bad {
    std::string bytes;
    std::string says;
  };
  const std::string entry = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const Bad cases[] = {
      {"", "too short"},
      {"1234567", "too short"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8), "header claims"},
      {file_with_header("{", 0), "not a JSON object"},
      {file_with_header("[]", 0), "not a JSON object"},
      {file_with_header(entry, 7), "outside the file"},
      {file_with_header(entry, 9), "the tensors cover 8 bytes"},
      {file_with_header(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
       "does not fit its bytes"},
      {file_with_header(R"({"x":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8),
       "unknown type"},
      {file_with_header(R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
       "list of sizes"},
      {file_with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
       "leaves a gap"},
      {file_with_header(R"({"x":{"dtype":"F32","shape":[2]}})", 8),
       "needs dtype, shape and data_offsets"},
      {file_with_header(R"({"x":3})", 0), "needs dtype, shape and data_offsets"},
      {file_with_header(R"({"__metadata__":{"a":1}})", 0), "is not a string"},
      {file_with_header(
           R"({"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", 8),
       "more elements than"},
  };
  for (const Bad& bad : cases) {
    try {
      (void)parse_safetensors(bad.bytes, "file.safetensors");
      ADD_FAILURE() << "accepted; expected: " << bad.says;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("file.safetensors:"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr(bad.says));
    }
  }
}

/// Whatever bit is another one: the file is refused, or has the same tensors.
TEST_F(Safetensors, AFlippedBitIsNoticed) {
  TensorFile file;
  file.metadata = {{"labels", "a b"}};
  file.tensors.emplace_back("x", Tensor::from(std::vector<float>{1.5F, -2.0F}, {2}));
  file.tensors.emplace_back("y", Tensor::from(std::vector<std::int32_t>{7}, {1}));
  const std::string good = safetensors_bytes(file);
  int of_sums = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    try {
      const TensorFile read = parse_safetensors(bad, "flipped");
      ASSERT_EQ(read.tensors.size(), 2U) << "bit " << bit;
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(read.tensors[i].first, file.tensors[i].first) << "bit " << bit;
        EXPECT_EQ(read.tensors[i].second.shape(), file.tensors[i].second.shape());
        EXPECT_EQ(std::memcmp(read.tensors[i].second.data(), file.tensors[i].second.data(),
                              file.tensors[i].second.bytes()),
                  0)
            << "bit " << bit;
      }
      EXPECT_EQ(read.metadata.at("labels"), "a b");
    } catch (const DataError& error) {
      of_sums += std::string_view(error.what()).find("checksum") != std::string_view::npos;
    }
  }
  EXPECT_GE(of_sums, 12 * 8);  // every bit of the tensors, and others
}

TEST_F(Safetensors, FilesOfOtherProgramsNeedNoChecksum) {
  const std::string entry = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(parse_safetensors(file_with_header(entry, 8), "other").tensors.size(), 1U);
  TensorFile none;
  const TensorFile back = parse_safetensors(safetensors_bytes(none), "none");
  EXPECT_TRUE(back.tensors.empty());
  EXPECT_TRUE(back.metadata.empty());
}

TEST_F(Safetensors, MutatedFilesNeverCrash) {
  TensorFile file;
  file.metadata = {{"k", "v"}};
  file.tensors.emplace_back("x", Tensor::full(DType::kF32, {2, 2}, 1));
  file.tensors.emplace_back("y", Tensor::full(DType::kI32, {3}, 1));
  write_safetensors(path_, file);
  const std::string good = read_file(path_);
  Rng rng(5);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good.substr(0, rng.bits() % 4 == 0 ? rng.below(good.size()) : good.size());
    for (std::uint64_t flips = rng.below(4); flips > 0 && !bad.empty(); --flips)
      bad[rng.below(bad.size())] = static_cast<char>(rng.bits());
    try {
      (void)parse_safetensors(bad, "mutated");
      ++accepted;
    } catch (const DataError&) {
    }
  }
  EXPECT_LT(accepted, 3000);
}

// 150,000 keys took minutes.
TEST_F(Safetensors, AHeaderWithManyKeysIsReadInLinearTime) {
  std::string header = "{";
  for (int i = 0; i < 150'000; ++i)
    header += fmt::format("\"t{}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}},", i);
  header.back() = '}';
  EXPECT_EQ(parse_safetensors(file_with_header(header, 0), "many").tensors.size(), 150'000);
}

TEST_F(Safetensors, AHeaderThatNestsDeeplyIsRefused) {
  const std::string deep(200'000, '[');
  for (const std::string& header : {deep, "{\"a\":{\"dtype\":" + deep,
                                    "{\"a\":{\"dtype\":" + deep + std::string(200'000, ']') +
                                        ",\"shape\":[0],\"data_offsets\":[0,0]}}"}) {
    try {
      parse_safetensors(file_with_header(header, 0), "deep");
      ADD_FAILURE() << "accepted";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("deep: byte 8"));
    }
  }
}

}  // namespace
}  // namespace segfuse::learn

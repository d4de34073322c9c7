#include "segfuse/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "base/half.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

TEST(Half, EveryFiniteHalfSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_half(value), bits) << value;
  }
}

TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = half_to_float(static_cast<std::uint16_t>(bits));
    const float high = half_to_float(static_cast<std::uint16_t>(bits + 1));
    ASSERT_EQ(float_to_half((low + high) / 2), bits + (bits & 1)) << low;
  }
}

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bfloat16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(value))));
    } else {
      ASSERT_EQ(float_to_bfloat16(value), bits);
    }
  }
}

TEST(Tensor, BorrowedMemoryIsReadAndWrittenInPlace) {
  auto memory = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3});
  Tensor tensor =
      Tensor::borrow(DType::kF32, {3}, {memory, reinterpret_cast<std::byte*>(memory->data())});
  EXPECT_EQ(tensor.at(2), 3);
  tensor.set(0, 5);
  EXPECT_EQ((*memory)[0], 5);
  EXPECT_EQ(memory.use_count(), 2);
}

TEST(Tensor, NoMemoryIsBorrowedForNoElementsOnly) {
  EXPECT_THROW(Tensor::borrow(DType::kF32, {3}, nullptr), UsageError);
  EXPECT_EQ(Tensor::borrow(DType::kF32, {0, 3}, nullptr).size(), 0);
}

TEST(Tensor, HugeShapesAreRefusedNotOverflowed) {
  EXPECT_THROW(Tensor(DType::kF32, {std::int64_t{1} << 40, std::int64_t{1} << 40}), UsageError);
  EXPECT_THROW(Tensor(DType::kF32, {-1}), UsageError);
}

TEST(Tensor, ReadingAsAnotherTypeIsRefused) {
  const Tensor tensor = Tensor::zeros(DType::kF32, {2});
  EXPECT_THROW(tensor.span<double>(), UsageError);
}

TEST(Tensor, CopiesShareAndClonesDoNot) {
  Tensor first = Tensor::zeros(DType::kF32, {2, 3});
  Tensor shared = first;
  Tensor cloned = first.clone();
  first.set(4, 7);
  EXPECT_EQ(shared.at(4), 7);
  EXPECT_EQ(cloned.at(4), 0);
}

TEST(Tensor, OneThatWasMovedFromSaysSoAndCanBeAssigned) {
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{3}}) {
    Tensor tensor = Tensor::zeros(DType::kF32, {size});
    const Tensor to = std::move(tensor);
    const Tensor& from = tensor;  // NOLINT(bugprone-use-after-move)
    const auto refused = [](const auto& use) {
      try {
        use();
        return std::string("nothing");
      } catch (const UsageError& error) {
        return std::string(error.what());
      }
    };
    const std::string sentence =
        "a Tensor was used after it was moved from; use the one that it was moved to, or assign to "
        "it";
    EXPECT_EQ(refused([&] { (void)from.data(); }), sentence);
    EXPECT_EQ(refused([&] { (void)tensor.data(); }), sentence);
    EXPECT_EQ(refused([&] { (void)from.span<float>(); }), sentence);
    EXPECT_EQ(refused([&] { (void)from.clone(); }), sentence);
    EXPECT_EQ(refused([&] { (void)from.to(DType::kF32); }), sentence);
    EXPECT_EQ(refused([&] { (void)from.to(DType::kF64); }), sentence);
    EXPECT_EQ(refused([&] { (void)from.to_host(); }), sentence);
    EXPECT_EQ(refused([&] { (void)from.reshaped({size, 1}); }), sentence);
    if (size > 0) {
      EXPECT_EQ(refused([&] { (void)from.at(0); }), sentence);
      EXPECT_EQ(refused([&] { tensor.set(0, 1); }), sentence);
    }
    tensor = to;
    EXPECT_EQ(tensor.data(), to.data());
    EXPECT_EQ(tensor.shape(), Shape({size}));
  }
}

TEST(Tensor, OfNoElementsMayBorrowNothing) {
  const Tensor tensor = Tensor::borrow(DType::kF32, {0, 2}, nullptr);
  EXPECT_TRUE(tensor.span<float>().empty());
  EXPECT_EQ(tensor.clone().shape(), Shape({0, 2}));
}

TEST(Tensor, IntegersSaturate) {
  Tensor tensor = Tensor::zeros(DType::kI32, {2});
  tensor.set(0, 1e30);
  tensor.set(1, std::nan(""));
  EXPECT_EQ(tensor.at(0), 2147483647);
  EXPECT_EQ(tensor.at(1), 0);
}

TEST(Tensor, LargeOnesBeginAtAHugePage) {
  const auto address = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data()); };
  for (const std::int64_t bytes : {1, 4095, (4 << 20) - 1})
    EXPECT_EQ(address(Tensor(DType::kBool, {bytes})) % 64, 0U) << bytes;
  for (const std::int64_t bytes : {4 << 20, (9 << 20) + 1}) {
    Tensor large(DType::kBool, {bytes});
    EXPECT_EQ(address(large) % (2 << 20), 0U) << bytes;
    large.set(0, 1);
    large.set(bytes - 1, 1);  // all of it is there
    EXPECT_EQ(large.at(bytes - 1), 1);
  }
}

}  // namespace
}  // namespace segfuse

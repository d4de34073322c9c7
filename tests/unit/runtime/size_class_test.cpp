#include "runtime/memory/size_class.h"

#include <gtest/gtest.h>

#include <limits>

namespace segfuse::runtime {
namespace {

TEST(SizeClass, EverySizeFitsItsClassAndNoSmallerOne) {
  for (std::size_t bytes = 1; bytes <= kSmallBytes; bytes += bytes < 70000 ? 1 : 251) {
    const std::size_t which = size_class(bytes);
    ASSERT_LT(which, kClasses);
    ASSERT_GE(class_bytes(which), bytes);
    if (which > 0) {
      ASSERT_LT(class_bytes(which - 1), bytes);
    }
  }
}

TEST(SizeClass, AreAlignedAndLoseAtMostAFifth) {
  for (std::size_t which = 0; which < kClasses; ++which) {
    EXPECT_EQ(class_bytes(which) % kAlignment, 0U);
    EXPECT_EQ(size_class(class_bytes(which)), which);
    if (which >= 4) {
      EXPECT_LE(class_bytes(which) * 4, (class_bytes(which - 1) + 1) * 5);
    }
  }
}

TEST(SizeClass, Table) {
  EXPECT_EQ(rounded_bytes(0), 256U);
  EXPECT_EQ(rounded_bytes(256), 256U);
  EXPECT_EQ(rounded_bytes(257), 512U);
  EXPECT_EQ(rounded_bytes(1025), 1280U);
  EXPECT_EQ(rounded_bytes(2049), 2560U);
  EXPECT_EQ(rounded_bytes(kSmallBytes), kSmallBytes);
  EXPECT_EQ(rounded_bytes(kSmallBytes + 1), kSmallBytes + kLargeStep);
  EXPECT_EQ(rounded_bytes(kSmallBytes + kLargeStep), kSmallBytes + kLargeStep);
}

TEST(SizeClass, NoOverflow) {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {kMax, kMax - 1, kMax / 2 + 1, kMax / 2})
    EXPECT_GE(rounded_bytes(bytes), bytes);
}

}  // namespace
}  // namespace segfuse::runtime

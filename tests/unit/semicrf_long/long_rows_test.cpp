// Accuracy over very long rows: the rules of the design at its sizes.

#include "unit/semicrf/long_rows.h"

namespace segfuse::semicrf::testing {
namespace {

TEST(VeryLongRows, AccurateAgainstLongDouble) {
  expect_accurate(100000, 100, 6, 1.0);
  expect_accurate(100000, 100, 6, 10.0);
}

TEST(VeryLongRows, Test21OffsetsDoNotMatter) { expect_offsets_do_not_matter(400000, 3000, 4); }

#ifdef SEGFUSE_TEST_ON_DEVICE
// K = 3000 does not fit into a device's registers and goes through the log domain, which is slow;
// these are the two limits one by one.
TEST(VeryLongRows, Test21ManyFrames) { expect_offsets_do_not_matter(400000, 300, 4); }
TEST(VeryLongRows, Test21LongSegments) { expect_offsets_do_not_matter(40000, 3000, 4); }
#endif

}  // namespace
}  // namespace segfuse::semicrf::testing

// Accuracy over very long rows: the rules of the design at its sizes.

#include "unit/semicrf/long_rows.h"

namespace segfuse::semicrf::testing {
namespace {

TEST(VeryLongRows, AccurateAgainstLongDouble) {
  expect_accurate(100000, 100, 6, 1.0);
  expect_accurate(100000, 100, 6, 10.0);
}

TEST(VeryLongRows, Test21OffsetsDoNotMatter) { expect_offsets_do_not_matter(400000, 3000, 4); }

}  // namespace
}  // namespace segfuse::semicrf::testing

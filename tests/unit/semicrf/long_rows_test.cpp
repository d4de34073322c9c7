// Accuracy over long rows, as far as a quick test goes; tests/unit/semicrf_long has the rest.

#include "long_rows.h"

namespace segfuse::semicrf::testing {
namespace {

TEST(LongRows, AccurateAgainstLongDouble) {
  expect_accurate(9000, 25, 4, 1.0);
  expect_accurate(9000, 25, 4, 10.0);
  // Beyond what the linear domain holds, in parts and in one piece.
  expect_accurate(9000, 25, 4, 300.0);
}

TEST(LongRows, Test21OffsetsDoNotMatter) { expect_offsets_do_not_matter(40000, 300, 4); }

}  // namespace
}  // namespace segfuse::semicrf::testing

// What groups compute again and do not read.

#include <gtest/gtest.h>

#include "compiler/segment/segmenter.h"
#include "unit/compiler/segment_models.h"

namespace segfuse::compiler {
namespace {

/// The bias of padding is made of small values, stretched over scores that two softmaxes read.
TEST(Segments, AStretchedBiasIsComputedAgain) {
  Model m;
  Builder& b = m.b;
  const Extent batch = m.size("B");
  const Extent time = m.size("T");
  const ValId lengths = m.input("lengths", {batch}, DType::kI64);
  const ValId x = m.input("x", {batch, Extent(8), time, time});
  const ValId inside = b.lt(b.unsqueeze(b.iota(time), 0), b.unsqueeze(lengths, 1));
  const ValId bias = b.where(inside, b.constant(0), b.constant(-1e9));
  const ValId of_keys = b.reshape(bias, {batch, Extent(1), Extent(1), time});
  const ValId first = b.softmax(b.add(x, of_keys), -1);
  m.output(b.softmax(b.add(b.matmul(first, x), of_keys), -1));
  const auto stored = [](const SegmentedFusion& cut) {
    std::size_t count = 0;
    for (const SegmentedGroup& group : cut.groups())
      for (const ValId output : group.boundary.outputs)
        count += cut.fusion().val(output).shape.size() == 4 &&
                 !cut.fusion().val(output).shape[1].is_constant(1);
    return count;
  };
  const SegmentedFusion cut = m.cut();
  cut.verify();
  EXPECT_EQ(stored(cut), 3U) << describe(cut);  // two softmaxes and the product
  SegmentOptions options;
  options.recompute = false;
  EXPECT_EQ(stored(m.cut(options)), 4U);
}

}  // namespace
}  // namespace segfuse::compiler

// Attention on a device, forward and backward, against its meaning row by row.

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "support/attention_case.h"
#include "unit/engine_gpu/device_test.h"

namespace segfuse::engine {
namespace {

using segfuse::testing::Attention;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class AttentionOnDevice : public testing::OnDevice {
 protected:
  void check(const Attention& a, const std::vector<Tensor>& inputs, const std::string& what) {
    SCOPED_TRACE(what);
    compare(a.fusion(), inputs, a.dtype == DType::kF32 ? 1e-4 : 1e-11);
  }
  void check(const Attention& a, const std::string& what) { check(a, a.inputs(), what); }
};

INSTANTIATE_TEST_SUITE_P(On, AttentionOnDevice, ::testing::Values("simulated", "cuda"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(AttentionOnDevice, IsTheFormulaAtAllSizes) {
  for (const DType dtype : {DType::kF32, DType::kF64})
    for (const auto& [m, n, d, e] : std::vector<std::array<std::int64_t, 4>>{{1, 1, 1, 1},
                                                                             {1, 70, 33, 5},
                                                                             {130, 67, 3, 64},
                                                                             {33, 1, 8, 80},
                                                                             {64, 64, 32, 32},
                                                                             {3, 0, 2, 2},
                                                                             {0, 3, 2, 2},
                                                                             {4, 5, 0, 3},
                                                                             {4, 5, 3, 0},
                                                                             {40, 35, 128, 128},
                                                                             {20, 35, 200, 256}}) {
      Attention a;
      a.dtype = dtype;
      std::tie(a.rows, a.columns, a.inner, a.outer) = std::tuple(m, n, d, e);
      check(a, fmt::format("{}x{} of {} and {}", m, n, d, e));
      a.ahead = 0;
      a.leading = {1, 2};
      check(a, fmt::format("{}x{} of {} and {}, causal", m, n, d, e));
    }
}

}  // namespace
}  // namespace segfuse::engine

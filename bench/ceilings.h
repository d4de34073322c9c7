#pragma once
// What one core of this machine can do at most, measured: the yardsticks of the semi-CRF suite.

namespace segfuse::bench {

struct Ceilings {
  double fma_gflops = 0;       ///< multiply-adds in registers, double
  double exps_per_second = 0;  ///< the engine's exp, double, from and to the first-level cache
};

Ceilings measure_ceilings();

}  // namespace segfuse::bench

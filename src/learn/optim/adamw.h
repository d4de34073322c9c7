#pragma once
// AdamW (Loshchilov & Hutter, 2019) as one Fusion that updates all parameters in place, and the
// learning-rate schedule.

#include <cstdint>
#include <vector>

#include "ir/fusion.h"
#include "learn/nn/layers.h"

namespace segfuse::optim {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.98;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< times the learning rate; on parameters with `decay` only
  double average = 0;          ///< decay of a running mean of the parameters; 0: none
};

/// Inputs: for each parameter p, in order, "p", "gradient.p", "m.p", "v.p" and, with an average,
/// "mean.p"; then f32 scalars "rate", "clip" (factor on the gradients), "correction1" and
/// "correction2" (1 / (1 - beta^step)). p, m.p, v.p and mean.p are updated in place.
ir::Fusion adamw_update(const std::vector<nn::ParameterSpec>& parameters,
                        const AdamWConfig& config);

struct ScheduleConfig {
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;
  double floor = 0.02;  ///< share of the peak at the end
};

/// The rate of step 0, 1, ...: linear warm-up to the peak, then half a cosine down to floor * peak.
double learning_rate(const ScheduleConfig& config, std::int64_t step);

}  // namespace segfuse::optim
